"""Judges one workload after another: place it, stop others for it, or let it wait.

Owns what happens when a workload's turn comes and what its queue does after it was blocked.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from gpuplane.core.fleet.columns import Bools, Fleet, Take
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import JobId
from gpuplane.core.quota.specs import QueueingStrategy
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.admission import Grant, QuotaRefusal
from gpuplane.core.scheduling.answers import Flags
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
from gpuplane.core.scheduling.lineup import Lineup
from gpuplane.core.scheduling.ordering import Entry, describe_boosts
from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.pools import Numbers
from gpuplane.core.scheduling.repartition import Recut, RepartitionSearch
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.turns import Turns
from gpuplane.core.scheduling.victims import Plan, VictimSearch, make_receipt
from gpuplane.core.scheduling.waiting import Blocked, Explainer, Said
from gpuplane.core.scheduling.workload import Workload

AT_ONCE = 1024
"""Workloads looked at together: usage may change, and the order with it, before all are."""

_SAID_ELSEWHERE: Said = Reason(Word.BEHIND_HEAD, ""), ()
"""Of those with a verdict of their own, which takes the place of the one made for all."""

_Outcome = Placed | Blocked | None
"""None waits for the same reason as one of its queue and kind before it."""


_make_waiting: Callable[[Iterable[object]], Waiting] = partial(tuple.__new__, Waiting)
"""Makes a verdict from its fields in order: as `Waiting._make`, in half of the time."""


class Judge:
    """Gives verdicts in the order of turns; `finish` explains those who wait.

    Attributes:
        counts: After `finish`: verdicts by kind, and those that wait by their word.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._victims = VictimSearch(trial)
        self._cuts = RepartitionSearch(trial)
        self._recuts: dict[JobId, Recut] = {}
        self._stopped: set[str] = set()
        self._full: set[Hashable] = set()
        self._refused: set[Hashable] = set()
        self._needs: dict[JobId, tuple[Plan, Placed]] = {}
        self._heads = HeadKeeper(trial)
        self._lineup: Lineup | None = None
        self._taken: list[Numbers] = []
        self._count = 0
        self._outcomes: dict[int, Placed | Blocked] = {}
        self.counts: Counter[str] = Counter()

    def consider_all(self, lineup: Lineup, turns: Turns, first: Sequence[int] = ()) -> None:
        """Consider everyone lined up, in their turns: each is placed, or waits.

        Args:
            lineup: Who is considered.
            turns: In which order.
            first: The places in the line-up of those who come before all others.
        """
        self._lineup = lineup
        self._idle = Flags(int(lineup.askers.max(initial=0)) + 2)
        self._hopeless = Flags(lineup.fate_count + 1)
        for index in first:
            self._take(lineup, index)
        if first:
            turns.leave_out(list(first))
        if turns.is_fair:
            for index in turns.iterate_fairly(self._trial.first_choice):
                self._take(lineup, index)
            return
        while turns.refresh(self._trial.changes):
            self._take_some(lineup, turns)

    def _take_some(self, lineup: Lineup, turns: Turns) -> None:
        """Consider those whose turns are next, until usage changes."""
        changes, passed = self._trial.changes, turns.passed
        for place, index in self._list_open(lineup, turns):
            self._pass(turns.order[passed:place])
            self._take(lineup, index)
            turns.passed = passed = place + 1
            if self._trial.changes != changes:
                return
        self._pass(turns.order[passed:])
        turns.passed = len(turns.order)

    def _pass(self, some: Numbers) -> None:
        """Let these have their turns without asking them."""
        if len(some):
            self._taken.append(some)
            self._count += len(some)

    def _list_open(self, lineup: Lineup, turns: Turns) -> Iterator[tuple[int, int]]:
        """Yield the places in the order, and in the line-up, of those who may not just wait."""
        idle, hopeless = self._idle.each, self._hopeless.each
        questions = lineup.questions
        refused = questions.refused.each
        for begin in range(turns.passed, len(turns.order), AT_ONCE):
            window = turns.order[begin : begin + AT_ONCE]
            some = np.flatnonzero(~self._find_settled(lineup, window))
            if not len(some):
                continue
            indices = window[some]
            askers, fates = lineup.askers[indices].tolist(), lineup.fates[indices].tolist()
            asked = questions.of[indices].tolist()
            for number, index in enumerate(indices.tolist()):
                # Some are settled by what was found out about those before them.
                if idle[askers[number]] and (refused[asked[number]] or hopeless[fates[number]]):
                    continue
                yield begin + int(some[number]), index

    def _find_settled(self, lineup: Lineup, places: Numbers) -> Bools:
        """Return who of these just waits: no place to find, and nothing else to be tried.

        Room and quota only shrink within a cycle, so what is settled stays so.
        """
        questions = lineup.questions
        questions.refresh(self._trial.changes)
        nowhere = questions.refused.column[questions.of[places]]
        nowhere |= self._hopeless.column[lineup.fates[places]]
        return np.asarray(self._idle.column[lineup.askers[places]] & nowhere)

    def _take(self, lineup: Lineup, index: int) -> None:
        entry, position = lineup.entry(index), self._count
        self._pass(np.array([index]))
        if entry.rank in self._refused:
            return
        outcome = self._consider(entry, position)
        if outcome is not None:
            self._outcomes[position] = outcome
        if entry.asker is None or isinstance(outcome, Placed):
            return
        asker = int(lineup.askers[index])
        if not self._idle.each[asker]:
            self._idle.each[asker] = self._may_just_wait(entry.workload)
        answer = self._trial.answers.first(entry, self._trial.changes)
        if isinstance(answer, Grant) and self._trial.is_full(entry.workload, entry.kind, answer):
            self._hopeless.each[lineup.fates[index]] = True

    def _may_just_wait(self, workload: Workload) -> bool:
        """Tell whether nothing is tried for those of an asker who find no place."""
        spec = self._trial.admission.tree.get_spec(workload.queue)
        return (
            spec.queueing_strategy is QueueingStrategy.BEST_EFFORT_FIFO
            and self._victims.is_hopeless(workload)
            and not self._heads.may_keep(workload.queue)
        )

    def _consider(self, entry: Entry, position: int) -> _Outcome:
        workload = entry.workload
        if workload.queue in self._stopped:
            reserved = self._trial.find_reserved(workload)
            return None if reserved is None else self._place(entry, reserved, position)
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
            self._stopped.add(workload.queue)
        elif entry.rank in self._refused and blocked.is_plain:
            return None
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
        lineup = self._lineup
        if lineup is None or not self._taken:
            return []
        order = np.concatenate(self._taken)
        groups = self._find_groups(lineup, order)
        groups[list(self._outcomes)] = -1
        firsts = np.full(int(groups.max(initial=0)) + 2, -1, dtype=np.int64)
        firsts[groups[::-1]] = np.arange(len(groups) - 1, -1, -1)
        firsts[-1] = -1
        explainer = Explainer(self._trial)
        special: dict[int, Verdict] = {}
        said = {-1: _SAID_ELSEWHERE}
        # In the order of turns: of equals it is the first that is looked at.
        for position in sorted([*self._outcomes, *firsts[firsts >= 0].tolist()]):
            outcome = self._outcomes.get(position)
            if outcome is None:
                entry = lineup.entry(int(order[position]))
                is_behind = entry.workload.queue in self._stopped
                said[int(groups[position])] = explainer.explain_alike(entry, is_behind=is_behind)
            elif isinstance(outcome, Blocked):
                special[position] = self._explain(explainer, outcome)
            else:
                special[position] = outcome
        job_ids, versions = lineup.list_jobs(order)
        names = groups.tolist()
        reasons = {group: reason for group, (reason, _) in said.items()}
        refused = {group: counts for group, (_, counts) in said.items()}
        fields = zip(
            job_ids.tolist(),
            versions,
            map(reasons.__getitem__, names),
            map(refused.__getitem__, names),
            range(len(names)),
            strict=True,
        )
        verdicts: list[Verdict] = list(map(_make_waiting, fields))
        for position, verdict in special.items():
            verdicts[position] = verdict
        self._tally(groups, said, special.values())
        return verdicts

    def _tally(self, groups: Numbers, said: Mapping[int, Said], special: Iterable[Verdict]) -> None:
        """Count the verdicts by kind, and the waiting ones by their word."""
        counts = np.bincount(groups[groups >= 0])
        for group in np.flatnonzero(counts).tolist():
            self.counts[Waiting.__name__] += int(counts[group])
            self.counts[said[group][0].word.value] += int(counts[group])
        for verdict in special:
            self.counts[type(verdict).__name__] += 1
            if isinstance(verdict, Waiting):
                self.counts[verdict.reason.word.value] += 1

    def _find_groups(self, lineup: Lineup, order: Numbers) -> Numbers:
        """Return a number for each who waits: those of the same number are told the same."""
        questions = lineup.questions
        questions.refresh(self._trial.changes)
        asked, kinds = questions.of[order], lineup.kinds[order]
        count = len(questions.levels)
        groups = np.where(questions.refused.column[asked], asked, count + kinds)
        count += int(kinds.max(initial=0)) + 1
        alone: dict[Hashable, int] = {}
        is_behind = np.array([name in self._stopped for name in lineup.queues], dtype=np.bool_)
        groups = np.where(is_behind[lineup.lines[order]], count + lineup.lines[order], groups)
        count += len(lineup.queues)
        # Fewer replicas may do for them than the question was about.
        for position in np.flatnonzero(lineup.askers[order] < 0).tolist():
            entry = lineup.entry(int(order[position]))
            if entry.workload.queue not in self._stopped:
                groups[position] = count + alone.setdefault(entry.place, len(alone))
        return groups

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
