"""The scratch of one cycle: fleets and quotas that are counted into and restored at the end.

Owns what happens to one workload when its turn comes. The order of turns is `ordering`'s, the
search for victims `preemption`'s, the place kept for a blocked head `backfill`'s.
"""

from dataclasses import dataclass, field
from types import TracebackType

import numpy as np

from gpuplane.core.fleet.columns import Bools, Fleet, Take
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import JobId
from gpuplane.core.quota.specs import QueueingStrategy
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling import filters
from gpuplane.core.scheduling.admission import Admission, Grant, QuotaRefusal
from gpuplane.core.scheduling.bench import NOT_FIT, Bench, latest_end
from gpuplane.core.scheduling.decisions import (
    Placed,
    QuotaUse,
    ReplicaPlacement,
    Verdict,
    Waiting,
    WordCount,
)
from gpuplane.core.scheduling.explain import describe_refusal, explain_placement
from gpuplane.core.scheduling.fragmentation import compute_typical_mix
from gpuplane.core.scheduling.ordering import Entry
from gpuplane.core.scheduling.placement import (
    Spots,
    count_placeable,
    needed_replicas,
    place_workload,
)
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.workload import Workload


@dataclass(frozen=True, slots=True)
class Blocked:
    """A workload that got no place, and what refused it."""

    entry: Entry
    position: int
    quota: QuotaRefusal | None = None
    behind_head: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A place: the fleet, the spots counted there, and the grant counted against the queue."""

    bench_index: int
    spots: Spots
    grant: Grant


@dataclass(slots=True)
class _QueueState:
    is_stopped: bool = False
    has_head: bool = False
    refused: set[tuple[object, ...]] = field(default_factory=set)


class Trial:
    """Fleets and quotas of a snapshot under trial; use as a context manager."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: int, seed: int) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now = now
        fleets = tuple(sorted(snapshot.fleets, key=lambda fleet: str(fleet.cluster_id)))
        mix = compute_typical_mix(
            [*snapshot.pending, *(each.workload for each in snapshot.running)],
            share=policy.typical_share,
            max_classes=policy.max_typical,
        )
        self.benches = [Bench(fleet, policy, mix, now, seed) for fleet in fleets]
        self.admission = Admission(snapshot.quotas, snapshot.flavors, fleets)
        self.whereabouts: dict[JobId, list[tuple[int, int]]] = {}
        self.blocked: list[Blocked] = []
        self._queues: dict[str, _QueueState] = {}
        self._counts: dict[tuple[int, str], tuple[list[tuple[Word, int]], int]] = {}
        self._note_running()

    def __enter__(self) -> "Trial":
        self._fleet_marks = [bench.fleet.checkpoint() for bench in self.benches]
        self._quota_mark = self.admission.tree.checkpoint()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.admission.tree.rollback(self._quota_mark)
        for bench, mark in zip(self.benches, self._fleet_marks, strict=True):
            bench.fleet.rollback(mark)
            bench.fleet.touched.clear()

    def _note_running(self) -> None:
        places = {bench.fleet.cluster_id: i for i, bench in enumerate(self.benches)}
        for running in self.snapshot.running:
            index = places.get(running.cluster_id)
            if index is None:
                continue
            nodes = self.benches[index].fleet.index
            self.whereabouts[running.workload.job_id] = [
                (index, nodes[each.node_id])
                for each in running.allocations
                if each.node_id in nodes
            ]

    # One workload.

    def consider(self, entry: Entry, position: int) -> Verdict | None:
        """Return the verdict for a workload, None when it waits (`explain_waiting` says why)."""
        workload = entry.workload
        state = self._queues.setdefault(workload.queue, _QueueState())
        if state.is_stopped:
            self.blocked.append(Blocked(entry, position, behind_head=True))
            return None
        kind = self._kind(workload)
        if kind is None or kind not in state.refused:
            found = self.find_place(workload)
            if isinstance(found, Found):
                return self._place(entry, found, position)
            if kind is not None:
                # Room only shrinks within a cycle: what found none will find none.
                state.refused.add(kind)
            refusal = found
        else:
            refusal = None
        self.blocked.append(Blocked(entry, position, refusal))
        spec = self.admission.tree.get_spec(workload.queue)
        if spec.queueing_strategy is QueueingStrategy.STRICT_FIFO:
            state.is_stopped = True
        return None

    def find_place(self, workload: Workload) -> Found | QuotaRefusal | None:
        """Find quota and nodes for a workload and count them; None when only nodes are short."""
        refusal: QuotaRefusal | None = None
        has_quota = False
        needed = needed_replicas(workload.replicas)
        for replicas in dict.fromkeys((workload.replicas.count, needed)):
            for answer in self.admission.grants(workload, replicas):
                if isinstance(answer, QuotaRefusal):
                    refusal = refusal or answer
                    continue
                has_quota = True
                found = self._find_nodes(workload, answer)
                if found is not None:
                    tree = self.admission.tree
                    tree.add_usage(workload.queue, found.grant.usage, workload.local_queue)
                    return found
        return None if has_quota else refusal

    def _find_nodes(self, workload: Workload, grant: Grant) -> Found | None:
        """Place the granted replicas in the fleet where they score best."""
        best: tuple[int, int] | None = None
        for index, bench in enumerate(self.benches):
            if not self._may_use(workload, bench.fleet):
                continue
            mark = bench.fleet.checkpoint()
            spots = place_workload(workload, bench, self.allowed_nodes(workload, index, grant))
            if spots is None:
                continue
            if len(self.benches) == 1:
                return _found(index, spots, grant)
            bench.fleet.rollback(mark)
            if best is None or spots.score > best[0]:
                best = (spots.score, index)
        if best is None:
            return None
        index = best[1]
        again = place_workload(
            workload, self.benches[index], self.allowed_nodes(workload, index, grant)
        )
        assert again is not None, "what was placed and undone fits again"
        return _found(index, again, grant)

    def allowed_nodes(self, workload: Workload, index: int, grant: Grant | None) -> Bools | None:
        """Return the nodes that quota, affinity and holds leave; None for all."""
        bench = self.benches[index]
        parts: list[Bools] = []
        if grant is not None and grant.flavors:
            mask = self.admission.flavor_nodes(grant.flavors, index)
            if mask is not None:
                parts.append(mask)
        affinity = self.affinity_nodes(workload, index)
        if affinity is not None:
            parts.append(affinity)
        if bench.is_holding:
            parts.append(bench.open_nodes(latest_end(workload, self.now)))
        if not parts:
            return None
        return np.asarray(np.logical_and.reduce(parts))

    def affinity_nodes(self, workload: Workload, index: int) -> Bools | None:
        """Return the nodes near and apart from the jobs it names; None when it names none."""
        placement = workload.placement
        if not placement.co_locate_with and not placement.separate_from:
            return None
        count = len(self.benches[index].fleet)
        mask = np.ones(count, dtype=np.bool_)
        for other in placement.co_locate_with:
            near = np.zeros(count, dtype=np.bool_)
            near[self._nodes_of(JobId(other), index)] = True
            mask &= near
        for other in placement.separate_from:
            mask[self._nodes_of(JobId(other), index)] = False
        return mask

    def _nodes_of(self, job_id: JobId, index: int) -> list[int]:
        return [node for fleet, node in self.whereabouts.get(job_id, ()) if fleet == index]

    def _may_use(self, workload: Workload, fleet: Fleet) -> bool:
        return workload.clusters is None or fleet.cluster_id in workload.clusters

    def _kind(self, workload: Workload) -> tuple[object, ...] | None:
        """Return what makes two workloads of a queue equal for `find_place`, None if nothing."""
        placement = workload.placement
        if placement.co_locate_with or placement.separate_from:
            return None
        return (
            workload.class_key,
            workload.local_queue,
            workload.replicas,
            placement.spreading,
            workload.clusters,
            workload.estimated_duration_s,
            workload.max_duration_s,
        )

    def _place(self, entry: Entry, found: Found, position: int) -> Placed:
        workload = entry.workload
        self.whereabouts[workload.job_id] = [
            (found.bench_index, take.node) for take in found.spots.takes
        ]
        return self.make_placed(entry, found, position)

    def make_placed(self, entry: Entry, found: Found, position: int) -> Placed:
        """Return the verdict for a place that was found."""
        workload = entry.workload
        fleet = self.benches[found.bench_index].fleet
        notes = [f"Place {position + 1} in the order, priority {workload.priority.value}."]
        notes += entry.boosts
        return Placed(
            job_id=workload.job_id,
            version=workload.version,
            cluster_id=fleet.cluster_id,
            replicas=tuple(
                _replica(fleet, take, rank) for rank, take in enumerate(found.spots.takes)
            ),
            usage=tuple(
                QuotaUse(pair.flavor, pair.resource, amount)
                for pair, amount in sorted(found.grant.usage.items())
            ),
            score=found.spots.score,
            explanation=explain_placement(
                workload, fleet, found.spots, self.policy.placement.value, notes
            ),
        )

    # Why the others wait.

    def explain_waiting(self) -> dict[JobId, Waiting]:
        """Return the verdicts of all who wait, judged by what is left at the end of the cycle."""
        return {each.entry.workload.job_id: self._explain(each) for each in self.blocked}

    def _explain(self, blocked: Blocked) -> Waiting:
        workload = blocked.entry.workload
        counts: list[tuple[Word, int]] = []
        if blocked.behind_head:
            reason = Reason(
                Word.BEHIND_HEAD,
                f"Queue {workload.queue} is StrictFIFO and the workload before it waits.",
                "Wait, or use a BestEffortFIFO queue.",
            )
        else:
            quota = blocked.quota or self._quota_refusal(workload)
            if quota is not None:
                reason = quota.reason
            else:
                reason, counts = self._explain_nodes(workload)
        return Waiting(
            workload.job_id,
            workload.version,
            reason,
            tuple(WordCount(word, nodes) for word, nodes in counts),
            blocked.position,
        )

    def _quota_refusal(self, workload: Workload) -> QuotaRefusal | None:
        for answer in self.admission.grants(workload, needed_replicas(workload.replicas)):
            return answer if isinstance(answer, QuotaRefusal) else None
        return None

    def _explain_nodes(self, workload: Workload) -> tuple[Reason, list[tuple[Word, int]]]:
        """Return the dominant reason and the counts per filter, over every cluster it may use.

        Dominant is the last filter that refused a node: those nodes came closest.
        """
        totals: dict[Word, int] = {}
        nodes = fitting = placeable = 0
        rest: Word = Word.GANG
        for index, bench in enumerate(self.benches):
            if not self._may_use(workload, bench.fleet):
                continue
            row = bench.row(workload)
            key = (index, workload.class_key)
            if key not in self._counts:
                self._counts[key] = (bench.count_refused(row), int((row.ranks != NOT_FIT).sum()))
            for word, refused in self._counts[key][0]:
                totals[word] = totals.get(word, 0) + refused
            nodes += len(bench.fleet)
            fits = self._counts[key][1]
            fitting += fits
            if fits:
                allowed = self.allowed_nodes(workload, index, None)
                placeable += count_placeable(workload, bench, allowed)
                rest = self._rest_word(workload, index)
        order = {each.word: place for place, each in enumerate(filters.FILTERS)}
        counts = sorted(totals.items(), key=lambda item: order[item[0]])
        if fitting:
            counts.append((rest, fitting))
            word = rest
        else:
            word = counts[-1][0] if counts else Word.GPU_COUNT
        return describe_refusal(workload, word, counts, nodes, placeable), counts

    def _rest_word(self, workload: Workload, index: int) -> Word:
        """Return what keeps a workload away from nodes that pass every filter."""
        bench = self.benches[index]
        fits = bench.row(workload).ranks != NOT_FIT
        affinity = self.affinity_nodes(workload, index)
        if affinity is not None and not (fits & affinity).any():
            return Word.AFFINITY
        if bench.is_holding and not (fits & bench.open_nodes(latest_end(workload, self.now))).any():
            return Word.BEHIND_HEAD
        if workload.replicas.count > 1:
            return Word.GANG
        return Word.QUOTA_EXCEEDED


def _found(index: int, spots: Spots, grant: Grant) -> Found:
    if len(spots.takes) != grant.replicas:
        grant = Grant(len(spots.takes), grant.replica_usage, grant.flavors, grant.borrow_level)
    return Found(index, spots, grant)


def _replica(fleet: Fleet, take: Take, rank: int) -> ReplicaPlacement:
    node = fleet.nodes[take.node]
    gpus = fleet.gpu_ids[take.node]
    mig = None
    if take.mig is not None:
        gpu, profile, start = take.mig
        mig = MigPlacement(gpus[gpu], profile, start)
        held = 1 << gpu
    else:
        held = take.gpu_mask
    gpu_ids = fleet.gpu_ids_of(take.node, held)
    return ReplicaPlacement(
        rank, node.node_id, node.name, node.version, gpu_ids, take.gpu_milli, mig
    )
