"""The smallest change that would place one workload, found by asking the filters again.

Owns the search: each single change in turn, then pairs of them where no single one helps, then a
change of the queue's limits. Each is placed on trial against what is free now. Nothing is
guessed: a change is named only if it works.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import combinations

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.quota.specs import GPU, FlavorResource, ResourceQuota
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.bench import expected_s
from gpuplane.core.scheduling.changes import CHANGES, Amount, Choice, Variant
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import NeedsPreemption, Waiting
from gpuplane.core.scheduling.gates import find_gate
from gpuplane.core.scheduling.ordering import compute_entry
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.protection import find_opening
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.waiting import Blocked, Explainer
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import WindowEnd

MAX_PAIR_TRIES = 400
"""Placements tried for pairs of changes: bounds the answer to a question. A pair on 5,000 nodes
was found in 40 ms of one core."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change that would let it start now, or two that would together.

    Args:
        field: The field of the job specification to change, such as `resources.gpu_count`, or of
            its queue.
        before: Its value now, as text.
        after: The value that works.
        node_name: The node its first replica would go to.
        also: The change that is needed beside this one, or None; its sentence is this one's.
    """

    field: str
    before: str
    after: str
    sentence: str
    node_name: str
    also: "Change | None" = None


@dataclass(frozen=True, slots=True)
class Why:
    """Why a workload waits and what would change it.

    Args:
        waiting: Its verdict if it were alone in the queue; None when it would start now.
        changes: Smallest first; pairs only when no single change helps; empty when no pair does.
    """

    waiting: Waiting | None
    changes: tuple[Change, ...]


def explain_workload(
    snapshot: Snapshot, workload: Workload, policy: Policy, now: int, seed: int
) -> Why:
    """Return why a workload does not start now, alone in the queue, and what would change that.

    Args:
        snapshot: What is running and free; what else is pending is not considered.
        workload: The workload in question; it need not be in the snapshot.
        policy: The scheduler's policy.
        now: The instant of the question, in ms.
        seed: As for `decide`.
    """
    alone = replace(snapshot, pending=(workload,))
    with Trial(alone, policy, now, seed) as trial:
        gate = find_gate(workload, snapshot, trial.admission, now)
        if gate is not None:
            waiting = Waiting(workload.job_id, workload.version, gate, (), 0)
            return Why(waiting, tuple(_open_gate(trial, workload, gate, now)))
        search = _Search(trial, workload)
        if search.probe(workload) is not None:
            return Why(None, ())
        entry = compute_entry(workload, policy.boosts, now)
        waiting = Explainer(trial).explain(Blocked(entry, 0))
        changes = list(search.list_single())
        if not changes:
            changes = list(search.list_pairs())
    borrowed = _borrow(alone, workload, policy, now, seed)
    if borrowed is not None:
        changes.append(borrowed)
    return Why(waiting, tuple(changes))


def explain_limit(
    snapshot: Snapshot, workload: Workload, policy: Policy, now: int, seed: int
) -> Reason | None:
    """Return what is told of a workload that only the limit of the hour keeps from stopping others.

    Args:
        snapshot: What is running and free; what else is pending is not considered.
        workload: What waits.
        policy: The scheduler's policy.
        now: The instant of the question, in ms.
        seed: As for `decide`.

    Returns:
        The reason with the dominant word, or None where no limit is in the way.
    """
    most = policy.preemption.per_cluster_hour
    spent = {each: n for each, n in snapshot.preempted_last_hour.items() if n >= most}
    if not spent:
        return None
    without = replace(policy, preemption=replace(policy.preemption, per_cluster_hour=1 << 30))
    verdict = decide(replace(snapshot, pending=(workload,)), without, now, seed).verdicts[0]
    if not isinstance(verdict, NeedsPreemption) or verdict.placement.cluster_id not in spent:
        return None
    cluster, count = verdict.placement.cluster_id, len(verdict.receipts)
    them = _count_text(count)
    said = (
        f"{verdict.reason.sentence} It could start in place of {them} of lower priority, but the "
        f"cluster's limit of preemptions in an hour is reached ({spent[cluster]} of {most})"
    )
    leave = snapshot.preemptions_leave_at.get(cluster, ())[spent[cluster] - most :]
    if not leave:
        return Reason(verdict.reason.word, f"{said}.", "Wait, or have the limit raised.")
    at = _instant_text(leave[0])
    return Reason(
        verdict.reason.word,
        f"{said}; the next is possible from {at} on.",
        f"Wait until {at}: the limit of preemptions in an hour is reached "
        f"({spent[cluster]} of {most}), and then {them} of lower priority may be stopped for it; "
        "or have the limit raised.",
    )


def explain_protection(
    snapshot: Snapshot, workload: Workload, policy: Policy, now: int, seed: int
) -> Reason | None:
    """Return what is told of a workload that only waits for others to be old enough to be stopped.

    Args:
        snapshot: What is running and free; what else is pending is not considered.
        workload: What waits, and has nobody stopped now.
        policy: The scheduler's policy.
        now: The instant of the question, in ms.
        seed: As for `decide`.

    Returns:
        The reason with the dominant word, or None where the age of others is not in the way.
    """
    found = find_opening(snapshot, workload, policy, now, seed)
    if found is None:
        return None
    opening, verdict = found
    them, at = _count_text(len(opening.victims)), _instant_text(opening.at)
    young = f"which may not be stopped in the first {policy.preemption.min_run_s} s"
    return Reason(
        verdict.reason.word,
        f"{verdict.reason.sentence} It could start in place of {them} of lower priority, {young}: "
        f"possible from {at} on.",
        f"Wait until {at}: then {them} of lower priority may be stopped for it.",
    )


class _Search:
    """Tries changes to one workload in one trial."""

    def __init__(self, trial: Trial, workload: Workload) -> None:
        self._trial = trial
        self._workload = workload
        self._fleets = [each.fleet for each in trial.benches if trial.may_use(workload, each.fleet)]
        self._tries = 0

    def probe(self, workload: Workload) -> Found | None:
        """Return where a workload would go now, with nothing counted."""
        self._tries += 1
        with self._trial.undone():
            found = self._trial.find_place(workload)
        return found if isinstance(found, Found) else None

    def list_single(self) -> Iterator[Change]:
        """Yield every single change that works, the least loss to the user first."""
        for each in CHANGES:
            found = self._try(self._workload, each)
            if found is not None:
                yield self.name_change(*found)

    def list_pairs(self) -> Iterator[Change]:
        """Yield the first pair of changes that works together, if one does within the bound."""
        self._tries = 0
        order = range(len(CHANGES))
        for first, second in sorted(combinations(order, 2), key=lambda pair: (sum(pair), pair)):
            if self._tries >= MAX_PAIR_TRIES:
                return
            found = self._try_both(CHANGES[first], CHANGES[second])
            if found is not None:
                one, two, place = found
                beside = self.name_change(two, place)
                sentence = f"{one.sentence.removesuffix('.')}, and {_lower(two.sentence)}"
                yield replace(self.name_change(one, place), sentence=sentence, also=beside)
                return

    def _try(self, workload: Workload, change: Choice | Amount) -> tuple[Variant, Found] | None:
        """Return the first value of a field that works, or the largest smaller amount."""
        if isinstance(change, Choice):
            for variant in change.list_variants(workload, self._fleets):
                found = self.probe(variant.workload)
                if found is not None:
                    return variant, found
            return None
        now = change.get(workload)
        if now is None:
            return None
        low, high = 0, (now - 1 - change.least) // change.step
        if high < 0:
            return None
        best = self.probe(change.put(workload, change.least))
        if best is None:
            return None
        while low < high:
            middle = (low + high + 1) // 2
            found = self.probe(change.put(workload, change.least + middle * change.step))
            if found is not None:
                low, best = middle, found
            else:
                high = middle - 1
        return change.variant(workload, change.least + low * change.step), best

    def _try_both(
        self, first: Choice | Amount, second: Choice | Amount
    ) -> tuple[Variant, Variant, Found] | None:
        """Return a pair of changes that works, the second one as small as the first allows."""
        if isinstance(first, Amount) and isinstance(second, Choice):
            first, second = second, first
        for one in self._list_first(first):
            found = self._try(one.workload, second)
            if found is None:
                continue
            two, place = found
            if isinstance(first, Amount) and isinstance(second, Amount):
                # The first one was at its least; now as much of it as the second one leaves.
                least = int(str(two.after))
                again = self._try(second.put(self._workload, least), first)
                if again is not None:
                    one, place = again
            return one, two, place
        return None

    def _list_first(self, change: Choice | Amount) -> Iterator[Variant]:
        if isinstance(change, Choice):
            yield from change.list_variants(self._workload, self._fleets)
            return
        now = change.get(self._workload)
        if now is not None and now > change.least:
            yield change.variant(self._workload, change.least)

    def name_change(self, variant: Variant, found: Found) -> Change:
        """Return a change that works, with the node it leads to."""
        take = found.spots.takes[0]
        return Change(
            variant.field,
            str(variant.before),
            str(variant.after),
            variant.sentence,
            _fleet_of(self._trial, found).nodes[take.node].name,
        )


def _fleet_of(trial: Trial, found: Found) -> Fleet:
    return trial.benches[found.bench_index].fleet


def _count_text(jobs: int) -> str:
    return "1 running job" if jobs == 1 else f"{jobs} running jobs"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _open_gate(trial: Trial, workload: Workload, gate: Reason, now: int) -> Iterator[Change]:
    """Yield what would open a gate of time, if the workload then starts."""
    lasts_ms = (workload.estimated_duration_s or 0) * MS_PER_S
    variant: Variant | None = None
    if gate.word is Word.WINDOW_TOO_SHORT and workload.window is not None:
        kept = replace(workload.window, at_end=WindowEnd.CHECKPOINT)
        variant = Variant(
            "window.at_end",
            workload.window.at_end.value,
            WindowEnd.CHECKPOINT.value,
            "Let it write a checkpoint when the window closes, and go on in the next one.",
            replace(workload, window=kept),
        )
    elif gate.word is Word.DEADLINE and workload.deadline is not None:
        in_time = now + lasts_ms
        variant = Variant(
            "deadline",
            _instant_text(workload.deadline),
            _instant_text(in_time),
            f"Move its deadline to {_instant_text(in_time)}.",
            replace(workload, deadline=in_time),
        )
    if variant is None:
        return
    search = _Search(trial, variant.workload)
    if find_gate(variant.workload, trial.snapshot, trial.admission, now) is None:
        found = search.probe(variant.workload)
        if found is not None:
            yield search.name_change(variant, found)


def _borrow(
    snapshot: Snapshot, workload: Workload, policy: Policy, now: int, seed: int
) -> Change | None:
    """Return how much more its queue would have to borrow, and until when, if that places it.

    What is borrowed is unused quota of others in the cohort; they get it back when the workload
    ends, or sooner if they may reclaim it.
    """
    tree = snapshot.quotas
    spec = tree.get_spec(workload.queue)
    if spec.cohort is None or all(each.borrowing_limit is None for each in spec.quotas.values()):
        return None
    free = _without_limits(tree, workload.queue)
    with Trial(replace(snapshot, quotas=free), policy, now, seed) as trial:
        found = trial.find_place(workload)
        if not isinstance(found, Found):
            return None
        short = [
            (pair, free.borrowing(workload.queue, pair))
            for pair in sorted(found.grant.usage)
            if _exceeds(spec.quotas.get(pair), free.borrowing(workload.queue, pair))
        ]
        if not short:
            return None
        pair, needed = short[0]
        name = _fleet_of(trial, found).nodes[found.spots.takes[0].node].name
    limit = spec.quotas[pair].borrowing_limit or 0
    until = _instant_text(now + expected_s(workload, policy) * MS_PER_S)
    return Change(
        f"queue.borrowing_limit.{pair.flavor}.{pair.resource}",
        str(limit),
        str(needed),
        f"Let queue {workload.queue} borrow {_amount_text(pair, needed)} instead of "
        f"{_amount_text(pair, limit)} until {until}, when it is expected to end.",
        name,
    )


def _exceeds(quota: ResourceQuota | None, borrowed: int) -> bool:
    limit = None if quota is None else quota.borrowing_limit
    return limit is not None and borrowed > limit


def _without_limits(tree: QuotaTree, queue: str) -> QuotaTree:
    """Return the tree as it is but for the borrowing limits of one queue."""
    mode, queues, cohorts, doors = tree.declared
    changed = [
        each
        if each.name != queue
        else replace(
            each,
            quotas={pair: replace(one, borrowing_limit=None) for pair, one in each.quotas.items()},
        )
        for each in queues
    ]
    return QuotaTree(
        changed,
        cohorts,
        doors,
        usage={each.name: tree.usage_of(each.name) for each in queues},
        local_usage={each.key: tree.local_usage_of(each.key) for each in doors},
        mode=mode,
    )


def _amount_text(pair: FlavorResource, amount: int) -> str:
    if pair.resource == GPU:
        return f"{amount / 1000:g} GPUs of {pair.flavor}"
    return f"{amount} {pair.resource} of {pair.flavor}"


def _instant_text(at: int) -> str:
    """Return an instant to the minute above: what is told works then, too."""
    minute_ms = 60 * MS_PER_S
    return f"{datetime.fromtimestamp(-(-at // minute_ms) * 60, UTC):%Y-%m-%dT%H:%MZ}"
