"""Judges one workload after another: place it, stop others for it, or let it wait.

Owns what happens when a workload's turn comes and what its queue does after it was blocked.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import JobId
from gpuplane.core.quota.specs import QueueingStrategy
from gpuplane.core.scheduling.admission import Grant, QuotaRefusal
from gpuplane.core.scheduling.decisions import (
    NeedsPreemption,
    NeedsRepartition,
    Placed,
    QuotaUse,
    ReplicaPlacement,
    Verdict,
    Waiting,
)
from gpuplane.core.scheduling.explain import explain_placement
from gpuplane.core.scheduling.heads import HeadKeeper
from gpuplane.core.scheduling.hints import explain_hint
from gpuplane.core.scheduling.ordering import Entry, describe_boosts
from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.repartition import Recut, RepartitionSearch
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.victims import Plan, VictimSearch, make_receipt
from gpuplane.core.scheduling.waiting import Blocked, Explainer, Said
from gpuplane.core.scheduling.workload import Workload


@dataclass(slots=True)
class _QueueState:
    is_stopped: bool = False


_Outcome = Placed | Blocked | Entry
"""An entry by itself waits for the same reason as one of its queue and kind before it."""


class Judge:
    """Gives verdicts in the order of turns; `finish` explains those who wait."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._victims = VictimSearch(trial)
        self._cuts = RepartitionSearch(trial)
        self._recuts: dict[JobId, Recut] = {}
        self._queues: dict[str, _QueueState] = {}
        self._outcomes: list[_Outcome] = []
        self._full: set[Hashable] = set()
        self._refused: set[Hashable] = set()
        self._needs: dict[JobId, tuple[Plan, Placed]] = {}
        self._heads = HeadKeeper(trial)

    def consider_all(self, entries: Iterable[Entry]) -> None:
        """Consider entries in their turns: each is placed, or waits."""
        outcomes, refused = self._outcomes, self._refused
        for entry in entries:
            if entry.rank in refused:
                outcomes.append(entry)
            else:
                outcomes.append(self._consider(entry, len(outcomes)))

    def _consider(self, entry: Entry, position: int) -> _Outcome:
        workload = entry.workload
        state = self._queues.setdefault(workload.queue, _QueueState())
        if state.is_stopped:
            reserved = self._trial.find_reserved(workload)
            return entry if reserved is None else self._place(entry, reserved, position)
        is_known = entry.place is not None and entry.place in self._full
        refusal: QuotaRefusal | None = None
        if not is_known:
            found = self._find_place(entry)
            if isinstance(found, Found):
                return self._place(entry, found, position)
            refusal = found
            if entry.place is not None:
                # Room only shrinks within a cycle: what found none will find none.
                self._full.add(entry.place)
        blocked = self._hold_back(entry, position, refusal, is_known=is_known)
        spec = self._trial.admission.tree.get_spec(workload.queue)
        if spec.queueing_strategy is QueueingStrategy.STRICT_FIFO:
            state.is_stopped = True
        elif entry.rank in self._refused and blocked.is_plain:
            return entry
        return blocked

    def _hold_back(
        self, entry: Entry, position: int, refusal: QuotaRefusal | None, *, is_known: bool
    ) -> Blocked:
        """Let others make room for a workload that finds none, or let it wait."""
        # Cutting a GPU anew loses nothing, so it goes before stopping anyone.
        if entry.workload.resources.mig_profile is not None:
            cut = self._cut_for(entry, position)
            if cut is not None:
                return cut
        plan = self._find_plan(entry)
        if plan is not None:
            return self._promise(entry, plan, position)
        if entry.rank is not None:
            self._refused.add(entry.rank)
        starts_at = None
        if not is_known and not _is_final(refusal):
            starts_at = self._heads.keep_place(entry.workload)
        return Blocked(entry, position, starts_at=starts_at)

    def _find_place(self, entry: Entry) -> Found | QuotaRefusal | None:
        """Find and count a place; what the quotas refused at this usage is not asked again."""
        trial, workload = self._trial, entry.workload
        if needed_replicas(workload.replicas) == workload.replicas.count:
            answer = trial.answers.first(entry, trial.changes)
            if isinstance(answer, QuotaRefusal):
                return trial.find_reserved(workload) or answer
            if isinstance(answer, Grant) and trial.is_full(workload, entry.kind, answer):
                return trial.find_reserved(workload)
        return trial.find_place(workload, entry.kind)

    def finish(self) -> list[Verdict]:
        """Return the verdicts of all who were considered, in the order of their turns."""
        explainer = Explainer(self._trial)
        stopped = {name for name, state in self._queues.items() if state.is_stopped}
        alike: dict[Hashable, Said] = {}
        verdicts: list[Verdict] = []
        for position, outcome in enumerate(self._outcomes):
            if type(outcome) is Entry:
                is_behind = bool(stopped) and outcome.workload.queue in stopped
                key = outcome.workload.queue if is_behind else outcome.place
                said = alike.get(key)
                if said is None:
                    said = alike[key] = explainer.explain_alike(outcome, is_behind=is_behind)
                waiting = outcome.waiting
                # The verdict of the cycle before is given again where nothing in it changed.
                if (
                    waiting is None
                    or waiting.position != position
                    or waiting.reason is not said[0]
                    or waiting.counts is not said[1]
                ):
                    workload = outcome.workload
                    waiting = outcome.waiting = Waiting(
                        workload.job_id, workload.version, said[0], said[1], position
                    )
                verdicts.append(waiting)
            elif type(outcome) is Blocked:
                verdicts.append(self._explain(explainer, outcome))
            elif isinstance(outcome, Placed):
                verdicts.append(outcome)
        return verdicts

    def _explain(self, explainer: Explainer, blocked: Blocked) -> Verdict:
        workload = blocked.entry.workload
        waiting = explainer.explain(blocked)
        recut = self._recuts.get(workload.job_id)
        if recut is not None:
            return NeedsRepartition(
                job_id=workload.job_id,
                version=workload.version,
                cluster_id=recut.cluster_id,
                changes=recut.changes,
                reason=waiting.reason,
                counts=waiting.counts,
                position=blocked.position,
            )
        need = self._needs.get(workload.job_id)
        if need is None:
            return waiting
        plan, placement = need
        return NeedsPreemption(
            job_id=workload.job_id,
            version=workload.version,
            receipts=tuple(make_receipt(workload, each) for each in plan.victims),
            placement=placement,
            reason=waiting.reason,
            counts=waiting.counts,
            position=blocked.position,
        )

    def _cut_for(self, entry: Entry, position: int) -> Blocked | None:
        """Keep what GPUs cut anew give to a workload; None where no cut helps it."""
        workload = entry.workload
        underway = self._cuts.find_underway(workload)
        if underway:
            self._trial.changes += 1
            self._cuts.keep(workload, underway)
            return Blocked(entry, position, cut=underway, is_cutting=True)
        plan = self._cuts.find_plan(workload)
        if plan is None:
            return None
        self._trial.changes += 1
        self._cuts.promise(workload, plan)
        self._recuts[workload.job_id] = plan
        return Blocked(entry, position, cut=plan.changes)

    def _find_plan(self, entry: Entry) -> Plan | None:
        """Return a plan with victims; one search a rank that finds none is enough."""
        if entry.rank is not None and entry.rank in self._refused:
            return None
        return self._victims.find_plan(entry.workload)

    def _place(self, entry: Entry, found: Found, position: int) -> Placed:
        self._trial.note_started(entry.workload, found)
        return self._make_placed(entry, found, position, self._explain_hint(entry.workload, found))

    def _explain_hint(self, workload: Workload, found: Found) -> list[str]:
        """Return what a prediction did to the score of a place that is counted now."""
        if workload.hint is None:
            return []
        bench, bound = self._trial.benches[found.bench_index], self._trial.policy.hint_points
        need = bench.row(workload).need
        said = explain_hint(workload.hint, need, bench.fleet, found.spots.takes, bound)
        return [] if said is None else [said]

    def _promise(self, entry: Entry, plan: Plan, position: int) -> Blocked:
        workload = entry.workload
        self._trial.changes += 1
        if plan.victims:
            self._needs[workload.job_id] = (plan, self._make_placed(entry, plan.found, position))
        self._victims.promise(workload, plan)
        return Blocked(entry, position, waits_for_stopping=not plan.victims)

    # Verdicts.

    def _make_placed(
        self, entry: Entry, found: Found, position: int, hints: Sequence[str] = ()
    ) -> Placed:
        """Return the verdict for a place that was found."""
        workload = entry.workload
        fleet = self._trial.benches[found.bench_index].fleet
        notes = [f"Place {position + 1} in the order, priority {workload.priority.value}."]
        notes += describe_boosts(workload, self._trial.policy.boosts, self._trial.now)
        notes += hints
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
