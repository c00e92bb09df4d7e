"""The specifications that tests of provisioning stand on, and the files they make."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpuplane.core.provisioning.reading import parse_cluster_spec
from gpuplane.core.provisioning.specs import ClusterSpec
from gpuplane.kube.instances import find_accelerators

HERE = Path(__file__).parent
EXAMPLES = Path(__file__).parents[4] / "examples" / "provisioning"
GOLDEN = HERE / "golden"


def gpus_of(instance_type: str) -> tuple[str, int] | None:
    """What the product's table knows of an instance type."""
    found = find_accelerators(instance_type)
    return None if found is None else (found.model, found.count)


@cache
def documents() -> dict[str, dict[str, Any]]:
    """Every example and variant, by the name of its cluster."""
    files = [*sorted(EXAMPLES.glob("*.yaml")), HERE / "variants.yaml"]
    found = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    return {each["metadata"]["name"]: each for each in found}


@cache
def specs() -> dict[str, ClusterSpec]:
    """The same as the product reads them."""
    return {name: parse_cluster_spec(each, gpus_of) for name, each in documents().items()}


def of_clouds() -> dict[str, ClusterSpec]:
    return {name: spec for name, spec in specs().items() if spec.platform.is_cloud}


def of_machines() -> dict[str, ClusterSpec]:
    return {name: spec for name, spec in specs().items() if not spec.platform.is_cloud}
