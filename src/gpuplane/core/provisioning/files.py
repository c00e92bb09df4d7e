"""The files that OpenTofu or Terraform are given: the same bytes for the same cluster.

Owns the frame around what each cloud's module returns. Writes nothing anywhere.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from gpuplane.core.provisioning.aks import PROVIDER as AZURERM
from gpuplane.core.provisioning.aks import aks_configuration
from gpuplane.core.provisioning.eks import PROVIDER as AWS
from gpuplane.core.provisioning.eks import eks_configuration
from gpuplane.core.provisioning.gke import PROVIDER as GOOGLE
from gpuplane.core.provisioning.gke import gke_configuration
from gpuplane.core.provisioning.specs import ClusterSpec, Platform

MAIN = "main.tf.json"
REQUIRED_VERSION = ">= 1.6.0"
"""The first OpenTofu; Terraform 1.6 and later read the same."""

_CLOUDS: Mapping[Platform, tuple[tuple[str, str, str], Callable[[ClusterSpec], dict[str, Any]]]] = {
    Platform.EKS: (AWS, eks_configuration),
    Platform.AKS: (AZURERM, aks_configuration),
    Platform.GKE: (GOOGLE, gke_configuration),
}


def plan_files(spec: ClusterSpec) -> dict[str, bytes]:
    """Return the files by name.

    Raises:
        ValueError: If no cloud makes the cluster.
    """
    if spec.platform not in _CLOUDS:
        raise ValueError(f"{spec.platform} clusters are joined by scripts")
    (name, source, version), configuration = _CLOUDS[spec.platform]
    document = {
        "terraform": {
            "required_version": REQUIRED_VERSION,
            "required_providers": {name: {"source": source, "version": version}},
            "backend": {"local": {"path": "terraform.tfstate"}},
        },
        **configuration(spec),
    }
    return {MAIN: (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()}
