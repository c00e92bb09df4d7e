"""What time alone does to a job, judged purely."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.workloads import (
    BudgetAction,
    CheckpointConfig,
    DeadlineAction,
    JobType,
    TimeWindow,
    WindowEnd,
)
from gpuplane.domains.jobs.rules.due import (
    BUDGET_LOOK_MS,
    CHECKPOINT_WAIT_MS,
    CURRENCY_TOLD,
    DEADLINE_GRACE_MS,
    START_TIMEOUT_MS,
    STOP_MARGIN_MS,
    UNREACHABLE_MS,
    Deed,
    compute_next_due,
    judge_due,
    judge_move,
    mark_asked,
)
from tests.builders import NOW
from tests.unit.domains.jobs.builders import a_job, a_running_job, an_attempt

WINDOW = TimeWindow(8 * 60, 10 * 60, "UTC", (), WindowEnd.STOP)
"""Open at NOW (08:53:20 UTC) until 66 min 40 s later."""
WINDOW_LEFT_MS = (66 * 60 + 40) * 1000


def deeds(job: object, at: int, spent: int = 0, attempt: object = None) -> list[Deed]:
    return [each.deed for each in judge_due(job, attempt, spent, at)]  # type: ignore[arg-type]  # builders give the values


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED])
def test_nothing_happens_to_a_job_that_is_over(status: JobStatus) -> None:
    job = a_job(status, deadline=NOW - 10**9)
    assert deeds(job, NOW) == []
    assert compute_next_due(job, NOW) is None


def test_a_plain_queued_or_running_job_is_never_due() -> None:
    assert compute_next_due(a_job(), NOW) is None
    assert compute_next_due(a_running_job(), NOW) is None


def test_a_deadline_counts_only_after_its_grace() -> None:
    job = a_job(deadline=NOW)
    assert compute_next_due(job, NOW) == NOW + DEADLINE_GRACE_MS
    assert deeds(job, NOW + DEADLINE_GRACE_MS - 1) == []
    assert deeds(job, NOW + DEADLINE_GRACE_MS) == [Deed.TELL_DEADLINE]
    told = replace(job, warned=("deadline",))
    assert deeds(told, NOW + DEADLINE_GRACE_MS) == []
    assert compute_next_due(told, NOW) is None


def test_a_deadline_cancels_a_job_that_asked_for_it() -> None:
    job = a_running_job(deadline=NOW, deadline_action=DeadlineAction.CANCEL)
    assert deeds(job, NOW + DEADLINE_GRACE_MS) == [Deed.CANCEL_DEADLINE]


def test_an_admitted_job_has_a_while_to_start() -> None:
    job = a_job(JobStatus.SCHEDULED, admitted_at=NOW)
    assert compute_next_due(job, NOW) == NOW + START_TIMEOUT_MS
    assert deeds(job, NOW + START_TIMEOUT_MS - 1) == []
    assert deeds(job, NOW + START_TIMEOUT_MS) == [Deed.FAIL_START]


def test_a_running_job_has_its_maximum_duration_from_its_start() -> None:
    job = a_running_job(max_duration_s=60)
    assert compute_next_due(job, NOW) == NOW + 60_000
    assert deeds(job, NOW + 59_999) == []
    assert deeds(job, NOW + 60_000) == [Deed.FAIL_DURATION]


@pytest.mark.parametrize(
    ("action", "deed"),
    [
        (BudgetAction.WARN, Deed.TELL_BUDGET),
        (BudgetAction.PAUSE, Deed.PAUSE_BUDGET),
        (BudgetAction.CANCEL, Deed.CANCEL_BUDGET),
    ],
)
def test_a_spent_budget_has_its_action(action: BudgetAction, deed: Deed) -> None:
    job = a_running_job(budget_limit_micro=100, budget_action=action)
    assert compute_next_due(job, NOW) == NOW + BUDGET_LOOK_MS
    assert deeds(job, NOW, spent=99) == []
    assert deeds(job, NOW, spent=100) == [deed]


def test_a_budget_is_told_once() -> None:
    job = a_running_job(budget_limit_micro=100, warned=("budget",))
    assert deeds(job, NOW, spent=10**6) == []
    assert compute_next_due(job, NOW) is None


def test_a_job_out_of_reach_is_given_up_after_a_while_and_not_judged_otherwise() -> None:
    job = a_running_job(condition=Condition.UNREACHABLE, condition_at=NOW, budget_limit_micro=1)
    assert deeds(job, NOW + UNREACHABLE_MS - 1, spent=5) == []
    assert deeds(job, NOW + UNREACHABLE_MS, spent=5) == [Deed.FAIL_UNREACHABLE]


def test_a_stopping_job_is_asked_again_only_when_its_backend_had_its_time() -> None:
    job = a_running_job(condition=Condition.STOPPING, condition_at=NOW, max_duration_s=1)
    attempt = an_attempt(state="stopping", stop_deadline=NOW + 30_000, evict_sent_at=NOW)
    late = NOW + 30_000 + STOP_MARGIN_MS
    assert deeds(job, late - 1, attempt=attempt) == []
    assert deeds(job, late, attempt=attempt) == [Deed.STOP_AGAIN]
    unsent = replace(attempt, evict_sent_at=None)
    assert deeds(job, late, attempt=unsent) == []
    again = replace(attempt, evict_sent_at=late)
    assert deeds(job, late + 1, attempt=again) == []


def test_a_window_that_closes_stops_what_may_not_finish() -> None:
    job = a_running_job(window=WINDOW)
    end = NOW + WINDOW_LEFT_MS
    assert compute_next_due(job, NOW) == end
    assert deeds(job, end - 1) == []
    assert deeds(job, end) == [Deed.STOP_WINDOW]
    may_finish = a_running_job(window=replace(WINDOW, at_end=WindowEnd.FINISH))
    assert deeds(may_finish, end) == []
    assert compute_next_due(may_finish, NOW) is None


def test_a_window_asks_for_a_checkpoint_waits_for_it_and_then_stops() -> None:
    end = NOW + WINDOW_LEFT_MS
    job = a_running_job(
        window=replace(WINDOW, at_end=WindowEnd.CHECKPOINT), checkpoint=CheckpointConfig()
    )
    assert deeds(job, end) == [Deed.ASK_CHECKPOINT]
    asked = replace(job, warned=tuple(mark_asked(job.warned, end)))
    assert deeds(asked, end + 1) == []
    wrote = replace(asked, last_checkpoint_at=end + 5)
    assert deeds(wrote, end + 6) == [Deed.STOP_WINDOW]
    assert deeds(asked, end + CHECKPOINT_WAIT_MS) == [Deed.STOP_WINDOW]


def test_a_job_without_checkpoints_is_moved_when_the_wait_is_over() -> None:
    job = a_running_job()
    assert judge_move(job, NOW, NOW + 1000, NOW + 999) is None
    moved = judge_move(job, NOW, NOW + 1000, NOW + 1000)
    assert moved is not None
    assert moved.deed is Deed.STOP_WINDOW


def test_a_service_without_checkpoints_has_nothing_to_wait_for() -> None:
    moved = judge_move(a_running_job(job_type=JobType.SERVICE), NOW, NOW + 1000, NOW)
    assert moved is not None
    assert moved.deed is Deed.STOP_WINDOW
    writes = a_running_job(job_type=JobType.SERVICE, checkpoint=CheckpointConfig())
    asked = judge_move(writes, NOW, NOW + 1000, NOW)
    assert asked is not None
    assert asked.deed is Deed.ASK_CHECKPOINT


def test_a_later_request_for_a_checkpoint_takes_the_place_of_the_earlier_one() -> None:
    first = mark_asked(["budget"], 1)
    assert mark_asked(first, 2) == ["budget", "checkpoint_asked:2"]


def test_a_waiting_job_is_looked_at_for_its_gates() -> None:
    job = a_job(JobStatus.PENDING, due_at=NOW + 5, scheduled_start=NOW + 9)
    assert compute_next_due(job, NOW) == NOW + 5
    assert deeds(job, NOW + 5) == [Deed.LOOK_AT_GATES]
    paused = replace(job, condition=Condition.PAUSED)
    assert compute_next_due(paused, NOW) is None


def test_costs_that_a_budget_does_not_count_are_told_once() -> None:
    job = a_running_job(budget_limit_micro=1_000_000, budget_action=BudgetAction.CANCEL)
    found = judge_due(job, None, 0, NOW, others={"EUR": 5_000_000})
    assert [each.deed for each in found] == [Deed.TELL_CURRENCY]
    told = replace(job, warned=(CURRENCY_TOLD,))
    assert judge_due(told, None, 0, NOW, others={"EUR": 5_000_000}) == ()


def test_costs_in_any_currency_are_no_news_of_a_job_without_a_budget() -> None:
    assert judge_due(a_running_job(), None, 0, NOW, others={"EUR": 5_000_000}) == ()
