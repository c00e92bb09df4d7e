"""Failures on a schedule: what the nodes show and what becomes of the work."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.backends.interface import BackendError, Phase
from gpuplane.backends.simulated.fleet import Failure, FailureKind
from gpuplane.core.workloads import JobType
from tests.clocks import NOON_MS, FakeClock
from tests.unit.backends.simulated.conftest import Open
from tests.unit.backends.simulated.fleets import a_fleet, a_plan, lasting, the_replica


async def test_a_node_that_goes_down_loses_its_replicas_and_comes_back_empty(
    open_backend: Open, clock: FakeClock
) -> None:
    fleet = a_fleet("kind: NodeDown, node: big-01, at: 60s, for: 5m")
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(10_000)), {})
    up = await backend.observe()
    await clock.advance(60)
    down = await backend.observe()
    assert (up.nodes[0].ready, down.nodes[0].ready) == (True, False)
    assert down.generation > up.generation
    lost = down.replicas[0]
    assert (lost.phase, lost.reason, lost.exit_code) == (Phase.LOST, "NodeLost", None)
    assert lost.ended_at == NOON_MS + 60_000
    await clock.advance(300)
    back = await backend.observe()
    assert back.nodes[0].ready
    assert back.generation > down.generation
    assert back.replicas[0] == lost


async def test_the_other_replicas_of_a_gang_run_on_until_they_are_stopped(
    open_backend: Open, clock: FakeClock
) -> None:
    fleet = a_fleet("kind: NodeDown, node: big-01, at: 60s")
    backend = open_backend(fleet)
    plan = a_plan(fleet, nodes=("big-01", "big-02"), behaviour=lasting(10_000))
    await backend.ensure_workload(plan, {})
    await clock.advance(60)
    assert (await the_replica(backend, 0)).phase is Phase.LOST
    assert (await the_replica(backend, 1)).phase is Phase.RUNNING


async def test_nothing_starts_on_a_node_that_is_down(open_backend: Open, clock: FakeClock) -> None:
    fleet = a_fleet("kind: NodeDown, node: big-01, at: 0s, for: 1m")
    backend = open_backend(fleet)
    with pytest.raises(BackendError, match="big-01 is down") as refused:
        await backend.ensure_workload(a_plan(fleet), {})
    assert refused.value.word == "NodeLost"
    await clock.advance(60)
    await backend.ensure_workload(a_plan(fleet), {})


async def test_a_failed_gpu_is_unhealthy_and_fails_the_attempt_that_holds_it(
    open_backend: Open, clock: FakeClock
) -> None:
    fleet = a_fleet("kind: GpuFailed, node: big-01, gpu: 3, at: 60s, for: 1h")
    backend = open_backend(fleet)
    plan = a_plan(fleet, "hit", nodes=("big-01", "big-02"), gpus=(2, 3), behaviour=lasting(9999))
    beside = a_plan(fleet, "beside", gpus=(4,), behaviour=lasting(9999))
    await backend.ensure_workload(plan, {})
    await backend.ensure_workload(beside, {})
    await clock.advance(60)
    seen = await backend.observe()
    assert [gpu.index for gpu in seen.nodes[0].gpus if not gpu.healthy] == [3]
    by_ref = {(each.ref, each.rank): each for each in seen.replicas}
    for rank in (0, 1):
        over = by_ref[plan.ref, rank]
        assert (over.phase, over.reason) == (Phase.EXITED, "GpuFailed")
        assert "GPU 3 of node big-01" in over.message
    assert by_ref[beside.ref, 0].phase is Phase.RUNNING
    with pytest.raises(BackendError) as refused:
        await backend.ensure_workload(a_plan(fleet, "late", gpus=(3,)), {})
    assert refused.value.word == "GpuFailed"


async def test_a_failed_gpu_ends_only_its_own_replica_of_a_service(
    open_backend: Open, clock: FakeClock
) -> None:
    fleet = a_fleet("kind: GpuFailed, node: big-01, gpu: 0, at: 60s")
    backend = open_backend(fleet)
    plan = a_plan(fleet, nodes=("big-01", "big-02"), job_type=JobType.SERVICE)
    await backend.ensure_workload(plan, {})
    await clock.advance(60)
    assert (await the_replica(backend, 0)).reason == "GpuFailed"
    assert (await the_replica(backend, 1)).phase is Phase.RUNNING


async def test_waiting_returns_when_a_node_goes_down(open_backend: Open, clock: FakeClock) -> None:
    backend = open_backend(a_fleet("kind: NodeDown, node: plain-01, at: 60s"))
    await backend.wait_changed(0)
    waiting = asyncio.ensure_future(backend.wait_changed(1000))
    await clock.advance(59)
    assert not waiting.done()
    await clock.advance(1)
    assert waiting.done()


async def test_a_schedule_goes_on_over_a_restart(open_backend: Open, clock: FakeClock) -> None:
    fleet = a_fleet("kind: NodeDown, node: plain-01, at: 60s, for: 10s, every: 100s")
    open_backend(fleet).close()
    await clock.advance(165)
    backend = open_backend(fleet)
    assert not (await backend.observe()).nodes[2].ready
    await clock.advance(5)
    assert (await backend.observe()).nodes[2].ready


@st.composite
def failures(draw: st.DrawFn) -> Failure:
    for_ms = draw(st.none() | st.integers(1, 50))
    every_ms = None if for_ms is None else draw(st.none() | st.integers(for_ms + 1, 120))
    return Failure(FailureKind.NODE_DOWN, "n", draw(st.integers(0, 100)), None, for_ms, every_ms)


@given(failures(), st.integers(0, 400))
def test_the_next_change_is_the_first_instant_at_which_it_differs(
    failure: Failure, after: int
) -> None:
    now = failure.is_active(after)
    changes = (at for at in range(after + 1, after + 300) if failure.is_active(at) != now)
    assert failure.find_next_change(after) == next(changes, None)


@given(failures(), st.integers(0, 400))
def test_the_next_start_is_the_first_instant_at_which_it_breaks(
    failure: Failure, after: int
) -> None:
    starts = (
        at
        for at in range(after + 1, after + 300)
        if failure.is_active(at) and not (at > 0 and failure.is_active(at - 1))
    )
    assert failure.find_next_start(after) == next(starts, None)
