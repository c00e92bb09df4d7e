"""How long a service was down and what is told of it, judged purely."""

from __future__ import annotations

from dataclasses import replace

from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.workloads import JobType, Priority, TimeWindow, WindowEnd
from gpuplane.domains.jobs.rules import Job, judge_gates
from gpuplane.domains.jobs.rules.due import compute_next_due
from gpuplane.domains.jobs.rules.uptime import (
    MAX_PAUSES,
    UptimeTargets,
    compute_down_ms,
    judge_uptime,
    mark_down,
    mark_pause,
)
from tests.builders import NOW
from tests.unit.domains.jobs.builders import a_job, a_running_job

TARGETS = UptimeTargets({Priority.NORMAL: 900_000}, window_ms=1_000_000)
"""100 s of 1000 s may be down: at risk from 80 s on."""
RUN = (NOW - 500_000, NOW)


def a_service(status: JobStatus = JobStatus.QUEUED, **changes: object) -> Job:
    return a_job(status, **{"job_type": JobType.SERVICE, "attempt_count": 1, **changes})


def told_at(
    job: Job, at: int, runs: tuple[tuple[int, int], ...] = (RUN,)
) -> tuple[str | None, Job]:
    found = judge_uptime(job, runs, TARGETS, at)
    return found.tell, replace(job, warned=found.warned)


def test_the_down_time_is_what_no_span_covers() -> None:
    assert compute_down_ms([(0, 10), (5, 20), (30, 40)], 0, 50) == 20
    assert compute_down_ms([(30, 40), (0, 10)], 20, 35) == 10
    assert compute_down_ms([(0, 100)], 20, 50) == 0
    assert compute_down_ms([(60, 70)], 20, 50) == 30


def test_a_risk_is_told_once_at_four_fifths_and_a_breach_once_at_the_whole() -> None:
    tell, job = told_at(a_service(), NOW + 79_999)
    assert tell is None
    tell, job = told_at(job, NOW + 80_000)
    assert tell == "uptime_risk"
    assert told_at(job, NOW + 99_999)[0] is None
    tell, job = told_at(job, NOW + 100_000)
    assert tell == "uptime"
    assert told_at(job, NOW + 200_000)[0] is None


def test_a_service_seen_too_late_for_the_risk_is_told_its_breach_alone() -> None:
    assert told_at(a_service(), NOW + 150_000)[0] == "uptime"


def test_the_next_look_is_when_the_next_threshold_is_crossed_and_never_after_a_breach() -> None:
    _, job = told_at(a_service(), NOW + 10_000)
    assert compute_next_due(job, NOW + 10_000) == NOW + 80_000
    _, job = told_at(job, NOW + 80_000)
    assert compute_next_due(job, NOW + 80_000) == NOW + 100_000
    _, job = told_at(job, NOW + 100_000)
    assert compute_next_due(job, NOW + 100_000) is None


def test_a_service_that_went_down_just_now_is_due_at_once_and_one_that_runs_is_not() -> None:
    assert compute_next_due(a_service(), NOW) == NOW
    assert compute_next_due(a_service(attempt_count=0), NOW) is None
    assert compute_next_due(a_service(JobStatus.PENDING, condition=Condition.PAUSED), NOW) is None
    running = a_running_job(job_type=JobType.SERVICE, attempt_count=1)
    assert compute_next_due(running, NOW) is None
    assert compute_next_due(a_job(attempt_count=1), NOW) is None


def test_what_was_told_is_told_again_after_the_service_was_back_below_it() -> None:
    breached = a_service(warned=("uptime_risk", "uptime", "budget"))
    later = NOW + 2_000_000
    tell, job = told_at(breached, later, (RUN, (NOW + 100_000, later - 1_000)))
    assert tell is None
    assert job.warned[0] == "budget"
    assert not {"uptime", "uptime_risk"} & set(job.warned)
    assert told_at(job, later + 80_000, ((NOW, later - 1_000),))[0] == "uptime_risk"


def test_down_time_before_the_window_and_before_the_first_start_does_not_count() -> None:
    late = NOW + 1_100_000
    assert judge_uptime(a_service(), [RUN, (NOW + 90_000, late)], TARGETS, late).down_ms == 0
    first = [(NOW + 50_000, NOW + 60_000)]
    assert judge_uptime(a_service(), first, TARGETS, NOW + 70_000).down_ms == 10_000


def test_time_in_which_nobody_wanted_the_service_to_run_does_not_count() -> None:
    paused = a_service(warned=tuple(mark_pause((), NOW, NOW + 70_000)))
    assert judge_uptime(paused, [RUN], TARGETS, NOW + 90_000).down_ms == 20_000
    tell, job = told_at(paused, NOW + 1_080_000)
    assert tell == "uptime"
    assert any(each.startswith("paused:") for each in paused.warned)
    assert not any(each.startswith("paused:") for each in job.warned)


def test_many_pauses_are_joined_rather_than_kept_for_ever() -> None:
    warned: list[str] = ["budget"]
    for step in range(MAX_PAUSES + 20):
        warned = mark_pause(warned, NOW + step * 10, NOW + step * 10 + 5)
    pauses = [each for each in warned if each.startswith("paused:")]
    assert len(pauses) == MAX_PAUSES
    assert pauses[0] == f"paused:{NOW}-{NOW + 205}"
    assert warned[0] == "budget"


def test_a_class_without_a_target_and_a_service_with_a_window_are_looked_at_once_only() -> None:
    window = TimeWindow(8 * 60, 10 * 60, "UTC", (), WindowEnd.STOP)
    for job in (a_service(priority=Priority.LOW), a_service(window=window)):
        tell, after = told_at(job, NOW + 900_000)
        assert tell is None
        assert compute_next_due(after, NOW + 900_000) is None


def test_a_target_of_all_the_time_allows_no_millisecond() -> None:
    whole = UptimeTargets({Priority.NORMAL: 1_000_000}, window_ms=1_000_000)
    assert judge_uptime(a_service(), [RUN], whole, NOW).tell is None
    assert judge_uptime(a_service(), [RUN], whole, NOW + 1).tell == "uptime"


def test_a_look_during_the_delay_of_a_retry_does_not_open_its_gate() -> None:
    job = a_service(
        JobStatus.PENDING,
        condition=Condition.BACKING_OFF,
        due_at=NOW,
        warned=tuple(mark_down(("uptime_at:5", "retry_at:6"), NOW + 300_000)),
    )
    assert job.warned == (f"retry_at:{NOW + 300_000}",)
    verdict = judge_gates(job, (), 0, NOW)
    assert (verdict.is_open, verdict.look_again_at) == (False, NOW + 300_000)
    assert judge_gates(job, (), 0, NOW + 300_000).is_open
