"""A cycle with a memory decides as one without: the same bytes through any history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.ids import JobId
from gpuplane.core.quota.specs import (
    GPU,
    AdmissionMode,
    ClusterQueueSpec,
    FlavorResource,
    LocalQueueSpec,
    QueueingStrategy,
    ResourceQuota,
    unlimited_cluster_queue,
)
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.memory import Memory
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import Priority
from tests.builders import CLUSTER, H100, NOW, World
from tests.examples import examples
from tests.property.test_scheduling import a_queue, nodes, policies, workloads

Draw = Callable[[st.SearchStrategy[Any]], Any]
STEPS_S = [0, 1, 7, 61, 1_000, 9_000]


@dataclass(repr=False)
class Installation(World):
    """A world whose fleet and quotas are kept and advanced, as a scheduler's are."""

    kept_fleet: Fleet | None = None
    kept_tree: QuotaTree | None = None
    taken: dict[JobId, tuple[RunningWorkload, tuple[Take, ...]]] = field(default_factory=dict)

    def kept_snapshot(self) -> Snapshot:
        """Return the snapshot made of kept values, brought up to date by what changed."""
        fresh = self.snapshot()
        if self.kept_fleet is None or self.kept_tree is None:
            self.kept_fleet = Fleet(CLUSTER, self.nodes)
            self.kept_tree = QuotaTree(
                self.queues, local_queues=self.doors, mode=self.quota.get("mode", "classical")
            )
            self.taken = {}
        fleet, tree = self.kept_fleet, self.kept_tree
        present = {each.workload.job_id: each for each in self.running}
        for job_id, (running, takes) in list(self.taken.items()):
            if present.get(job_id) is not running:
                del self.taken[job_id]
                for take in takes:
                    fleet.release(take)
                workload = running.workload
                tree.remove_usage(workload.queue, running.usage, workload.local_queue)
        for job_id, running in present.items():
            if job_id not in self.taken:
                takes = tuple(fleet.take_of(each) for each in running.allocations)
                for take in takes:
                    fleet.allocate(take)
                self.taken[job_id] = running, takes
                workload = running.workload
                tree.add_usage(workload.queue, running.usage, workload.local_queue)
        fleet.settle()
        return replace(fresh, fleets=(fleet,), quotas=tree)

    @property
    def doors(self) -> list[LocalQueueSpec]:
        return list(self.quota.get("local_queues", ()))

    def forget_kept(self) -> None:
        """Read everything anew, as after a change of nodes or quotas."""
        self.kept_fleet = self.kept_tree = None


@st.composite
def installations(draw: st.DrawFn) -> Installation:
    kind = draw(st.integers(0, 3))
    quota: dict[str, object] = {}
    if kind == 0:
        queues: list[ClusterQueueSpec] = [unlimited_cluster_queue("default")]
    else:
        strategies = st.sampled_from(list(QueueingStrategy))
        sizes = st.sampled_from([2, 4, 8])
        queues = [a_queue(name, draw(sizes), draw(strategies)) for name in ("a", "b", "c")]
        if kind == 1:
            quota["mode"] = AdmissionMode.FAIR_SHARING
        if kind == 2:
            pair = FlavorResource(H100, GPU)
            cap = {pair: draw(st.sampled_from([1000, 3000]))}
            quota["local_queues"] = [LocalQueueSpec("t", "door", "a", limits=cap)]
    return Installation(draw(nodes()), queues, quota=quota)


def arrive(draw: Draw, world: Installation, number: int) -> None:
    """Let a workload arrive; some come through a LocalQueue with a cap."""
    names = [queue.name for queue in world.queues]
    workload = draw(workloads(number, names, list(Priority)))
    if workload.queue == "a" and world.doors and draw(st.booleans()):
        workload = replace(workload, local_queue="t/door")
    if draw(st.integers(0, 4)) == 0:
        at = NOW + draw(st.sampled_from([500, 60_000, 5_000_000]))
        changes: dict[str, object] = draw(
            st.sampled_from(
                [
                    {"not_before": at},
                    {"deadline": at, "submitted_at": NOW - 100_000},
                    {"inherited_priority": Priority.HIGH},
                    {"version": 2},
                ]
            )
        )
        workload = replace(workload, **changes)
    world.pending.append(workload)


def change(draw: Draw, world: Installation, number: int) -> int:
    """Let something happen; return the next free number for a job."""
    what = draw(st.integers(0, 9))
    if what <= 4 or not world.pending:
        for _ in range(draw(st.integers(1, 4))):
            arrive(draw, world, number)
            number += 1
    elif what <= 6 and world.running:
        del world.running[draw(st.integers(0, len(world.running) - 1))]
    elif what == 7:
        del world.pending[draw(st.integers(0, len(world.pending) - 1))]
    elif what == 8:
        place = draw(st.integers(0, len(world.pending) - 1))
        waiting: Workload = world.pending[place]
        world.pending[place] = replace(waiting, version=waiting.version + 1)
    elif len(world.queues) > 1:
        place = draw(st.integers(0, len(world.queues) - 1))
        changed = list(world.queues)
        pair = FlavorResource(H100, GPU)
        quotas = {**changed[place].quotas, pair: ResourceQuota(draw(st.sampled_from([0, 6000])))}
        changed[place] = replace(changed[place], quotas=quotas)
        world.queues = changed
        world.forget_kept()
    return number


@examples(80)
@given(st.data(), policies)
def test_a_memory_never_changes_a_decision(data: st.DataObject, policy: Policy) -> None:
    draw = data.draw
    world = draw(installations())
    memory = Memory()
    now, number = NOW, 0
    for _ in range(draw(st.integers(2, 8))):
        number = change(draw, world, number)
        now += draw(st.sampled_from(STEPS_S)) * 1000 + draw(st.integers(0, 1)) * 137
        used = world.kept_snapshot() if draw(st.booleans()) else world.snapshot()
        with_memory = decide(used, policy, now, 1, memory)
        fresh = decide(world.snapshot(), policy, now, 1)
        assert with_memory.to_json() == fresh.to_json()
        if draw(st.integers(0, 3)):
            world.apply(with_memory, now)


@given(st.data())
def test_a_cycle_that_fails_leaves_a_memory_that_can_be_used(data: st.DataObject) -> None:
    world = data.draw(installations())
    for number in range(4):
        arrive(data.draw, world, number)
    memory = Memory()
    decide(world.snapshot(), Policy(), NOW, 1, memory)
    twice = replace(world.snapshot(), pending=(*world.pending, replace(world.pending[0])))
    with pytest.raises(ValueError, match="given twice"):
        decide(twice, Policy(), NOW, 1, memory)
    again = decide(world.snapshot(), Policy(), NOW, 1, memory)
    assert again.to_json() == decide(world.snapshot(), Policy(), NOW, 1).to_json()
