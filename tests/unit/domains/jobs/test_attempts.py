"""What the ends of a gang's replicas say of the attempt, judged purely."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.core.lifecycle.jobs import StopIntent
from gpuplane.domains.jobs.rules import Attempt, Replica
from gpuplane.domains.jobs.rules.attempts import Standing, judge_attempt
from tests.builders import NOW
from tests.unit.domains.jobs.builders import a_replica, a_running_job, an_attempt

GRACE_S = 5


def ended(rank: int, at: int, **how: Any) -> Replica:
    return a_replica(rank, phase="exited", ended_at=NOW + at, **how)


def failing_since(at: int) -> Attempt:
    """Return an attempt that was asked to stop at an instant because a replica had failed."""
    return an_attempt(
        state="stopping",
        stop_intent=StopIntent.FAIL,
        stop_reason="NonZeroExit",
        stop_message="Replica 2 ended with exit code 7.",
        grace_s=GRACE_S,
        stop_deadline=NOW + at + GRACE_S * 1000,
    )


def test_a_gang_ends_with_the_code_of_the_replica_that_failed_and_not_of_one_that_was_stopped() -> (
    None
):
    seen = [
        ended(0, 1500, exit_code=143),
        ended(1, 1200, signal=9),
        ended(2, 800, exit_code=7),
    ]
    verdict = judge_attempt(a_running_job(), failing_since(1000), seen)
    assert verdict.standing is Standing.OVER
    assert (verdict.exit_code, verdict.signal) == (7, None)


def test_of_several_that_failed_by_themselves_the_first_in_time_counts() -> None:
    seen = [ended(0, 900, exit_code=1), ended(1, 500, exit_code=3), ended(2, 1500, signal=15)]
    verdict = judge_attempt(a_running_job(), failing_since(1000), seen)
    assert verdict.exit_code == 3


def test_within_one_instant_an_end_by_signal_counts_last() -> None:
    seen = [ended(0, 1000, signal=15), ended(1, 1000, exit_code=4)]
    verdict = judge_attempt(a_running_job(), failing_since(1000), seen)
    assert (verdict.exit_code, verdict.signal) == (4, None)


def test_a_lost_replica_is_told_before_those_stopped_because_of_it() -> None:
    seen = [ended(0, 1500, exit_code=143), a_replica(1, phase="lost")]
    verdict = judge_attempt(a_running_job(), failing_since(1000), seen)
    assert verdict.exit_code is None


@pytest.mark.parametrize("first", [0, 1])
def test_a_gang_fails_for_the_replica_that_failed_first(first: int) -> None:
    seen = [
        ended(0, 10 + first, exit_code=1),
        ended(1, 11 - first, exit_code=2),
        a_replica(2),
    ]
    verdict = judge_attempt(a_running_job(), an_attempt(), seen)
    assert verdict.standing is Standing.FAILING
    assert (verdict.exit_code, verdict.message) == (
        1 + first, f"Replica {first} ended with exit code {1 + first}.",
    )  # fmt: skip
