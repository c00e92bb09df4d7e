"""Every course an attempt can take, as laws over drawn records."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.backends.interface import Phase
from gpuplane.backends.simulated.fleet import Failure, FailureKind
from gpuplane.backends.simulated.timeline import (
    AttemptRecord,
    Moment,
    ReplicaRecord,
    compute_moment,
    find_next_change,
    plan_endings,
)

END_MS = 60_000
OVER = {Phase.EXITED, Phase.LOST}
GPU_INDEX = {"g0": 0, "g1": 1}


@st.composite
def records(draw: st.DrawFn) -> AttemptRecord:
    accepted_at = draw(st.integers(0, 1000))
    stop_at = draw(st.none() | st.integers(accepted_at, 40_000))
    return AttemptRecord(
        attempt_id="a",
        epoch=1,
        job_name="job",
        replicas=(ReplicaRecord(0, "n0", ("g0",)), ReplicaRecord(1, "n1", ("g1",))),
        accepted_at=accepted_at,
        running_at=accepted_at + draw(st.integers(0, 5000)),
        work_ms=draw(st.none() | st.integers(0, 40_000)),
        done_ms=draw(st.integers(0, 5000)),
        exit_code=draw(st.sampled_from([0, 1])),
        ends_together=draw(st.booleans()),
        restarts=draw(st.booleans()),
        stop_delay_ms=draw(st.integers(0, 3000)),
        max_duration_ms=draw(st.none() | st.integers(1, 30_000)),
        grace_ms=draw(st.integers(0, 2000)),
        checkpoint_every_ms=draw(st.sampled_from([0, 700, 9000])),
        stop_at=stop_at,
        kill_at=None if stop_at is None else stop_at + draw(st.integers(0, 2000)),
        stop_reason="" if stop_at is None else "Cancelled",
    )


@st.composite
def schedules(draw: st.DrawFn) -> dict[str, Sequence[Failure]]:
    at = draw(st.integers(0, 40_000))
    down = Failure(FailureKind.NODE_DOWN, "n0", at, None, 500, 20_000)
    failed = Failure(FailureKind.GPU_FAILED, "n1", draw(st.integers(0, 40_000)), 1)
    return {
        "n0": (down,) if draw(st.booleans()) else (),
        "n1": (failed,) if draw(st.booleans()) else (),
    }


def news(moment: Moment) -> tuple[object, ...]:
    return (moment.phase, moment.restart_count, moment.checkpoint_at, moment.progress_step)


@given(records(), schedules())
def test_between_two_events_nothing_changes(
    record: AttemptRecord, failures: dict[str, Sequence[Failure]]
) -> None:
    endings = plan_endings(record, failures, GPU_INDEX)
    at, steps = record.accepted_at, 0
    while (next_at := find_next_change(record, endings, at)) is not None and steps < 60:
        assert next_at > at
        for ending in endings:
            before = news(compute_moment(record, ending, at))
            for between in {at + 1, (at + next_at) // 2, next_at - 1}:
                if at < between < next_at:
                    assert news(compute_moment(record, ending, between)) == before
        at, steps = next_at, steps + 1
    if next_at is None:
        for ending in endings:
            now = compute_moment(record, ending, at)
            assert news(compute_moment(record, ending, at + END_MS)) == news(now)


@given(records(), schedules(), st.lists(st.integers(0, END_MS), max_size=8))
def test_what_is_over_stays_as_it_was(
    record: AttemptRecord, failures: dict[str, Sequence[Failure]], looks: list[int]
) -> None:
    for ending in plan_endings(record, failures, GPU_INDEX):
        seen = [compute_moment(record, ending, record.accepted_at + at) for at in sorted(looks)]
        over = [moment for moment in seen if moment.phase in OVER]
        assert seen[len(seen) - len(over) :] == over
        assert all(moment == over[0] for moment in over)


@given(records(), schedules())
def test_progress_never_goes_back_and_a_success_has_done_all(
    record: AttemptRecord, failures: dict[str, Sequence[Failure]]
) -> None:
    for ending in plan_endings(record, failures, GPU_INDEX):
        seen = [compute_moment(record, ending, at) for at in range(0, END_MS, 1500)]
        known = [m.progress_ratio for m in seen if m.progress_ratio is not None]
        assert known == sorted(known)
        assert all(0 <= each <= 1 for each in known)
        if ending is not None and ending.reason == "Completed":
            assert compute_moment(record, ending, ending.at).progress_ratio == 1.0


@given(records(), schedules())
def test_an_ending_says_why_and_fits_its_phase(
    record: AttemptRecord, failures: dict[str, Sequence[Failure]]
) -> None:
    for ending in plan_endings(record, failures, GPU_INDEX):
        if ending is None:
            assert record.stop_at is None
            assert record.max_duration_ms is None
            continue
        assert ending.at >= record.accepted_at
        assert ending.reason
        assert (ending.exit_code is None) or ending.phase is Phase.EXITED
        assert ending.signal in (None, 9, 15)
        if record.stop_at is not None and record.kill_at is not None:
            assert ending.at <= record.kill_at
