"""The record of an attempt: who may start, who may not, and what is never changed again."""

from __future__ import annotations

import uuid

import pytest

from gpuplane.backends.interface import AttemptRef, BackendError, StaleEpoch, Tombstoned
from gpuplane.backends.kubernetes.records import (
    ACCEPTED,
    FORGOTTEN,
    NEVER,
    STARTED,
    Outcome,
    Record,
    decide_accept,
    decide_evict,
    decide_forget,
    decide_settle,
    decide_start,
    encode_record,
    read_record,
)
from gpuplane.core.ids import AttemptId
from gpuplane.core.reasons import Word

ID = AttemptId(uuid.UUID("01890000-0000-7000-8000-00000000abcd"))
REF = AttemptRef(ID, 3)
OLDER, NEWER = AttemptRef(ID, 2), AttemptRef(ID, 4)
DONE = Outcome("exited", str(Word.COMPLETED), 50, exit_code=0)
FAILED = Outcome("exited", str(Word.NON_ZERO_EXIT), 60, exit_code=1)


def accepted(ref: AttemptRef = REF, ranks: tuple[int, ...] = (0, 1)) -> Record:
    """Return the record of an attempt that may be made."""
    return decide_accept(None, ref, 10, namespace="t", kind="Job", name="j", ranks=ranks)


def started() -> Record:
    """Return the record of an attempt that was let go."""
    return decide_start(accepted(), REF, 20)


def ended() -> Record:
    """Return the record of an attempt that is over."""
    found = decide_settle(started(), {0: DONE, 1: FAILED})
    assert found is not None
    return found


def test_an_attempt_is_accepted_then_started() -> None:
    assert (accepted().fate, started().fate) == (ACCEPTED, STARTED)


def test_to_accept_again_changes_nothing() -> None:
    again = decide_accept(
        started(), REF, 99, namespace="other", kind="JobSet", name="k", ranks=(0,)
    )
    assert again == started()


def test_an_eviction_before_the_start_forbids_it_for_ever() -> None:
    never = decide_evict(accepted(), REF, "Cancelled", 15)
    assert (never.fate, never.is_over) == (NEVER, True)
    with pytest.raises(Tombstoned):
        decide_start(never, REF, 20)
    with pytest.raises(Tombstoned):
        decide_accept(never, NEWER, 30, namespace="t", kind="Job", name="j", ranks=(0,))


def test_an_eviction_of_an_unknown_attempt_forbids_it() -> None:
    never = decide_evict(None, REF, "Cancelled", 15)
    assert (never.fate, never.evict_reason, never.ranks) == (NEVER, "Cancelled", ())


def test_the_first_reason_of_an_eviction_stays() -> None:
    once = decide_evict(started(), REF, "Preempted", 30)
    assert once.fate == STARTED
    assert decide_evict(once, REF, "Cancelled", 40) == once


def test_an_attempt_that_is_over_is_not_evicted_any_more() -> None:
    assert decide_evict(ended(), REF, "Cancelled", 70) == ended()


def test_an_older_epoch_is_refused_by_every_verb() -> None:
    with pytest.raises(StaleEpoch):
        decide_accept(started(), OLDER, 1, namespace="t", kind="Job", name="j", ranks=(0,))
    with pytest.raises(StaleEpoch):
        decide_start(started(), OLDER, 1)
    with pytest.raises(StaleEpoch):
        decide_evict(started(), OLDER, "Cancelled", 1)
    with pytest.raises(StaleEpoch):
        decide_forget(ended(), OLDER, 1)


def test_a_newer_epoch_takes_the_attempt_over() -> None:
    found = decide_accept(started(), NEWER, 1, namespace="t", kind="Job", name="j", ranks=(0,))
    assert (found.epoch, found.fate) == (4, STARTED)


def test_an_end_that_is_recorded_is_never_changed() -> None:
    one = decide_settle(started(), {0: DONE})
    assert one is not None
    assert not one.is_over
    assert decide_settle(one, {0: FAILED}) == one


def test_an_end_of_a_rank_that_is_none_is_left_out() -> None:
    assert decide_settle(started(), {7: DONE}) == started()


def test_nothing_ends_that_was_not_let_go() -> None:
    assert decide_settle(accepted(), {0: DONE}) == accepted()


def test_an_attempt_that_runs_is_not_forgotten() -> None:
    with pytest.raises(BackendError):
        decide_forget(started(), REF, 70)


def test_a_forgotten_attempt_keeps_what_forbids_it_and_nothing_else() -> None:
    gone = decide_forget(ended(), REF, 70)
    assert gone is not None
    assert (gone.fate, gone.outcomes, gone.at) == (FORGOTTEN, {}, 70)
    with pytest.raises(Tombstoned):
        decide_accept(gone, NEWER, 80, namespace="t", kind="Job", name="j", ranks=(0,))
    assert decide_forget(gone, REF, 90) == gone


def test_to_forget_what_was_never_there_leaves_nothing() -> None:
    assert decide_forget(None, REF, 1) is None


def test_a_record_is_read_back_as_it_was_written() -> None:
    obj = encode_record(ended(), "cluster", "gpuplane-system")
    assert read_record(obj["data"]) == ended()
    assert obj["metadata"]["name"] == f"gpuplane-{ID}"
    assert obj["metadata"]["labels"]["gpuplane.io/cluster-id"] == "cluster"


@pytest.mark.parametrize("data", [None, {}, {"record": "{"}, {"record": '{"attempt_id": "x"}'}])
def test_a_record_that_cannot_be_read_is_none(data: dict[str, str] | None) -> None:
    assert read_record(data) is None
