"""The real OpenTofu or Terraform on resources that need no cloud, and keys made once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kit.sealing import SealingKeys
from gpuplane.provisioning.binaries import NAMES
from gpuplane.provisioning.clusters import Limits, Provisioner

INSTALLED = [name for name in NAMES if shutil.which(name)]


def configuration(count: int, *, first: str = "first", waits_for: Path | None = None) -> bytes:
    """Resources of the provider that is built into the binary, one after the other.

    Args:
        count: How many.
        first: What the first holds; another word changes it in place.
        waits_for: A FIFO that the last one reads a line of before it is made.
    """
    resources: dict[str, Any] = {}
    for index in range(count):
        resources[f"r{index}"] = {"input": first if index == 0 else f"r{index}"}
        if index:
            resources[f"r{index}"]["depends_on"] = [f"terraform_data.r{index - 1}"]
    if waits_for is not None:
        command = f"read line < {waits_for}"
        resources[f"r{count - 1}"]["provisioner"] = [{"local-exec": {"command": command}}]
    document = {
        "terraform": {"backend": {"local": {"path": "terraform.tfstate"}}},
        "resource": {"terraform_data": resources},
        "output": {
            "server": {"value": "https://k.example.com"},
            "certificate_authority_data": {"value": "Q0E="},
            # Made when it is applied, so that nothing but the state can know it.
            "token": {"value": "${terraform_data.r0.id}", "sensitive": True},
        },
    }
    return json.dumps(document).encode()


def files(count: int, **more: Any) -> dict[str, bytes]:
    return {"main.tf.json": configuration(count, **more)}


@pytest.fixture(scope="session")
def sealing(tmp_path_factory: pytest.TempPathFactory) -> SealingKeys:
    keys = SealingKeys(tmp_path_factory.mktemp("sealed") / "keys")
    assert keys.current_id
    return keys


@pytest.fixture(params=INSTALLED or [None])
def binary(request: pytest.FixtureRequest) -> str:
    if request.param is None:
        pytest.skip("neither OpenTofu nor Terraform is installed")
    return str(request.param)


Making = Callable[..., Provisioner]


@pytest.fixture
def making(tmp_path: Path, sealing: SealingKeys, binary: str) -> Making:
    """Make a provisioner on this test's home; `told` collects what it says."""

    def make(told: list[str] | None = None, **limits: float) -> Provisioner:
        return Provisioner(
            tmp_path, sealing, environment=os.environ, binary=binary, limits=Limits(**limits),
            tell=[].append if told is None else told.append,
        )  # fmt: skip

    return make
