"""The container that keeps what a job reported last: where it is, and what is read of it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.kubernetes.manifests.lastreports import LAST_REPORT, MARK
from gpuplane.backends.kubernetes.manifests.workloads import compute_workload
from gpuplane.backends.kubernetes.observing import observe_attempt
from gpuplane.backends.kubernetes.outcomes import compute_outcomes
from gpuplane.backends.kubernetes.reports import Report, last_report, read_report
from gpuplane.backends.kubernetes.served import Served
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.shapes import Container, State, Terminated
from gpuplane.backends.kubernetes.views import ClusterView
from gpuplane.core.workloads import JobType
from tests.contract.builders import a_plan
from tests.unit.backends.kubernetes.builders import (
    END_MS,
    ID,
    a_main,
    a_pod,
    a_record,
    a_sight,
    ended,
)
from tests.waiting import wait_until

SHELL, BARE = ("/bin/bash", "-c", "true"), ("python3", "train.py")


def keepers(
    command: tuple[str, ...], image: str = "", *, packed: bytes | None = None, **changes: Any
) -> list[dict[str, Any]]:
    """Return the containers that keep last reports in the pod of a plan."""
    settings = KubernetesSettings(default_image="job:1", report_image=image)
    plan = replace(a_plan(command=command), **changes)
    spec = compute_workload(plan, settings, "c1", (), Served(), packed).main["spec"]["template"]
    found = spec["spec"].get("initContainers", [])
    return [each for each in found if each["name"] == LAST_REPORT]


def test_the_jobs_own_image_keeps_reports_where_a_shell_is_known_to_be_in_it() -> None:
    [own] = keepers(SHELL)
    assert (own["image"], own["command"][0], own["restartPolicy"]) == (
        "job:1", "/bin/bash", "Always",
    )  # fmt: skip
    assert keepers(BARE) == []
    [unpacking] = keepers(BARE, packed=b"x")
    assert (unpacking["image"], unpacking["command"][0]) == ("job:1", "/bin/sh")


def test_an_image_that_the_cluster_names_keeps_all_of_them_and_none_keeps_nothing() -> None:
    [named] = keepers(BARE, "busybox:1")
    assert (named["image"], named["command"][0]) == ("busybox:1", "/bin/sh")
    assert keepers(SHELL, "none") == []
    assert keepers(SHELL, job_type=JobType.SERVICE) == []


def test_it_asks_for_nothing_beyond_what_the_job_asks() -> None:
    [keeper] = keepers(SHELL)
    assert keeper["resources"]["requests"] == {"cpu": "0", "memory": "0"}


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_what_its_script_leaves_when_it_is_ended_is_the_last_report(
    shell: str, tmp_path: Path
) -> None:
    [keeper] = keepers((shell, "-c", "true"))
    message, folder = tmp_path / "message", tmp_path / "report"
    folder.mkdir()
    script = keeper["command"][2].replace("/dev/termination-log", str(message))
    files = [str(folder / name) for name in ("progress", "checkpoints")]
    Path(files[0]).write_text("0.1\n")
    process = subprocess.Popen([shell, "-c", script, "keeper", *files])
    wait_until(lambda: message.exists() and MARK in message.read_text(), "it has looked")
    Path(files[0]).write_text("0.1\n" * 1_000 + "0.93\n")
    Path(files[1]).write_text('{"path": "/c/9"}\n')
    process.terminate()
    assert process.wait(timeout=30) == 0
    text = message.read_text()
    assert read_report(text) == Report(0.93, "/c/9")
    assert len(text) <= 4_096


def with_last_report(text: str) -> Any:
    """Return a pod that has ended and whose keeper left this."""
    pod = a_pod(phase="Succeeded", state=ended(0))
    state = State(terminated=Terminated(exit_code=0, message=text))
    pod.status.init_container_statuses = [Container(LAST_REPORT, state=state)]
    return pod


def test_the_last_report_of_a_pod_is_recorded_with_its_end_and_told_after_it_is_gone() -> None:
    pod = with_last_report(f"0.5\n0.97\n\n{MARK}\n/c/7\n")
    assert last_report(pod) == Report(0.97, "/c/7")
    outcome = compute_outcomes(a_sight(pod), 0)[0]
    record = a_record(outcomes={"0": outcome})
    [seen] = observe_attempt(a_sight(record=record))
    assert (seen.progress_ratio, seen.checkpoint, seen.checkpoint_at) == (0.97, "/c/7", END_MS)


def test_a_last_report_takes_the_place_of_what_was_read_before_and_nothing_leaves_that() -> None:
    for text, expected in ((f"0.97\n\n{MARK}\n/c/7\n", (0.97, "/c/7", END_MS)),
                           ("", (0.4, "/c/1", 50))):  # fmt: skip
        view = ClusterView()
        view.take_record(a_record(), 1)
        view.take_main(a_main())
        view.take_report(ID, 0, Report(0.4, "/c/1"), 50)
        outcome = compute_outcomes(a_sight(with_last_report(text)), 0)[0]
        view.take_record(a_record(outcomes={"0": outcome}), 2)
        [seen] = view.observe()
        assert (seen.progress_ratio, seen.checkpoint, seen.checkpoint_at) == expected
