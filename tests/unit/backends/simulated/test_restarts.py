"""What a restart, a kill and a stepped clock leave: attempts where they would have been."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpuplane.backends.interface import (
    AttemptRef,
    BackendError,
    Phase,
    ReplicaObservation,
    Tombstoned,
)
from gpuplane.backends.simulated import Fleet, SimulatedBackend
from gpuplane.kit.clock import SystemClock
from tests.clocks import NOON_MS, FakeClock
from tests.unit.backends.simulated.conftest import Open
from tests.unit.backends.simulated.fleets import a_backend, a_fleet, a_plan, lasting, the_replica

HOUR_MS = 3_600_000


async def test_an_attempt_goes_on_while_the_control_plane_is_away(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(100)), {})
    await clock.advance(10)
    before = await the_replica(backend)
    backend.close()
    again = open_backend(fleet, seed=99)
    assert await the_replica(again) == before
    await clock.advance(92)
    assert (await the_replica(again)).ended_at == NOON_MS + 102_000


async def test_an_attempt_that_ended_in_between_ended_at_its_time(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(10)), {})
    backend.close()
    await clock.advance(1000)
    over = await the_replica(open_backend(fleet))
    assert (over.phase, over.ended_at, over.exit_code) == (Phase.EXITED, NOON_MS + 12_000, 0)


async def test_a_restart_runs_nothing_twice(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    plan = a_plan(fleet, behaviour=lasting(10))
    backend = open_backend(fleet)
    await backend.ensure_workload(plan, {})
    backend.close()
    await clock.advance(1000)
    again = open_backend(fleet)
    await again.ensure_workload(plan, {})
    assert (await the_replica(again)).ended_at == NOON_MS + 12_000
    await again.forget(plan.ref)
    again.close()
    with pytest.raises(Tombstoned):
        await open_backend(fleet).ensure_workload(plan, {})


async def test_a_grace_period_goes_on_over_a_restart(open_backend: Open, clock: FakeClock) -> None:
    fleet = a_fleet(stop_delay="1h")
    plan = a_plan(fleet, behaviour=lasting(100_000))
    backend = open_backend(fleet)
    await backend.ensure_workload(plan, {})
    await clock.advance(10)
    await backend.evict(plan.ref, 30, "Cancelled")
    backend.close()
    await clock.advance(20)
    again = open_backend(fleet)
    assert (await the_replica(again)).phase is Phase.STOPPING
    await clock.advance(10)
    over = await the_replica(again)
    assert (over.phase, over.signal, over.reason) == (Phase.EXITED, 9, "Cancelled")


async def test_devices_stay_held_over_a_restart(open_backend: Open, fleet: Fleet) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, "a"), {})
    backend.close()
    with pytest.raises(BackendError, match="still held"):
        await open_backend(fleet).ensure_workload(a_plan(fleet, "b"), {})


async def test_attempts_on_a_node_that_left_the_fleet_are_lost(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, nodes=("big-01", "big-02"), behaviour=lasting(1000))
    await backend.ensure_workload(plan, {})
    await clock.advance(10)
    backend.close()
    smaller = replace(fleet, nodes=fleet.nodes[1:])
    again = open_backend(smaller)
    lost = (await again.observe()).replicas
    assert {each.phase for each in lost} == {Phase.LOST}
    assert {each.ended_at for each in lost} == {NOON_MS + 10_000}
    again.close()
    await clock.advance(10)
    assert (await open_backend(smaller).observe()).replicas == lost


def test_a_state_file_serves_one_fleet_alone(open_backend: Open, fleet: Fleet) -> None:
    open_backend(fleet).close()
    with pytest.raises(BackendError, match="state file of its own"):
        open_backend(replace(fleet, name="other"))


def test_a_state_file_that_is_none_is_refused(tmp_path: Path, fleet: Fleet) -> None:
    (tmp_path / "fleet.db").write_text("no database at all, but long enough to be looked at\n" * 50)
    with pytest.raises(BackendError, match="cannot be used"):
        a_backend(fleet, FakeClock(), tmp_path)


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
async def test_a_step_of_the_wall_clock_ends_no_job_and_delays_none(
    open_backend: Open, fleet: Fleet, clock: FakeClock, step_ms: int
) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(100)), {})
    await clock.advance(52)
    clock.step(step_ms)
    seen = await the_replica(backend)
    assert (seen.phase, seen.progress_ratio) == (Phase.RUNNING, 0.5)
    assert seen.started_at == NOON_MS + 2000
    await clock.advance(50)
    over = await the_replica(backend)
    assert (over.phase, over.ended_at) == (Phase.EXITED, clock.now_ms())
    backend.close()
    assert await the_replica(open_backend(fleet)) == over


async def test_a_clock_set_back_while_it_was_away_undoes_nothing(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    first = a_plan(fleet, "a", gpus=(0,), behaviour=lasting(10))
    second = a_plan(fleet, "b", gpus=(1,), behaviour=lasting(10))

    async def seen(backend: SimulatedBackend) -> dict[AttemptRef, ReplicaObservation]:
        return {each.ref: each for each in (await backend.observe()).replicas}

    await backend.ensure_workload(first, {})
    await clock.advance(1000)
    await backend.ensure_workload(second, {})
    over = (await seen(backend))[first.ref]
    backend.close()
    clock.step(-HOUR_MS)
    again = open_backend(fleet)
    assert (await seen(again))[first.ref] == over
    await clock.advance(12)
    assert (await seen(again))[second.ref].ended_at == clock.now_ms()


async def test_an_end_that_was_seen_stays_seen_when_the_clock_is_set_back(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(10)), {})
    await clock.advance(1000)
    over = await the_replica(backend)
    assert over.phase is Phase.EXITED
    backend.close()
    clock.step(-HOUR_MS)
    assert await the_replica(open_backend(fleet)) == over


async def test_a_record_that_cannot_be_read_is_set_aside_with_an_alarm(
    open_backend: Open, fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = open_backend(fleet)
    poisoned, sound = a_plan(fleet, "a", gpus=(0,)), a_plan(fleet, "b", gpus=(1,))
    for plan in (poisoned, sound):
        await backend.ensure_workload(plan, {})
    backend.close()
    with closing(sqlite3.connect(tmp_path / "fleet.db")) as db, db:
        values = (b"\xff{", str(poisoned.ref.attempt_id))
        db.execute("UPDATE attempts SET record = ? WHERE attempt_id = ?", values)
    again = open_backend(fleet)
    assert [each.ref for each in (await again.observe()).replicas] == [sound.ref]
    assert str(poisoned.ref.attempt_id) in caplog.text
    with pytest.raises(Tombstoned):
        await again.ensure_workload(poisoned, {})


CHILD = """
import asyncio, sys
from pathlib import Path
from gpuplane.kit import failpoints
from gpuplane.kit.clock import SystemClock
from tests.unit.backends.simulated.fleets import a_fleet, a_plan, lasting
from gpuplane.backends.simulated import SimulatedBackend

