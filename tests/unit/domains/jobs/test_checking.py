"""What `db check` says about jobs, attempts, allocations and histories."""

from __future__ import annotations

from uuid import UUID

import pytest

from gpuplane.core.lifecycle.jobs import EDGES
from gpuplane.domains.jobs.rules.checking import (
    Holding,
    OpenAttempt,
    Standing,
    Told,
    attempt_faults,
    history_faults,
    holding_faults,
)

JOB, OTHER, ATTEMPT, REPLICA, CLUSTER = (UUID(int=n) for n in range(1, 6))
OPEN = OpenAttempt(ATTEMPT, JOB, CLUSTER, {REPLICA: ("GPU-1",)})


def held(gpu_id: str | None, **changes: UUID) -> Holding:
    values = {"attempt_id": ATTEMPT, "replica_id": REPLICA, "job_id": JOB, "cluster_id": CLUSTER}
    return Holding(**{**values, **changes}, gpu_id=gpu_id)


def test_a_running_job_with_its_attempt_and_a_finished_one_without_are_sound() -> None:
    jobs = [Standing(JOB, "runs", "running", ATTEMPT), Standing(OTHER, "over", "completed", None)]
    assert attempt_faults(jobs, [OPEN]) == []
    assert holding_faults([OPEN], [held(None), held("GPU-1")]) == []


@pytest.mark.parametrize(
    ("job", "attempts"),
    [
        (Standing(JOB, "j", "running", None), []),
        (Standing(JOB, "j", "running", OTHER), [OPEN]),
        (Standing(JOB, "j", "scheduled", ATTEMPT), [OPEN, OpenAttempt(OTHER, JOB, CLUSTER, {})]),
        (Standing(JOB, "j", "queued", None), [OPEN]),
        (Standing(JOB, "j", "completed", ATTEMPT), []),
        (Standing(OTHER, "j", "queued", None), [OPEN]),
    ],
)
def test_jobs_and_attempts_that_do_not_belong_to_each_other_are_named(
    job: Standing, attempts: list[OpenAttempt]
) -> None:
    assert len(attempt_faults([job], attempts)) == 1


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [held(None)],
        [held("GPU-1")],
        [held(None), held("GPU-2")],
        [held(None), held("GPU-1"), held("GPU-1")],
        [held(None), held("GPU-1"), held("GPU-2", replica_id=OTHER)],
        [held(None), held("GPU-1"), held("GPU-2", attempt_id=OTHER)],
        [held(None), held("GPU-1", job_id=OTHER)],
    ],
)
def test_holdings_that_are_not_what_the_replicas_run_on_are_named(rows: list[Holding]) -> None:
    assert holding_faults([OPEN], rows)


def test_every_edge_of_the_table_is_a_history_that_may_be_told() -> None:
    for edge in EDGES:
        told = [Told(f"job.{edge.source}", ""), Told(f"job.{edge.target}", str(edge.source))]
        first = history_faults("j", str(edge.target), told[1:])
        assert first == [], edge


def test_a_history_is_followed_through_words_that_are_no_status() -> None:
    told = [
        Told("job.pending", ""), Told("job.queued", ""), Told("job.suspended", "queued"),
        Told("job.resumed", ""), Told("job.queued", "pending"), Told("job.scheduled", "queued"),
        Told("job.stopping", ""), Told("job.completed", "scheduled"),
    ]  # fmt: skip
    assert history_faults("j", "completed", told) == []
    assert history_faults("j", None, told) == []


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("running", [Told("job.queued", "pending")]),
        ("running", [Told("job.queued", "pending"), Told("job.running", "queued")]),
        ("queued", [Told("job.completed", "running"), Told("job.queued", "completed")]),
        ("running", [Told("job.queued", "pending"), Told("job.running", "scheduled")]),
    ],
)
def test_a_history_that_jumps_or_does_not_lead_to_the_status_is_named(
    status: str, told: list[Told]
) -> None:
    assert history_faults("j", status, told)
