"""Output of simulated replicas: made on demand, labelled, stable byte for byte."""

from __future__ import annotations

import asyncio

import pytest

from gpuplane.backends.interface import BackendError, LogChunk, Stream
from gpuplane.backends.simulated import Fleet, SimulatedBackend
from gpuplane.core.workloads import SimulatedBehaviour
from tests.clocks import FakeClock
from tests.unit.backends.simulated.conftest import Open
from tests.unit.backends.simulated.fleets import a_plan, lasting

OUT, ERR = Stream.STDOUT, Stream.STDERR


async def read(backend: SimulatedBackend, fleet: Fleet, stream: Stream = OUT) -> str:
    chunk = await backend.read_logs(a_plan(fleet).ref, 0, stream, 0, 1_000_000)
    return chunk.data.decode()


async def test_described_lines_appear_over_the_work_each_labelled_and_dated(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, behaviour=lasting(10, log=("loading", "training")))
    await backend.ensure_workload(plan, {})
    assert await read(backend, fleet) == ""
    await clock.advance(2)
    assert await read(backend, fleet) == "2026-03-01T12:00:02.000Z [simulated] loading\n"
    await clock.advance(5)
    assert (await read(backend, fleet)).splitlines()[1] == (
        "2026-03-01T12:00:07.000Z [simulated] training"
    )


async def test_without_described_lines_it_says_where_it_is_and_how_far(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(100)), {})
    await clock.advance(1000)
    lines = (await read(backend, fleet)).splitlines()
    assert "rank 0 of 1 on big-01 with 1 GPUs; nothing is executed" in lines[0]
    assert len(lines) == 11
    assert lines[-1].endswith("progress 100 %")
    assert await read(backend, fleet, ERR) == ""


async def test_a_failure_is_told_on_standard_error(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(1, exit_code=3)), {})
    await clock.advance(10)
    assert "[simulated] NonZeroExit: ended with exit code 3" in await read(backend, fleet, ERR)


async def test_what_was_read_stays_as_it_was(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, behaviour=lasting(100, log=tuple(f"line {n}" for n in range(50))))
    await backend.ensure_workload(plan, {})
    before = ""
    for _ in range(12):
        await clock.advance(7)
        now = await read(backend, fleet)
        assert now.startswith(before)
        before = now
    clock.step(-3_600_000)
    await backend.evict(plan.ref, 0, "Cancelled")
    backend.close()
    assert (await read(open_backend(fleet), fleet)).startswith(before)


async def test_any_run_of_bytes_can_be_read(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, behaviour=lasting(3, log=("größer", "✓ done")))
    await backend.ensure_workload(plan, {})
    await clock.advance(10)
    whole = (await backend.read_logs(plan.ref, 0, OUT, 0, 1000)).data
    pieces = b""
    while chunk := (await backend.read_logs(plan.ref, 0, OUT, len(pieces), 7)).data:
        assert len(chunk) <= 7
        pieces += chunk
    assert pieces == whole
    assert (await backend.read_logs(plan.ref, 0, OUT, 10_000, 7)).data == b""


async def test_questions_about_what_is_not_there_are_refused(
    open_backend: Open, fleet: Fleet
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet)
    with pytest.raises(BackendError, match="nothing is kept"):
        await backend.read_logs(plan.ref, 0, OUT, 0, 10)
    await backend.ensure_workload(plan, {})
    with pytest.raises(BackendError, match="no rank 7"):
        await backend.read_logs(plan.ref, 7, OUT, 0, 10)
    with pytest.raises(BackendError, match="negative"):
        await backend.read_logs(plan.ref, 0, OUT, -1, 10)


async def follow(backend: SimulatedBackend, plan_ref: object, found: list[LogChunk]) -> None:
    async for chunk in backend.follow_logs(plan_ref, (0, 1), 0, 0):  # type: ignore[arg-type]  # an AttemptRef
        found.append(chunk)


async def test_following_yields_each_line_when_it_is_written_and_ends_with_the_attempt(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    behaviour = SimulatedBehaviour(duration_s=10, exit_code=1, log=("first", "second"))
    plan = a_plan(fleet, nodes=("big-01", "big-02"), behaviour=behaviour)
    await backend.ensure_workload(plan, {})
    found: list[LogChunk] = []
    following = asyncio.ensure_future(follow(backend, plan.ref, found))
    await clock.advance(2)
    assert [(each.rank, each.stream) for each in found] == [(0, OUT), (1, OUT)]
    await clock.advance(5)
    assert len(found) == 4
    await clock.advance(5)
    await asyncio.wait_for(following, 5)
    assert [(each.rank, each.stream) for each in found[4:]] == [(0, ERR), (1, ERR)]
    for rank in (0, 1):
        whole = (await backend.read_logs(plan.ref, rank, OUT, 0, 10_000)).data
        assert b"".join(c.data for c in found if (c.rank, c.stream) == (rank, OUT)) == whole


async def test_following_is_woken_by_an_evict(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, nodes=("big-01", "big-02"), behaviour=lasting(1e6))
    await backend.ensure_workload(plan, {})
    found: list[LogChunk] = []
    following = asyncio.ensure_future(follow(backend, plan.ref, found))
    await clock.advance(5)
    await backend.evict(plan.ref, 30, "Cancelled")
    await clock.advance(1)
    await asyncio.wait_for(following, 5)
    assert b"Cancelled: stopped by SIGTERM" in found[-1].data


async def test_streams_are_merged_in_the_order_of_their_times(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    behaviour = SimulatedBehaviour(duration_s=10, exit_code=1, log=("a", "b"))
    plan = a_plan(fleet, behaviour=behaviour)
    await backend.ensure_workload(plan, {})
    await clock.advance(100)
    chunks = [each async for each in backend.follow_logs(plan.ref, (0,), 5, 0)]
    assert [(each.stream, each.offset) for each in chunks] == [(OUT, 5), (ERR, 0)]
    assert [each.at for each in chunks] == sorted(each.at or 0 for each in chunks)