async def main():
    failpoints.arm_from_environment()
    fleet = a_fleet()
    state = Path(sys.argv[1])
    backend = SimulatedBackend(fleet, SystemClock(), seed=1, state_path=state, speed=1e5)
    plans = [a_plan(fleet, f"{n}", gpus=(n,), behaviour=lasting(1e6)) for n in range(4)]
    for plan in plans:
        await backend.ensure_workload(plan, {})
    for plan in plans:
        await backend.evict(plan.ref, 0, "Cancelled")
    while any(each.phase != "exited" for each in (await backend.observe()).replicas):
        await backend.wait_changed(10)
    for plan in plans:
        await backend.forget(plan.ref)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "point",
    [
        "simulated.store_attempt@2",
        "simulated.stored_attempt@1",
        "simulated.stored_attempt@3",
        "simulated.store_attempt@6",
        "simulated.stored_attempt@7",
        "simulated.store_tombstone@2",
        "simulated.delete_attempt@3",
    ],
)
async def test_killed_at_any_write_the_rest_can_be_done_and_nothing_runs_twice(
    tmp_path: Path, point: str
) -> None:
    state = tmp_path / "fleet.db"
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CHILD,
        str(state),
        env={**os.environ, "GPUPLANE_FAILPOINTS": point, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert await asyncio.wait_for(child.wait(), 60) == -signal.SIGKILL
    fleet = a_fleet()
    backend = SimulatedBackend(fleet, SystemClock(), seed=2, state_path=state, speed=1e5)
    kept = {str(each.ref.attempt_id): each for each in (await backend.observe()).replicas}
    plans = [a_plan(fleet, f"{n}", gpus=(n,), behaviour=lasting(1e6)) for n in range(4)]
    forgotten = 0
    for plan in plans:
        try:
            await backend.ensure_workload(plan, {})
        except Tombstoned:
            forgotten += 1
    now = {str(each.ref.attempt_id): each for each in (await backend.observe()).replicas}
    assert {key: now[key].started_at for key in kept if kept[key].started_at} == {
        key: each.started_at for key, each in kept.items() if each.started_at
    }
    assert len(now) + forgotten == 4
    for plan in plans:
        await backend.evict(plan.ref, 0, "Cancelled")
    while any(each.phase is not Phase.EXITED for each in (await backend.observe()).replicas):
        await backend.wait_changed(10)
    for plan in plans:
        await backend.forget(plan.ref)
    assert (await backend.observe()).replicas == ()
    backend.close()
