"""The life of simulated attempts: phases, ends, fencing, devices, checkpoints, waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuplane.backends.capabilities import Checkpoints, FetchesArtifacts, ObservesChanges, ReadsLogs
from gpuplane.backends.interface import Backend, BackendError, Phase, StaleEpoch, Tombstoned
from gpuplane.backends.simulated import Fleet
from gpuplane.core.workloads import HealthCheck, JobType, RestartPolicy
from tests.clocks import NOON_MS, FakeClock
from tests.unit.backends.simulated.conftest import Open
from tests.unit.backends.simulated.fleets import (
    SMALL,
    a_backend,
    a_cut_fleet,
    a_fleet,
    a_plan,
    lasting,
    the_replica,
)


def test_it_keeps_the_contracts_of_its_capabilities(open_backend: Open, fleet: Fleet) -> None:
    backend = open_backend(fleet)
    for capability in (Backend, ReadsLogs, ObservesChanges, Checkpoints, FetchesArtifacts):
        assert isinstance(backend, capability)


async def test_everything_that_is_told_says_simulated(open_backend: Open, fleet: Fleet) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet), {})
    probe, seen = await backend.probe(), await backend.observe()
    assert probe.simulated
    assert "simulated" in probe.notes[0]
    assert {node.labels["gpuplane.io/simulated"] for node in seen.nodes} == {"true"}
    assert all("[simulated]" in node.message for node in seen.nodes)
    assert "[simulated]" in seen.replicas[0].message


async def test_a_job_starts_after_the_delay_and_ends_as_described(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(10, startup_s=3)), {})
    assert (await the_replica(backend)).phase is Phase.STARTING
    await clock.advance(5)
    running = await the_replica(backend)
    assert (running.phase, running.started_at) == (Phase.RUNNING, NOON_MS + 5000)
    assert running.progress_ratio == 0.0
    await clock.advance(2.5)
    assert (await the_replica(backend)).progress_ratio == 0.25
    await clock.advance(7.5)
    over = await the_replica(backend)
    assert (over.phase, over.exit_code, over.reason) == (Phase.EXITED, 0, "Completed")
    assert (over.ended_at, over.progress_ratio) == (NOON_MS + 15_000, 1.0)


async def test_a_described_exit_code_fails_the_job(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(1, exit_code=3)), {})
    await clock.advance(3)
    over = await the_replica(backend)
    assert (over.phase, over.exit_code, over.reason) == (Phase.EXITED, 3, "NonZeroExit")


async def test_starting_twice_starts_once(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, behaviour=lasting(10))
    await backend.ensure_workload(plan, {})
    await clock.advance(5)
    await backend.ensure_workload(plan, {})
    assert (await the_replica(backend)).started_at == NOON_MS + 2000


async def test_sigterm_ends_a_job_within_the_grace(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, behaviour=lasting(100))
    await backend.ensure_workload(plan, {})
    await clock.advance(10)
    await backend.evict(plan.ref, 30, "Preempted")
    assert (await the_replica(backend)).phase is Phase.STOPPING
    await clock.advance(1)
    over = await the_replica(backend)
    assert (over.phase, over.signal, over.exit_code) == (Phase.EXITED, 15, 143)
    assert (over.reason, over.ended_at) == ("Preempted", NOON_MS + 11_000)


async def test_a_job_that_outlives_the_grace_is_killed(
    open_backend: Open, clock: FakeClock
) -> None:
    fleet = a_fleet(stop_delay="1m")
    backend = open_backend(fleet)
    plan = a_plan(fleet, behaviour=lasting(1000))
    await backend.ensure_workload(plan, {})
    await clock.advance(10)
    await backend.evict(plan.ref, 5, "NodeDrained")
    await clock.advance(4.9)
    assert (await the_replica(backend)).phase is Phase.STOPPING
    await clock.advance(0.1)
    over = await the_replica(backend)
    assert (over.phase, over.signal, over.exit_code) == (Phase.EXITED, 9, 137)
    assert over.reason == "NodeDrained"


async def test_a_second_evict_can_only_shorten_the_grace(
    open_backend: Open, clock: FakeClock
) -> None:
    fleet = a_fleet(stop_delay="1h")
    backend = open_backend(fleet)
    plan = a_plan(fleet, behaviour=lasting(10_000))
    await backend.ensure_workload(plan, {})
    await clock.advance(10)
    await backend.evict(plan.ref, 60, "Preempted")
    await clock.advance(10)
    await backend.evict(plan.ref, 300, "Cancelled")
    await backend.evict(plan.ref, 5, "Cancelled")
    await clock.advance(5)
    over = await the_replica(backend)
    assert (over.phase, over.ended_at) == (Phase.EXITED, NOON_MS + 25_000)
    assert over.reason == "Preempted"


async def test_an_evict_that_is_repeated_is_no_news(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, behaviour=lasting(100))
    await backend.ensure_workload(plan, {})
    await clock.advance(10)
    await backend.evict(plan.ref, 30, "Preempted")
    cursor = (await backend.observe_replicas_since("")).cursor
    await clock.advance(0.5)
    await backend.evict(plan.ref, 30, "Preempted")
    assert (await backend.observe_replicas_since(cursor)).replicas == ()


async def test_a_job_stopped_before_it_started_has_no_exit_code(
    open_backend: Open, fleet: Fleet
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet)
    await backend.ensure_workload(plan, {})
    await backend.evict(plan.ref, 30, "Cancelled")
    over = await the_replica(backend)
    assert (over.phase, over.exit_code, over.signal) == (Phase.EXITED, None, None)
    assert (over.started_at, over.ended_at) == (None, NOON_MS)


async def test_an_attempt_evicted_before_its_start_may_never_start(
    open_backend: Open, fleet: Fleet
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet)
    await backend.evict(plan.ref, 30, "Cancelled")
    over = await the_replica(backend)
    assert (over.phase, over.reason) == (Phase.EXITED, "Cancelled")
    with pytest.raises(Tombstoned):
        await backend.ensure_workload(plan, {})
    await backend.forget(plan.ref)
    assert (await backend.observe()).replicas == ()
    with pytest.raises(Tombstoned):
        await backend.ensure_workload(plan, {})


async def test_a_forgotten_attempt_leaves_nothing_and_never_comes_back(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, behaviour=lasting(1))
    await backend.ensure_workload(plan, {})
    with pytest.raises(BackendError, match="not over"):
        await backend.forget(plan.ref)
    await clock.advance(10)
    await backend.forget(plan.ref)
    await backend.forget(plan.ref)
    assert (await backend.observe()).replicas == ()
    with pytest.raises(Tombstoned):
        await backend.ensure_workload(plan, {})


async def test_a_verb_with_an_older_epoch_is_refused(open_backend: Open, fleet: Fleet) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, epoch=2), {})
    old = a_plan(fleet, epoch=1)
    with pytest.raises(StaleEpoch):
        await backend.ensure_workload(old, {})
    with pytest.raises(StaleEpoch):
        await backend.evict(old.ref, 0, "Cancelled")
    with pytest.raises(StaleEpoch):
        await backend.forget(old.ref)
    assert (await the_replica(backend)).phase is Phase.STARTING


async def test_a_newer_epoch_takes_the_attempt_over_without_a_second_run(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, epoch=1), {})
    await clock.advance(5)
    await backend.ensure_workload(a_plan(fleet, epoch=2), {})
    seen = await the_replica(backend)
    assert (seen.ref.epoch, seen.started_at) == (2, NOON_MS + 2000)


async def test_a_device_is_never_held_twice(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    first = a_plan(fleet, "first", gpus=(0, 1), behaviour=lasting(10))
    await backend.ensure_workload(first, {})
    with pytest.raises(BackendError, match="still held"):
        await backend.ensure_workload(a_plan(fleet, "second", gpus=(1, 2)), {})
    await clock.advance(12)
    await backend.ensure_workload(a_plan(fleet, "second", gpus=(1, 2)), {})


async def test_shares_of_a_device_add_up_to_a_whole(open_backend: Open, fleet: Fleet) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, "a", gpu_milli=400), {})
    await backend.ensure_workload(a_plan(fleet, "b", gpu_milli=600), {})
    with pytest.raises(BackendError, match="still held"):
        await backend.ensure_workload(a_plan(fleet, "c", gpu_milli=1), {})


async def test_two_mig_devices_of_one_gpu_are_held_apart(open_backend: Open) -> None:
    fleet = a_cut_fleet("3g.40gb@0", "3g.40gb@4")
    gpu_id = fleet.nodes[0].gpus[0].gpu_id
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, "a", mig_device=f"{gpu_id}/3g.40gb@0"), {})
    await backend.ensure_workload(a_plan(fleet, "b", mig_device=f"{gpu_id}/3g.40gb@4"), {})
    for name, mig_device in (("c", f"{gpu_id}/3g.40gb@4"), ("d", None)):
        with pytest.raises(BackendError, match="still held"):
            await backend.ensure_workload(a_plan(fleet, name, mig_device=mig_device), {})


async def test_a_place_outside_the_fleet_is_refused(open_backend: Open, fleet: Fleet) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet)
    stray = a_plan(a_fleet(text=SMALL.replace("count: 2", "count: 3")), nodes=("big-03",))
    with pytest.raises(BackendError, match="no node big-03"):
        await backend.ensure_workload(stray, {})
    await backend.ensure_workload(plan, {})


async def test_the_longest_duration_stops_a_job(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, behaviour=lasting(1000), max_duration_s=60)
    await backend.ensure_workload(plan, {})
    await clock.advance(62)
    assert (await the_replica(backend)).phase is Phase.STOPPING
    await clock.advance(1)
    over = await the_replica(backend)
    assert (over.phase, over.reason) == (Phase.EXITED, "MaxDurationExceeded")


async def test_a_service_runs_until_it_is_stopped_and_tells_its_health(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, job_type=JobType.SERVICE, health=HealthCheck(), port=8080)
    await backend.ensure_workload(plan, {})
    starting = await the_replica(backend)
    assert (starting.ready, starting.port) == (False, None)
    await clock.advance(1_000_000)
    running = await the_replica(backend)
    assert (running.phase, running.ready, running.port) == (Phase.RUNNING, True, 8080)
    assert running.progress_ratio is None


async def test_a_service_that_fails_is_restarted_within_the_attempt(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(
        fleet,
        job_type=JobType.SERVICE,
        behaviour=lasting(10, exit_code=1),
        restart=RestartPolicy.ON_FAILURE,
    )
    await backend.ensure_workload(plan, {})
    await clock.advance(12)
    between = await the_replica(backend)
    assert (between.phase, between.restart_count) == (Phase.STARTING, 1)
    await clock.advance(1)
    again = await the_replica(backend)
    assert (again.phase, again.restart_count) == (Phase.RUNNING, 1)


async def test_checkpoints_come_by_interval_and_on_request(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    behaviour = lasting(100, checkpoint_every_s=30)
    plan = a_plan(fleet, behaviour=behaviour, checkpoint_path="/checkpoints")
    await backend.ensure_workload(plan, {})
    await clock.advance(40)
    seen = await the_replica(backend)
    assert seen.checkpoint == "/checkpoints/simulated-30000ms"
    assert seen.checkpoint_at == NOON_MS + 32_000
    await backend.request_checkpoint(plan.ref)
    assert (await the_replica(backend)).checkpoint == "/checkpoints/simulated-38000ms"


async def test_a_resumed_job_has_only_the_rest_to_do(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    plan = a_plan(fleet, behaviour=lasting(100), resume_from="/checkpoints/simulated-75000ms")
    await backend.ensure_workload(plan, {})
    await clock.advance(2)
    assert (await the_replica(backend)).progress_ratio == 0.75
    await clock.advance(25)
    assert (await the_replica(backend)).phase is Phase.EXITED


async def test_outputs_and_artifacts_are_there_when_it_succeeded(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    behaviour = lasting(1, outputs={"accuracy": 0.9})
    names = ("model/weights.bin", "../escape", "logs/*.txt", "/etc/passwd")
    plan = a_plan(fleet, behaviour=behaviour, artifacts=names)
    await backend.ensure_workload(plan, {})
    assert await backend.list_artifacts(plan.ref) == ()
    assert (await the_replica(backend)).outputs is None
    await clock.advance(3)
    assert (await the_replica(backend)).outputs == {"accuracy": 0.9}
    ((name, size),) = await backend.list_artifacts(plan.ref)
    content = await backend.read_artifact(plan.ref, name, 0, 1000)
    assert (name, size) == ("model/weights.bin", len(content))
    assert content.startswith(b"[simulated]")
    with pytest.raises(BackendError):
        await backend.read_artifact(plan.ref, "../escape", 0, 10)


async def test_waiting_returns_at_the_next_change_and_not_before(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(10)), {})
    await backend.wait_changed(0)
    waiting = asyncio.ensure_future(backend.wait_changed(60))
    await clock.advance(1.9)
    assert not waiting.done()
    await clock.advance(0.1)
    assert waiting.done()


async def test_a_change_between_two_waits_ends_the_second_even_if_someone_looked(
    open_backend: Open, fleet: Fleet
) -> None:
    backend = open_backend(fleet)
    await backend.wait_changed(0)
    await backend.ensure_workload(a_plan(fleet), {})
    await backend.observe()
    waiting = asyncio.ensure_future(backend.wait_changed(60))
    await asyncio.wait({waiting}, timeout=5)
    assert waiting.done()


async def test_waiting_is_woken_by_a_verb_and_ends_at_its_time_out(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    await backend.wait_changed(0)
    waiting = asyncio.ensure_future(backend.wait_changed(60))
    await clock.advance(1)
    await backend.ensure_workload(a_plan(fleet), {})
    await asyncio.wait_for(waiting, 5)
    await clock.advance(10)
    await backend.wait_changed(0)
    waiting = asyncio.ensure_future(backend.wait_changed(1))
    await clock.advance(1)
    assert waiting.done()


async def test_progress_is_news_now_and_then(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(1000)), {})
    await clock.advance(2)
    told = await backend.observe_replicas_since("")
    found: list[float | None] = []
    for _ in range(100):
        await clock.advance(2)
        told = await backend.observe_replicas_since(told.cursor)
        found.extend(each.progress_ratio for each in told.replicas)
    assert found == [0.05, 0.1, 0.15, 0.2]


async def test_changes_are_told_once_for_each_cursor(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    first = await backend.observe_replicas_since("")
    assert first.replicas == ()
    await backend.ensure_workload(a_plan(fleet, "a", gpus=(0,), behaviour=lasting(10)), {})
    await backend.ensure_workload(a_plan(fleet, "b", gpus=(1,), behaviour=lasting(20)), {})
    started = await backend.observe_replicas_since(first.cursor)
    assert [each.phase for each in started.replicas] == [Phase.STARTING, Phase.STARTING]
    await clock.advance(12)
    later = await backend.observe_replicas_since(started.cursor)
    assert {each.phase for each in later.replicas} == {Phase.EXITED, Phase.RUNNING}
    assert (await backend.observe_replicas_since(later.cursor)).replicas == ()
    assert len((await backend.observe_replicas_since("")).replicas) == 2
    assert len((await backend.observe_replicas_since("of another life:7")).replicas) == 2


async def test_a_fast_clock_shortens_everything_alike(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet, speed=100)
    await backend.ensure_workload(a_plan(fleet, behaviour=lasting(198)), {})
    await clock.advance(2)
    over = await the_replica(backend)
    assert (over.phase, over.ended_at) == (Phase.EXITED, NOON_MS + 2000)


async def test_delays_depend_on_the_seed_and_the_attempt_alone(tmp_path: Path) -> None:
    delay = "startDelay: {distribution: uniform, min: 0s, max: 60s}"
    fleet = a_fleet(text=SMALL.replace("startDelay: {value: 2s}", delay))

    async def start_times(folder: str, seed: int) -> list[int | None]:
        clock = FakeClock()
        backend = a_backend(fleet, clock, tmp_path / folder, seed=seed)
        for name in "abcde":
            plan = a_plan(fleet, name, nodes=("plain-01",), gpus=(), behaviour=lasting(1))
            await backend.ensure_workload(plan, {})
        await clock.advance(100)
        found = [each.started_at for each in (await backend.observe()).replicas]
        backend.close()
        return found

    first, same, other = (
        await start_times("1", 1),
        await start_times("2", 1),
        await start_times("3", 2),
    )
    assert first == same
    assert len({*first, *other}) == 10
