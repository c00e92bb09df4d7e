"""Whether a job may stand in line."""

from __future__ import annotations

from uuid import UUID

import pytest

from gpuplane.core.ids import JobId
from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import DependencyCondition
from gpuplane.domains.jobs.rules import DependencyState, judge_gates
from gpuplane.domains.jobs.rules.fixes import FIXES, describe_standing
from tests.builders import NOW
from tests.unit.domains.jobs.builders import a_job


def after(
    status: JobStatus | None, condition: DependencyCondition = DependencyCondition.COMPLETED
) -> DependencyState:
    return DependencyState(JobId(UUID(int=1)), condition, status)


def test_a_job_without_gates_may_stand_in_line() -> None:
    assert judge_gates(a_job(JobStatus.PENDING), (), 0, NOW).is_open


@pytest.mark.parametrize(
    ("changes", "word", "look_again"),
    [
        ({"condition": Condition.PAUSED}, Word.PAUSED, None),
        ({"breaker_until": NOW + 1}, Word.BREAKER_OPEN, None),
        ({"condition": Condition.BACKING_OFF, "due_at": NOW + 5}, Word.BACKING_OFF, NOW + 5),
        ({"scheduled_start": NOW + 7}, Word.SCHEDULED_START, NOW + 7),
    ],
)
def test_a_closed_gate_says_why_and_when_to_look_again(
    changes: dict[str, object], word: Word, look_again: int | None
) -> None:
    verdict = judge_gates(a_job(JobStatus.PENDING, **changes), (), 0, NOW)
    assert not verdict.is_open
    assert verdict.reason is not None
    assert verdict.reason.word is word
    assert verdict.look_again_at == look_again


def test_gates_open_at_their_instant() -> None:
    job = a_job(JobStatus.PENDING, scheduled_start=NOW, breaker_until=NOW)
    assert judge_gates(job, (), 0, NOW).is_open


@pytest.mark.parametrize(
    ("state", "is_open", "is_hopeless"),
    [
        (after(JobStatus.COMPLETED), True, False),
        (after(JobStatus.RUNNING), False, False),
        (after(JobStatus.FAILED), False, True),
        (after(JobStatus.CANCELLED), False, True),
        (after(None), False, True),
        (after(JobStatus.FAILED, DependencyCondition.FINISHED), True, False),
        (after(None, DependencyCondition.FINISHED), True, False),
    ],
)
def test_a_job_waits_for_others_as_its_condition_says(
    state: DependencyState, is_open: bool, is_hopeless: bool
) -> None:
    verdict = judge_gates(a_job(JobStatus.PENDING), (state,), 0, NOW)
    assert (verdict.is_open, verdict.is_hopeless) == (is_open, is_hopeless)


def test_an_array_lets_no_more_in_than_its_limit() -> None:
    job = a_job(JobStatus.PENDING, array_limit=2)
    assert judge_gates(job, (), 1, NOW).is_open
    assert not judge_gates(job, (), 2, NOW).is_open


def test_every_reason_a_person_can_meet_has_a_fix_that_is_a_sentence() -> None:
    missing = {str(word) for word in Word} - set(FIXES) - {str(Word.COMPLETED)}
    assert missing == set()
    assert all(fix.endswith(".") for fix in FIXES.values())


@pytest.mark.parametrize("status", list(JobStatus))
@pytest.mark.parametrize("condition", list(Condition))
def test_every_standing_is_a_sentence(status: JobStatus, condition: Condition) -> None:
    assert describe_standing(status, condition).endswith(".")
