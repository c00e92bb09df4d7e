"""How a working directory travels into a pod, and what is told when it cannot."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from gpuplane.backends.interface import BackendError
from gpuplane.backends.kubernetes.causes import why_ended, why_waiting
from gpuplane.backends.kubernetes.manifests.workloads import Workload, compute_workload
from gpuplane.backends.kubernetes.manifests.workspaces import PIECE_BYTES, load_workspace
from gpuplane.backends.kubernetes.served import Served
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.shapes import Container, State, Terminated, Waiting
from gpuplane.core.reasons import Word
from tests.contract.builders import a_plan
from tests.unit.backends.kubernetes.builders import a_pod

SETTINGS = KubernetesSettings(default_image="img:1", max_workspace_bytes=100)


def computed(data: bytes, **execution: str) -> Workload:
    """Return the objects of a plan with this packed working directory."""
    return compute_workload(a_plan(**execution), SETTINGS, "c1", (), Served(), data)


def test_the_pieces_together_are_the_archive_and_every_pod_mounts_them_all() -> None:
    data = bytes(range(256)) * 8_000
    workload = computed(data)
    pieces = [each for each in workload.owned if each["kind"] == "ConfigMap"]
    assert len(pieces) == 3
    found = {key: text for each in pieces for key, text in each["binaryData"].items()}
    assert b"".join(base64.b64decode(found[key]) for key in sorted(found)) == data
    assert all(len(base64.b64decode(text)) <= PIECE_BYTES for text in found.values())
    spec = workload.main["spec"]["template"]["spec"]
    [volume] = [each for each in spec["volumes"] if "projected" in each]
    named = [each["configMap"]["name"] for each in volume["projected"]["sources"]]
    assert named == [each["metadata"]["name"] for each in pieces]
    assert all(each["immutable"] for each in pieces)


def test_the_job_starts_in_the_folder_that_it_asked_for() -> None:
    for asked, folder in (("", "/gpuplane/work"), ("src/app", "/gpuplane/work/src/app")):
        spec = computed(b"x", working_dir=asked).main["spec"]["template"]["spec"]
        assert spec["containers"][0]["workingDir"] == folder


def test_unpacking_asks_for_no_more_than_the_job_does() -> None:
    plan = a_plan()
    plan = replace(plan, resources=replace(plan.resources, cpu_milli=100, memory_mib=64))
    workload = compute_workload(plan, SETTINGS, "c1", (), Served(), b"x")
    first = workload.main["spec"]["template"]["spec"]["initContainers"][0]
    assert first["resources"]["requests"] == {"cpu": "100m", "memory": "64Mi"}


def test_one_that_is_too_large_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "work.tar.gz"
    plan = replace(a_plan(), workspace_archive=str(path))
    path.write_bytes(b"x" * 100)
    assert load_workspace(plan, SETTINGS) == b"x" * 100
    path.write_bytes(b"x" * 101)
    with pytest.raises(BackendError, match=r"101 bytes packed, and at most 100 .*gpuplaneignore"):
        load_workspace(plan, SETTINGS)
    path.unlink()
    with pytest.raises(BackendError, match="cannot be read"):
        load_workspace(plan, SETTINGS)
    assert load_workspace(a_plan(), SETTINGS) is None


def test_what_fails_before_the_job_is_told_as_why_it_could_not_start() -> None:
    pod = a_pod(phase="Failed")
    failed = State(terminated=Terminated(exit_code=2, message="tar: not found"))
    pod.status.init_container_statuses = [Container("unpack", state=failed)]
    cause = why_ended(pod, (), {})
    assert cause.word == Word.START_FAILED
    assert cause.message == (
        "unpack: unpacking the working directory ended with code 2: tar: not found"
    )


def test_what_comes_first_and_waits_is_told_before_what_waits_for_it() -> None:
    pod = a_pod(phase="Pending", state={"waiting": {"reason": "PodInitializing"}})
    waiting = State(waiting=Waiting("ImagePullBackOff", "no such image"))
    pod.status.init_container_statuses = [Container("unpack", state=waiting)]
    assert why_waiting(pod) == "ImagePullBackOff: no such image"
