"""Judges one workload after another: place it, stop others for it, or let it wait.

Owns what happens when a workload's turn comes and what its queue does after it was blocked.
"""

from dataclasses import dataclass, field

from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import JobId
from gpuplane.core.quota.specs import QueueingStrategy
from gpuplane.core.scheduling.admission import QuotaRefusal
from gpuplane.core.scheduling.decisions import (
    NeedsPreemption,
    Placed,
    QuotaUse,
    ReplicaPlacement,
    Verdict,
    Waiting,
)
from gpuplane.core.scheduling.explain import explain_placement
from gpuplane.core.scheduling.heads import HeadKeeper
from gpuplane.core.scheduling.ordering import Entry
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.victims import Plan, VictimSearch, make_receipt
from gpuplane.core.scheduling.waiting import Blocked, Explainer
from gpuplane.core.scheduling.workload import Workload


@dataclass(slots=True)
class _QueueState:
    is_stopped: bool = False
    refused: set[tuple[object, ...]] = field(default_factory=set)
    hopeless: set[tuple[object, ...]] = field(default_factory=set)


class Judge:
    """Gives verdicts in the order of turns; `finish` explains those who wait."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._victims = VictimSearch(trial)
        self._queues: dict[str, _QueueState] = {}
        self._blocked: list[Blocked] = []
        self._needs: dict[JobId, tuple[Plan, Placed]] = {}
        self._heads = HeadKeeper(trial)

    def consider(self, entry: Entry, position: int) -> Verdict | None:
        """Return where the workload goes, None when it waits."""
        workload = entry.workload
        state = self._queues.setdefault(workload.queue, _QueueState())
        if state.is_stopped:
            self._blocked.append(Blocked(entry, position, behind_head=True))
            return None
        kind = _kind(workload)
        is_known = kind is not None and kind in state.refused
        refusal: QuotaRefusal | None = None
        if not is_known:
            found = self._trial.find_place(workload)
            if isinstance(found, Found):
                return self._place(entry, found, position)
            refusal = found
            if kind is not None:
                # Room only shrinks within a cycle: what found none will find none.
                state.refused.add(kind)
        plan = self._find_plan(workload, kind, state)
        if plan is not None:
            self._promise(entry, plan, position)
        else:
            starts_at = None
            if not is_known and not _is_final(refusal):
                starts_at = self._heads.keep_place(workload)
            self._blocked.append(Blocked(entry, position, starts_at=starts_at))
        spec = self._trial.admission.tree.get_spec(workload.queue)
        if spec.queueing_strategy is QueueingStrategy.STRICT_FIFO:
            state.is_stopped = True
        return None

    def finish(self) -> dict[JobId, Waiting | NeedsPreemption]:
        """Return the verdicts of all who did not start."""
        explainer = Explainer(self._trial)
        verdicts: dict[JobId, Waiting | NeedsPreemption] = {}
        for blocked in self._blocked:
            workload = blocked.entry.workload
            waiting = explainer.explain(blocked)
            verdicts[workload.job_id] = waiting
            need = self._needs.get(workload.job_id)
            if need is not None:
                plan, placement = need
                verdicts[workload.job_id] = NeedsPreemption(
                    job_id=workload.job_id,
                    version=workload.version,
                    receipts=tuple(make_receipt(workload, each) for each in plan.victims),
                    placement=placement,
                    reason=waiting.reason,
                    counts=waiting.counts,
                    position=blocked.position,
                )
        return verdicts

    def _find_plan(
        self, workload: Workload, kind: tuple[object, ...] | None, state: _QueueState
    ) -> Plan | None:
        """Return a plan with victims; one search a class and priority that finds none is enough."""
        rank = None if kind is None else (kind, workload.priority, workload.preempts_others)
        if rank is not None and rank in state.hopeless:
            return None
        plan = self._victims.find_plan(workload)
        if plan is None and rank is not None:
            state.hopeless.add(rank)
        return plan

    def _place(self, entry: Entry, found: Found, position: int) -> Placed:
        self._trial.note_started(entry.workload, found)
        return self._make_placed(entry, found, position)

    def _promise(self, entry: Entry, plan: Plan, position: int) -> None:
        workload = entry.workload
        if plan.victims:
            self._needs[workload.job_id] = (plan, self._make_placed(entry, plan.found, position))
        self._victims.promise(workload, plan)
        self._blocked.append(Blocked(entry, position, waits_for_stopping=not plan.victims))

    # Verdicts.

    def _make_placed(self, entry: Entry, found: Found, position: int) -> Placed:
        """Return the verdict for a place that was found."""
        workload = entry.workload
        fleet = self._trial.benches[found.bench_index].fleet
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
                workload, fleet, found.spots, self._trial.policy.placement.value, notes
            ),
        )


def _is_final(refusal: QuotaRefusal | None) -> bool:
    return refusal is not None and refusal.is_final


def _kind(workload: Workload) -> tuple[object, ...] | None:
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
