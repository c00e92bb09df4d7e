"""What Helm's words mean where a cluster refuses objects: for good, or not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuplane.kube.credentials import Connection
from gpuplane.kube.helm import Helm, HelmError


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ('Deployment.apps "web" is invalid: cpu: Invalid value: "-1": must not be', "Invalid"),
        ('Job.batch "j" is invalid: spec.x: Forbidden: may not be set', "Invalid"),
        ('Deployment in version "v1" cannot be handled as a Deployment: quantities', "Invalid"),
        ('Job.batch "j" is invalid: spec.template: field is immutable', "Failed"),
        ('admission webhook "w" denied the request: Pod "p" is invalid: no', "Failed"),
        ('deployments.apps is forbidden: User "u" cannot create', "Forbidden"),
    ],
)
def test_what_a_cluster_finds_invalid_is_told_apart_from_what_it_forbids(
    tmp_path: Path, said: str, reason: str
) -> None:
    words = tmp_path / "words"
    words.write_text(f"Error: INSTALLATION FAILED: {said}\n")
    binary = tmp_path / "helm"
    binary.write_text(f"#!/bin/sh\ncat {words} >&2\nexit 1\n")
    binary.chmod(0o700)
    helm = Helm(Connection(server="https://c"), binary=binary, home=tmp_path / "home")
    with pytest.raises(HelmError) as refused:
        asyncio.run(helm.status("r", "n"))
    assert refused.value.reason == reason
