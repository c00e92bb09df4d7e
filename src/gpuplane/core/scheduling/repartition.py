"""Which GPUs to cut anew for a workload that finds no free MIG instance.

Owns the search over a trial's GPUs in MIG mode and what is kept for the workload meanwhile. What
a cut may do to one GPU is `core.mig`'s; carrying it out is nobody's here. A cycle never waits for
it: the workload waits, everything else goes on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuplane.core.fleet.columns import Fleet, Take, bits_of
from gpuplane.core.fleet.facts import GpuFacts, MigChange, MigSlot
from gpuplane.core.ids import ClusterId, GpuId, JobId
from gpuplane.core.lifecycle.mig import MigState
from gpuplane.core.mig.layouts import MigInstance
from gpuplane.core.mig.rebalance import GpuChange, MigGpu, plan_room
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.admission import Grant
from gpuplane.core.scheduling.bench import Row
from gpuplane.core.scheduling.placement import (
    compute_capacity,
    needed_replicas,
    place_workload,
)
from gpuplane.core.scheduling.trial import Trial
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import Spreading

MAX_SEARCHES = 32
"""Workloads of one cycle for which GPUs are sought: bounds the cycle, and how much of a fleet is
cut at once. The others are looked at in the next one."""
MAX_NODES = 256
"""Nodes looked at for one workload: bounds the search in a fleet of thousands of MIG GPUs."""


@dataclass(frozen=True, slots=True)
class Recut:
    """The GPUs to cut anew for one workload, in one cluster, with the quota it has for that."""

    bench_index: int
    cluster_id: ClusterId
    changes: tuple[MigChange, ...]
    grant: Grant


class RepartitionSearch:
    """Looks for GPUs to cut within one trial and remembers what is promised to whom."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._busy: set[GpuId] = {
            change.gpu_id for changes in trial.snapshot.recutting.values() for change in changes
        } | trial.snapshot.uncut
        self._hopeless: set[tuple[object, ...]] = set()
        # A forecast cuts nothing: what is kept for a cut would be kept for its whole run.
        self._is_open = trial.policy.cuts_gpus
        self._searches_left = MAX_SEARCHES if self._is_open else 0

    def find_plan(self, workload: Workload) -> Recut | None:
        """Return the least cut that makes room for the workload, or None.

        The trial is as before afterwards; `promise` counts the plan.
        """
        placement = workload.placement
        kind = (workload.class_key, workload.queue, workload.local_queue, workload.clusters,
                placement.co_locate_with, placement.separate_from)  # fmt: skip
        if workload.resources.mig_profile is None or kind in self._hopeless:
            return None
        if workload.job_id in self._trial.snapshot.recutting or self._searches_left <= 0:
            return None
        self._searches_left -= 1
        needed = needed_replicas(workload.replicas)
        grant = self._find_grant(workload, needed)
        if grant is None:
            return None
        for index, bench in enumerate(self._trial.benches):
            if not self._trial.may_use(workload, bench.fleet):
                continue
            changes = self._plan_in(workload, index, grant, needed)
            if changes:
                return Recut(index, bench.fleet.cluster_id, changes, grant)
        if workload.replicas.count == 1:
            # Only held instances are in the way, and they stay for this cycle.
            self._hopeless.add(kind)
        return None

    def find_underway(self, workload: Workload) -> tuple[MigChange, ...]:
        """Return what is being cut for the workload at the moment."""
        if not self._is_open:
            return ()
        return tuple(self._trial.snapshot.recutting.get(workload.job_id, ()))

    def promise(self, workload: Workload, plan: Recut) -> None:
        """Count the plan: its slices, its part of the nodes and its quota are nobody else's."""
        fleet = self._trial.benches[plan.bench_index].fleet
        for change in plan.changes:
            self._busy.add(change.gpu_id)
            node = fleet.index[change.node_id]
            for slot in change.destroy:
                gone = (change.gpu_index, slot.profile, slot.start)
                fleet.allocate(Take(node, 0, 0, 0, 0, 0, gone))
        self.keep(workload, plan.changes, plan.grant)

    def keep(
        self, workload: Workload, changes: Sequence[MigChange], grant: Grant | None = None
    ) -> None:
        """Keep quota and the nodes' CPU, memory and storage for a workload until its cut is done.

        Args:
            workload: For whom.
            changes: The cuts, planned or under way.
            grant: Its quota; None looks for it now, and keeps nothing where there is none.
        """
        grant = grant or self._find_grant(workload, needed_replicas(workload.replicas))
        if grant is None:
            return
        self._trial.admission.tree.add_usage(workload.queue, grant.usage, workload.local_queue)
        asked = workload.resources
        amounts = (asked.cpu_milli, asked.memory_mib, asked.ephemeral_mib)
        for index, bench in enumerate(self._trial.benches):
            made = [
                bench.fleet.index[change.node_id]
                for change in changes
                if change.node_id in bench.fleet.index
                for slot in change.create
                if slot.profile == asked.mig_profile
            ]
            for node in made:
                bench.fleet.allocate(Take(node, 0, 0, *amounts))
            if made:
                self._keep_free(workload, index, grant, len(made))

    def _keep_free(self, workload: Workload, index: int, grant: Grant, made: int) -> None:
        """Keep the instances that are free already for the replicas that the cuts are not for."""
        rest = needed_replicas(workload.replicas) - made
        if rest > 0:
            replicas = replace(workload.replicas, count=rest, minimum=1, gang=False)
            allowed = self._trial.allowed_nodes(workload, index, grant)
            place_workload(
                replace(workload, replicas=replicas), self._trial.benches[index], allowed
            )

    def _find_grant(self, workload: Workload, replicas: int) -> Grant | None:
        for answer in self._trial.admission.grants(workload, replicas):
            return answer if isinstance(answer, Grant) else None
        return None

    def _plan_in(
        self, workload: Workload, index: int, grant: Grant, needed: int
    ) -> tuple[MigChange, ...]:
        """Return the least cut in one fleet, or nothing where no cut makes room."""
        bench = self._trial.benches[index]
        row, fleet = bench.row(workload), bench.fleet
        allowed = self._trial.allowed_nodes(workload, index, grant)
        free = compute_capacity(row, allowed)
        spreading = workload.placement.spreading
        suits = [
            node
            for node in np.flatnonzero(fleet.mig_mask & row.need.granted_mask).tolist()
            if row.suits(node) and (allowed is None or allowed[node])
        ]
        plans = []
        for nodes in [[n] for n in suits] if spreading is Spreading.SAME_NODE else [suits]:
            most = 1 if spreading is Spreading.SPREAD else needed
            rooms = {n: min(most, _node_room(fleet, row, n)) for n in nodes[:MAX_NODES]}
            inside = nodes if spreading is Spreading.SAME_NODE else range(len(fleet))
            have = sum(min(most, int(free[node])) for node in inside)
            missing = needed - have
            gpus = {n: self._gpus_of(fleet, row, n) for n in rooms}
            plan = _plan_over(gpus, rooms, free.tolist(), row, missing)
            if plan is not None:
                plans.append(plan)
        best = min(plans, key=_cost, default=())
        return tuple(_describe(fleet, change) for change in best)

    def _gpus_of(self, fleet: Fleet, row: Row, node: int) -> list[MigGpu]:
        """Return the node's GPUs that may be cut for the class, as they stand in the trial."""
        granted = int(row.need.granted_mask[node]) & int(fleet.mig_mask[node])
        facts = {gpu.index: gpu for gpu in fleet.nodes[node].gpus}
        found = []
        for bit in bits_of(granted):
            gpu = facts[bit]
            table = None if gpu.gpu_id in self._busy else gpu.cuts
            if table is not None:
                states = _states(fleet, node, gpu)
                known = all(table.find_profile(one.profile) is not None for one, _ in states)
                if known:
                    found.append(MigGpu(gpu.gpu_id, table, states))
        return found


