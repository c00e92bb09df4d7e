"""What is done about a Helm release that was cut off, by a binary that notes its calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.kube.credentials import Connection
from gpuplane.kube.helm import Helm, Release
from gpuplane.loops.clusters.addons import free


@pytest.mark.parametrize(
    ("status", "revision", "called"),
    [
        ("pending-upgrade", 3, "rollback kueue 0"),
        ("pending-rollback", 2, "rollback kueue 0"),
        ("pending-install", 1, "uninstall kueue"),
        ("deployed", 1, ""),
        ("failed", 2, ""),
    ],
)
async def test_a_release_that_was_cut_off_goes_back_or_away_and_others_are_left_alone(
    tmp_path: Path, status: str, revision: int, called: str
) -> None:
    binary, calls = tmp_path / "helm", tmp_path / "calls"
    calls.touch()
    binary.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n', encoding="utf-8")
    binary.chmod(0o755)
    helm = Helm(Connection("https://10.0.0.5:6443", token="t"), binary=binary, home=tmp_path / "h")
    await free(helm, Release("kueue", "kueue-system", revision, status))
    said = calls.read_text(encoding="utf-8").splitlines()
    assert [line.partition(" --")[0] for line in said] == ([called] if called else [])
