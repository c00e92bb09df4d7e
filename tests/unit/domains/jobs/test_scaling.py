"""Which replicas of a service are meant."""

from __future__ import annotations

from gpuplane.domains.jobs.rules.scaling import RANKS_TOLD, count_most, list_ranks
from tests.unit.domains.jobs.builders import a_replica, an_attempt


def test_the_output_of_a_service_is_that_of_the_replicas_there_are() -> None:
    attempt = an_attempt(replicas=(a_replica(7), a_replica(3)), next_rank=8)
    assert list_ranks(attempt) == (3, 7)


def test_what_replicas_wrote_is_told_when_all_were_taken_away() -> None:
    assert list_ranks(an_attempt(replicas=(), next_rank=2)) == (0, 1)
    many = list_ranks(an_attempt(replicas=(), next_rank=1_000))
    assert (len(many), many[-1]) == (RANKS_TOLD, 999)


def test_what_was_held_at_most_is_what_was_held_at_one_time() -> None:
    assert count_most([]) == 0
    assert count_most([(1, 5), (2, 5), (6, None)]) == 2
    assert count_most([(1, 5), (5, 9)]) == 1, "what ends at an instant leaves room for what begins"
    assert count_most([(1, None), (2, None), (3, 4)]) == 3