def describe_cut(changes: Sequence[MigChange]) -> str:
    """Return what is cut, as people say it."""
    return "; ".join(_describe_one(change) for change in changes)


def needs_repartition(
    workload: Workload, changes: Sequence[MigChange], *, is_underway: bool
) -> Reason:
    """Return why the workload waits: the plan that makes room for it."""
    asked = f"a MIG instance {workload.resources.mig_profile}"
    if is_underway:
        sentence = f"Needs {asked}; it is being cut: {describe_cut(changes)}."
        return Reason(Word.MIG_REPARTITION, sentence, "Wait until the GPU is cut.")
    sentence = f"Needs {asked}; none is free, but a GPU can be cut anew: {describe_cut(changes)}."
    return Reason(Word.MIG_REPARTITION, sentence, "Wait, or have an operator cut the GPU.")


def _describe_one(change: MigChange) -> str:
    made = ", ".join(f"{slot.profile} at {slot.start}" for slot in change.create)
    gone = ", ".join(f"{slot.profile} at {slot.start}" for slot in change.destroy)
    where = f"GPU {change.gpu_index} of {change.node_name}"
    return f"on {where} {made} in place of {gone}" if gone else f"on {where} {made} on free slices"


def _states(fleet: Fleet, node: int, gpu: GpuFacts) -> tuple[tuple[MigInstance, MigState], ...]:
    """Return the instances of a GPU: Available where the trial says free, else held."""
    states = []
    for slot in gpu.mig_instances:
        column = fleet.mig_free.get(slot.profile)
        is_free = column is not None and bool(column[gpu.index, node] >> slot.start & 1)
        state = MigState.AVAILABLE if is_free else MigState.ALLOCATED
        states.append((MigInstance(slot.start, slot.profile), state))
    return tuple(states)


