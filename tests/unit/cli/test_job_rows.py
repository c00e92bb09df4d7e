"""What the table of jobs shows of a job's time."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.cli.commands.events import by_time
from gpuplane.cli.commands.jobs import COLUMNS, _fields
from gpuplane.cli.lookups import attempt_of_now
from gpuplane.cli.output import Column, Output, show_rows

STARTED, ENDED = "2026-05-01T12:00:00+00:00", "2026-05-01T12:05:00+00:00"


def ran(**facts: Any) -> str:
    job = {"status": "running", "condition": "", "actual_start": STARTED, "actual_end": None,
           "estimated_start": STARTED, **facts}  # fmt: skip
    column = next(each for each in COLUMNS if each.title == "RAN/START")
    return str(column.value(job))


def test_a_job_ran_as_long_as_its_attempts_and_not_while_it_waited_between_them() -> None:
    assert ran(status="cancelled", actual_end=ENDED, ran_seconds=5.0) == "5s"
    assert ran(status="running", ran_seconds=65.0) == "1m5s"


@pytest.mark.parametrize("condition", ["Paused", "BackingOff"])
def test_a_job_that_is_paused_or_waits_again_does_not_run(condition: str) -> None:
    assert ran(status="pending", condition=condition) == ""


def test_a_job_that_waits_shows_when_it_should_start() -> None:
    expected = "2099-05-01T12:00:00+00:00"
    assert ran(status="queued", estimated_start=expected).startswith("2099-0")


@pytest.mark.parametrize(
    ("status", "state", "is_shown"),
    [("queued", "ended", False), ("running", "running", True), ("failed", "ended", True),
     ("preempted", "stopping", True)],
)  # fmt: skip
def test_a_job_that_waits_again_is_not_shown_where_it_was(
    status: str, state: str, is_shown: bool
) -> None:
    attempt = {"state": state, "replicas": [{"node": "l4-1"}]}
    assert attempt_of_now({"status": status, "current_attempt": attempt}) == (
        attempt if is_shown else {}
    )


def a_service(state: str, status: str = "running") -> dict[str, Any]:
    """Return a service of two replicas behind one address, as the API shows it."""
    replicas = [{"node": f"l4-{n}", "url": "http://svc:80", "ready": True} for n in (1, 2)]
    job = dict.fromkeys(
        "name id tenant project user cluster job_type deployment_type priority gpu_type queue "
        "labels progress created_at actual_start actual_end estimated_start deadline exit_code "
        "attempt_count actual_cost estimated_cost budget_limit last_checkpoint condition".split()
    )
    spec = {"command": ["serve"], "image": "i"}
    attempt = {"state": state, "replicas": replicas}
    outputs = {"url": "http://svc:80", "port": 80, "loss": 0.5}
    return {**job, "job_type": "service", "status": status, "reason": "", "status_message": "",
            "simulated": False, "cpu_cores": 1, "memory_gb": 1, "gpu_count": 1, "spec": spec,
            "replica_count": 2,
            "replicas_wanted": None, "currency": "USD", "current_attempt": attempt,
            "outputs": outputs}  # fmt: skip


def test_a_service_that_runs_and_does_not_serve_says_so_in_the_table() -> None:
    column = next(each for each in COLUMNS if each.title == "REASON")
    job = {"status": "running", "reason": "", "replicas_wanted": 2, "replicas_ready": 0}
    assert column.value(job) == "0/2 ready"
    assert column.value({**job, "replicas_ready": 2}) == ""
    assert column.value({**job, "replicas_wanted": 0}) == "no replica"
    assert column.value({**job, "replicas_wanted": None, "replicas_ready": None}) == ""
    assert column.value({**job, "reason": "ClusterNotAvailable"}) == "ClusterNotAvailable"


def test_no_next_replica_waits_of_a_service_that_is_over() -> None:
    job = a_service("running")
    told = {"reason": "WaitingForAdmission", "message": "no quota", "missing": 1}
    job["current_attempt"]["scale"] = told
    assert dict(_fields(job))["next replica"] == "WaitingForAdmission — no quota"
    job |= {"status": "cancelled", "current_attempt": {**job["current_attempt"], "state": "ended",
            "scale": {**told, "missing": 0}}}  # fmt: skip
    assert dict(_fields(job))["next replica"] is None


def test_where_a_job_is_reached_is_shown_once_and_only_of_what_runs_now() -> None:
    shown = dict(_fields(a_service("running")))
    assert (shown["nodes"], shown["url"]) == (["l4-1", "l4-2"], ["http://svc:80"])
    assert shown["outputs"] == {"loss": 0.5}
    waits = dict(_fields(a_service("ended", "queued")))
    assert (waits["nodes"], waits["url"], waits["outputs"]) == ([], [], {"loss": 0.5})
    batch = dict(_fields({**a_service("ended", "completed"), "job_type": "batch"}))
    assert batch["outputs"] == {"url": "http://svc:80", "port": 80, "loss": 0.5}


def test_events_are_printed_in_order_of_time_and_those_of_one_instant_as_committed() -> None:
    newest_first = [
        {"at": STARTED, "kind": "told late"}, {"at": ENDED, "kind": "ended"},
        {"at": STARTED, "kind": "started"},
    ]  # fmt: skip
    assert [row["kind"] for row in by_time(newest_first)] == ["started", "told late", "ended"]


def test_a_message_of_many_lines_has_one_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"message": "exited with code 1: no\nTraceback:\n  line 3"}, {"message": "one line"}]
    show_rows(rows, (Column("MESSAGE", lambda row: row["message"]),), Output.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "MESSAGE", "exited with code 1: no …", "one line",
    ]  # fmt: skip
    show_rows(rows, (), Output.JSON)
    assert "line 3" in capsys.readouterr().out
