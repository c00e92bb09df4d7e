"""What `gpuplane queue` says of who waits, and since and until when."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gpuplane.cli.commands.queue import COLUMNS, forget_starts, in_order, known_starts
from gpuplane.cli.words import now

CREATED = "2026-05-01T12:00:00+00:00"


def a_row(**facts: Any) -> dict[str, Any]:
    """Return a job that waits, as the API lists it, with its place in the queue."""
    row = {
        "id": "01", "name": "job", "status": "queued", "priority": "normal", "cluster": "lab",
        "tenant": "t", "project": "p", "queue": "", "gpu_type": "nvidia-l4", "gpu_count": 1,
        "replica_count": 1, "replicas_wanted": None, "scale": None, "reason": "QuotaExceeded",
        "status_message": "All is in use.", "estimated_start": None, "queued_at": CREATED,
        "created_at": CREATED, **facts,
    }  # fmt: skip
    return in_order([row])[0]


def a_service(**scale: Any) -> dict[str, Any]:
    """Return a service that runs with fewer replicas than it wants."""
    told = {"wanted": 3, "missing": 2, "since": CREATED, "reason": "WaitingForAdmission",
            "message": "insufficient unused quota for nvidia.com/gpu", **scale}  # fmt: skip
    return a_row(status="running", scale=told, replicas_wanted=3, reason="", status_message="")


def shown(row: dict[str, Any], title: str) -> Any:
    return next(each for each in COLUMNS if each.title == title).value(row)


def test_a_service_that_runs_stands_with_the_replicas_it_lacks_and_why() -> None:
    row = a_service()
    assert shown(row, "STATUS") == "running 1/3"
    assert shown(row, "GPUS") == "2x1 L4"
    assert shown(row, "REASON") == "WaitingForAdmission"
    assert shown(row, "MESSAGE") == "insufficient unused quota for nvidia.com/gpu"
    assert (shown(row, "POS"), shown(row, "STARTS")) == (None, "unknown")


def test_what_was_not_looked_at_yet_says_so() -> None:
    assert shown(a_service(reason="", message=""), "MESSAGE") == "not looked at yet"
    assert shown(a_row(status_message=""), "MESSAGE") == "not looked at yet"
    assert shown(a_row(status="pending", status_message=""), "MESSAGE") == ""


def test_a_bar_without_an_end_is_no_forecast_of_a_start() -> None:
    rows: list[dict[str, Any]] = [
        {"job_id": "forecast", "start": "1", "end": "2", "is_estimate": True},
        {"job_id": "anybody's guess", "start": "1", "end": None, "is_estimate": True},
        {"job_id": "runs", "start": "0", "end": None, "is_estimate": False},
    ]
    assert known_starts(rows) == {"forecast": "1"}


def test_a_start_that_has_gone_by_says_nothing_of_the_next() -> None:
    later = (now() + timedelta(hours=2)).isoformat()
    rows = [a_row(estimated_start=CREATED), a_row(estimated_start=later), a_service()]
    rows[2]["estimated_start"] = later
    forget_starts(rows)
    assert [row["estimated_start"] for row in rows] == [None, later, None]
    assert shown(rows[0], "STARTS") == "unknown"
    assert str(shown(rows[1], "STARTS")).startswith("in ")