def _node_room(fleet: Fleet, row: Row, node: int) -> int:
    """Return how many replicas the node's CPU, memory and storage take now."""
    asked = row.need.resources
    rooms = [
        int(free[node]) // wanted
        for free, wanted in (
            (fleet.cpu_free, asked.cpu_milli),
            (fleet.memory_free, asked.memory_mib),
            (fleet.ephemeral_free, asked.ephemeral_mib),
        )
        if wanted
    ]
    return max(0, min(rooms, default=1 << 30))


_Planned = tuple[int, GpuChange]
"""(node, change of one of its GPUs)."""


def _plan_over(
    gpus: dict[int, list[MigGpu]], rooms: dict[int, int], free: list[int], row: Row, missing: int
) -> tuple[_Planned, ...] | None:
    """Return the least cuts over nodes for the replicas that find no instance, or None.

    Nodes are taken one after another, those with the least cut for one instance first; each gives
    as many as its CPU, memory and storage carry.
    """
    profile = row.need.resources.mig_profile or ""
    if missing <= 0:
        return None
    order = []
    for node, there in gpus.items():
        room = rooms[node] - min(free[node], rooms[node])
        first = plan_room(there, profile, 1) if room > 0 and there else None
        if first is not None:
            order.append((_cost([(node, each) for each in first]), node, min(room, missing)))
    found: list[_Planned] = []
    for _, node, room in sorted(order):
        for count in range(min(room, missing), 0, -1):
            changes = plan_room(gpus[node], profile, count)
            if changes is not None:
                found += [(node, change) for change in changes]
                missing -= count
                break
        if missing <= 0:
            return tuple(found)
    return None


def _cost(planned: Iterable[_Planned]) -> tuple[int, int, list[str]]:
    """Return what a plan costs: instances destroyed, GPUs touched, then their names."""
    changes = [change for _, change in planned]
    return (
        sum(len(change.destroy) for change in changes),
        len(changes),
        sorted(change.gpu_id for change in changes),
    )


def _describe(fleet: Fleet, planned: _Planned) -> MigChange:
    node, change = planned
    facts = fleet.nodes[node]
    index = next(gpu.index for gpu in facts.gpus if gpu.gpu_id == change.gpu_id)
    return MigChange(
        node_id=facts.node_id,
        node_name=facts.name,
        gpu_id=change.gpu_id,
        gpu_index=index,
        destroy=tuple(MigSlot(one.profile, one.start) for one in change.destroy),
        create=tuple(MigSlot(one.profile, one.start) for one in change.create),
    )


def index_recutting(
    orders: Iterable[tuple[JobId, MigChange]],
) -> dict[JobId, tuple[MigChange, ...]]:
    """Return cuts under way by the job they are for, in the order of their GPUs."""
    found: dict[JobId, tuple[MigChange, ...]] = {}
    for job_id, change in sorted(orders, key=lambda each: each[1].gpu_id):
        found[job_id] = (*found.get(job_id, ()), change)
    return found
