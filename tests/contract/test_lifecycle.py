"""Start, end, eviction, fencing and forgetting: the same on every backend."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from gpuplane.backends.capabilities import ObservesChanges
from gpuplane.backends.interface import (
    Backend,
    BackendError,
    Phase,
    ReplicaObservation,
    StaleEpoch,
    Tombstoned,
)
from gpuplane.core.reasons import Word
from tests.contract.builders import a_plan, a_ref
from tests.contract.factories import (
    BackendFactory,
    replicas_of,
    until,
    until_over,
    until_phase,
)

LONG_S = 600.0


def steady(replica: ReplicaObservation) -> ReplicaObservation:
    """Return an observation without what grows while the job runs."""
    return replace(replica, cpu_ms=None, memory_peak_mib=None, progress_ratio=None)


async def test_a_backend_can_be_probed(factory: BackendFactory, backend: Backend) -> None:
    probe = await backend.probe()
    assert probe.reachable
    assert probe.kind == backend.kind == factory.kind
    assert probe.simulated == (factory.kind == "simulated")


async def test_a_backend_has_a_node_that_can_take_work(
    factory: BackendFactory, backend: Backend
) -> None:
    nodes = {node.name: node for node in (await backend.observe()).nodes}
    node = nodes[factory.node_name]
    assert node.ready
    assert node.cpu_milli > 0
    assert node.memory_mib > 0
    assert node.ephemeral_mib > 0


async def test_the_generation_stays_while_the_inventory_does(backend: Backend) -> None:
    assert (await backend.observe()).generation == (await backend.observe()).generation


async def test_a_job_that_exits_zero_is_completed(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name)
    await backend.ensure_workload(plan, {})
    [replica] = await until_over(factory, backend, plan.ref)
    assert (replica.phase, replica.exit_code, replica.reason) == (Phase.EXITED, 0, Word.COMPLETED)
    assert replica.ref == plan.ref
    assert replica.signal is None


async def test_a_job_that_exits_with_a_code_keeps_it(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name, exit_code=3)
    await backend.ensure_workload(plan, {})
    [replica] = await until_over(factory, backend, plan.ref)
    assert (replica.phase, replica.exit_code) == (Phase.EXITED, 3)
    assert replica.reason == Word.NON_ZERO_EXIT
    assert "3" in replica.message


async def test_a_job_is_seen_while_it_runs(factory: BackendFactory, backend: Backend) -> None:
    plan = a_plan(node_name=factory.node_name, duration_s=LONG_S)
    await backend.ensure_workload(plan, {})
    [replica] = await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    assert replica.started_at is not None
    assert replica.ended_at is None
    assert replica.exit_code is None


async def test_a_job_ends_after_it_started(factory: BackendFactory, backend: Backend) -> None:
    plan = a_plan(node_name=factory.node_name, duration_s=0.3)
    await backend.ensure_workload(plan, {})
    [replica] = await until_over(factory, backend, plan.ref)
    assert replica.started_at is not None
    assert replica.ended_at is not None
    assert 300 <= replica.ended_at - replica.started_at < 5_000


async def test_every_rank_of_an_attempt_is_seen(factory: BackendFactory, backend: Backend) -> None:
    plan = a_plan(node_name=factory.node_name, replica_count=3)
    await backend.ensure_workload(plan, {})
    replicas = await until_over(factory, backend, plan.ref)
    assert [replica.rank for replica in replicas] == [0, 1, 2]
    assert {replica.reason for replica in replicas} == {Word.COMPLETED}


async def test_to_ensure_twice_starts_once(factory: BackendFactory, backend: Backend) -> None:
    plan = a_plan(node_name=factory.node_name, duration_s=LONG_S)
    await backend.ensure_workload(plan, {})
    [first] = await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    await backend.ensure_workload(plan, {})
    [second] = replicas_of(await backend.observe(), plan.ref)
    assert (second.phase, second.started_at) == (Phase.RUNNING, first.started_at)


async def test_to_ensure_at_the_same_moment_starts_once(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name, duration_s=LONG_S)
    await asyncio.gather(*(backend.ensure_workload(plan, {}) for _ in range(4)))
    replicas = await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    assert len(replicas) == 1


async def test_to_ensure_a_finished_attempt_starts_nothing(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name)
    await backend.ensure_workload(plan, {})
    [first] = await until_over(factory, backend, plan.ref)
    await backend.ensure_workload(plan, {})
    [second] = replicas_of(await backend.observe(), plan.ref)
    assert second == first


async def test_an_evicted_job_ends_for_the_reason_it_was_evicted_for(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name, duration_s=LONG_S)
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    await backend.evict(plan.ref, 5.0, Word.PREEMPTED)
    [replica] = await until_over(factory, backend, plan.ref)
    assert (replica.phase, replica.reason) == (Phase.EXITED, Word.PREEMPTED)
    assert replica.ended_at is not None


async def test_to_evict_again_changes_nothing(factory: BackendFactory, backend: Backend) -> None:
    plan = a_plan(node_name=factory.node_name, duration_s=LONG_S)
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    await backend.evict(plan.ref, 5.0, Word.PREEMPTED)
    [first] = await until_over(factory, backend, plan.ref)
    await backend.evict(plan.ref, 5.0, Word.CANCELLED)
    [second] = replicas_of(await backend.observe(), plan.ref)
    assert second == first


async def test_a_job_evicted_after_its_end_stays_completed(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name)
    await backend.ensure_workload(plan, {})
    await until_over(factory, backend, plan.ref)
    await backend.evict(plan.ref, 5.0, Word.CANCELLED)
    [replica] = replicas_of(await backend.observe(), plan.ref)
    assert (replica.reason, replica.exit_code) == (Word.COMPLETED, 0)


async def test_an_attempt_evicted_before_its_start_never_starts(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name)
    await backend.evict(plan.ref, 5.0, Word.CANCELLED)
    with pytest.raises(Tombstoned):
        await backend.ensure_workload(plan, {})
    [replica] = replicas_of(await backend.observe(), plan.ref)
    assert (replica.phase, replica.reason) == (Phase.EXITED, Word.CANCELLED)
    assert replica.started_at is None
    assert replica.exit_code is None
    assert replica.forbids, "it is said of every rank, for the plan was never seen"


async def test_a_job_that_runs_too_long_is_ended_by_the_backend(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name, duration_s=LONG_S, max_duration_s=1, grace_s=1)
    await backend.ensure_workload(plan, {})
    [replica] = await until_over(factory, backend, plan.ref)
    assert (replica.phase, replica.reason) == (Phase.EXITED, Word.TIMED_OUT)


async def test_an_older_epoch_is_refused_by_every_verb(
    factory: BackendFactory, backend: Backend
) -> None:
    new = a_plan(ref=a_ref(epoch=2), node_name=factory.node_name, duration_s=LONG_S)
    await backend.ensure_workload(new, {})
    await until_phase(factory, backend, new.ref, Phase.RUNNING)
    old = a_plan(ref=type(new.ref)(new.ref.attempt_id, 1), node_name=factory.node_name)
    with pytest.raises(StaleEpoch):
        await backend.ensure_workload(old, {})
    with pytest.raises(StaleEpoch):
        await backend.evict(old.ref, 0.0, Word.CANCELLED)
    with pytest.raises(StaleEpoch):
        await backend.forget(old.ref)
    [replica] = replicas_of(await backend.observe(), new.ref)
    assert (replica.phase, replica.ref) == (Phase.RUNNING, new.ref)


async def test_a_newer_epoch_takes_an_attempt_over(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name, duration_s=LONG_S)
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    newer = type(plan.ref)(plan.ref.attempt_id, 7)
    await backend.ensure_workload(a_plan(ref=newer, node_name=factory.node_name), {})
    [replica] = replicas_of(await backend.observe(), newer)
    assert (replica.phase, replica.ref) == (Phase.RUNNING, newer)
    with pytest.raises(StaleEpoch):
        await backend.evict(plan.ref, 0.0, Word.CANCELLED)


async def test_a_forgotten_attempt_is_no_longer_seen_and_never_starts_again(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name)
    await backend.ensure_workload(plan, {})
    await until_over(factory, backend, plan.ref)
    await backend.forget(plan.ref)
    assert replicas_of(await backend.observe(), plan.ref) == []
    with pytest.raises(Tombstoned):
        await backend.ensure_workload(plan, {})
    await backend.forget(plan.ref)
    assert replicas_of(await backend.observe(), plan.ref) == []


async def test_an_attempt_that_runs_is_not_forgotten(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name, duration_s=LONG_S)
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    with pytest.raises(BackendError):
        await backend.forget(plan.ref)
    assert replicas_of(await backend.observe(), plan.ref) != []


async def test_to_forget_what_was_never_there_is_no_error(backend: Backend) -> None:
    ref = a_ref()
    await backend.forget(ref)
    assert replicas_of(await backend.observe(), ref) == []


async def test_a_change_ends_the_wait_for_one(factory: BackendFactory, backend: Backend) -> None:
    plan = a_plan(node_name=factory.node_name, duration_s=LONG_S)
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    waiting = asyncio.ensure_future(backend.wait_changed(60.0))
    began = time.monotonic()
    await backend.evict(plan.ref, 5.0, Word.CANCELLED)
    await factory.pass_time(0.1)
    await asyncio.wait_for(waiting, 30.0)
    assert time.monotonic() - began < 30.0


async def test_a_change_between_two_waits_is_not_missed(
    factory: BackendFactory, backend: Backend
) -> None:
    plan = a_plan(node_name=factory.node_name)
    await backend.wait_changed(0.0)
    await backend.ensure_workload(plan, {})
    await until(
        factory,
        backend,
        lambda seen: [r for r in replicas_of(seen, plan.ref) if r.phase is Phase.EXITED],
        "the job is over",
    )
    assert [r.phase for r in replicas_of(await backend.observe(), plan.ref)] == [Phase.EXITED]


async def test_what_runs_is_found_again_after_a_restart(factory: BackendFactory) -> None:
    if not factory.survives_restart:
        pytest.skip("this backend keeps its state in memory alone")
    backend = await factory.open()
    running = a_plan(node_name=factory.node_name, duration_s=LONG_S)
    ended = a_plan(node_name=factory.node_name, exit_code=5)
    await backend.ensure_workload(running, {})
    await backend.ensure_workload(ended, {})
    [first] = await until_phase(factory, backend, running.ref, Phase.RUNNING)
    [last] = await until_over(factory, backend, ended.ref)
    again = await factory.open()
    seen = await again.observe()
    [found] = replicas_of(seen, running.ref)
    assert replace(found, progress_ratio=first.progress_ratio) == first
    assert replicas_of(seen, ended.ref) == [last]
    await again.evict(running.ref, 5.0, Word.CANCELLED)
    [replica] = await until_over(factory, again, running.ref)
    assert replica.reason == Word.CANCELLED


async def test_a_turn_is_told_only_what_changed(factory: BackendFactory, backend: Backend) -> None:
    if not isinstance(backend, ObservesChanges):
        pytest.skip("this backend does not tell what changed")
    plan = a_plan(node_name=factory.node_name, duration_s=LONG_S)
    await backend.ensure_workload(plan, {})
    [running] = await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    first = await backend.observe_replicas_since("")
    assert steady(running) in map(steady, first.replicas)
    assert first.generation == (await backend.observe()).generation
    assert (await backend.observe_replicas_since(first.cursor)).replicas == ()
    await backend.evict(plan.ref, 5.0, Word.CANCELLED)
    [over] = await until_over(factory, backend, plan.ref)
    later = await backend.observe_replicas_since(first.cursor)
    assert later.replicas[-1] == over
    assert (await backend.observe_replicas_since(later.cursor)).replicas == ()
    assert over in (await backend.observe_replicas_since("")).replicas
