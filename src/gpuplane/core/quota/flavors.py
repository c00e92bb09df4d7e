"""Which flavor each resource of a workload takes: in order, borrowing and preempting as allowed.

Owns Kueue's flavor assignment and fungibility. Whether a flavor suits the workload's selector and
tolerations is the caller's predicate; whether evicting would help is the oracle's answer.

Source: kubernetes-sigs/kueue, pkg/scheduler/flavorassigner/flavorassigner.go.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from gpuplane.core.quota.nodes import available, find_lowest_fit
from gpuplane.core.quota.specs import (
    ClusterQueueSpec,
    FlavorFungibility,
    FlavorFungibilityPolicy,
    FlavorPreference,
    FlavorResource,
    ResourceGroup,
)
from gpuplane.core.quota.tree import QuotaTree, Usage
from gpuplane.core.quota.verdicts import describe_pair_amount, may_evict_someone, may_seek_victims
from gpuplane.core.quota.victims import Oracle, PreemptionPossibility
from gpuplane.core.reasons import Reason, Word

ANY_FLAVOR = "any"
"""The flavor under which a queue that covers everything counts usage."""

SEVERITY = {
    Word.QUOTA_EXCEEDED: 0,
    Word.REQUEST_EXCEEDS_QUOTA: 1,
    Word.SELECTOR: 2,
    Word.NO_QUOTA_FOR_MODEL: 3,
}
"""How far a flavor is from doing, by why it does not; the mildest over the flavors is told."""


class FlavorMode(IntEnum):
    """How a flavor can be had; greater is better."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    """Preemption is allowed, and nobody was found to evict."""
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


@dataclass(frozen=True, slots=True)
class FlavorAttempt:
    """What came of trying one flavor of one resource group.

    Args:
        borrow_level: How far up the cohort tree its quota comes from; 0 is the queue's own.
        reason: Why it does not simply fit, or None when it does.
    """

    flavor: str
    mode: FlavorMode
    borrow_level: int
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class FlavorAssignment:
    """A flavor for every resource, or the reason why there is none.

    Args:
        mode: The worst mode over all resources.
        flavors: By resource; empty when some resource finds no flavor.
        usage: The request in those flavors, ready for `QuotaTree.fits` and `add_usage`.
        last_tried: By resource, where the next search should go on (see `assign_flavors`).
        reason: The dominant reason when the mode is not `FIT`.
    """

    mode: FlavorMode
    flavors: Mapping[str, str]
    usage: Usage
    borrow_level: int
    last_tried: Mapping[str, int]
    attempts: tuple[FlavorAttempt, ...]
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class _Tried:
    """One flavor for a whole resource group: the rank of its worst resource, the highest level."""

    flavor: str
    mode: FlavorMode
    rank_level: int
    borrow_level: int
    reason: Reason | None


_Ranked = tuple[FlavorMode, int]
"""Mode and borrowing level: what two flavors are compared by."""


def assign_flavors(
    tree: QuotaTree,
    cluster_queue: str,
    request: Mapping[str, int],
    *,
    suits: Callable[[str], bool] | None = None,
    explain: Callable[[str], Reason] | None = None,
    oracle: Oracle | None = None,
    assumed: Usage | None = None,
    last_tried: Mapping[str, int] | None = None,
) -> FlavorAssignment:
    """Choose a flavor for every resource of a request, group by group, in the queue's order.

    Args:
        tree: Quotas and usage; not changed.
        cluster_queue: The queue whose flavors are tried.
        request: By resource, total over all replicas.
        suits: Tells whether a flavor satisfies the workload's selector and tolerations; by
            default every flavor does.
        explain: Says why a flavor does not suit, as a word of `SEVERITY`; by default it is the
            selector or a toleration.
        oracle: Answers whether evicting helps, usually `plan_oracle`; without it the policies
            alone decide.
        assumed: Usage already chosen for other parts of the same workload.
        last_tried: What the assignment before returned, to go on with the next flavor; -1 or
            absent starts from the first.

    Raises:
        ValueError: If the queue is unknown or an amount is below 0.
    """
    spec = tree.get_spec(cluster_queue)
    for resource, amount in request.items():
        if amount < 0:
            raise ValueError(f"request of {resource} is below 0: {amount}")
    if spec.covers_everything:
        return _assign_anything(request)
    search = _Search(tree, spec, suits, explain or _unsuited, oracle, assumed or {})
    flavors: dict[str, str] = {}
    tried_up_to: dict[str, int] = {}
    attempts: list[FlavorAttempt] = []
    mode, level = FlavorMode.FIT, 0
    reason: Reason | None = None
    for resource in sorted(request):
        if resource in flavors:
            continue
        group = spec.find_group(resource)
        if group is None:
            if request[resource] == 0:
                continue
            return _refused(attempts, _not_offered(cluster_queue, resource))
        wanted = {name: request[name] for name in group.covered_resources if name in request}
        start = (last_tried or {}).get(resource, -1) + 1
        best, reached, tries = search.find_flavor(group, wanted, start)
        attempts += [FlavorAttempt(t.flavor, t.mode, t.borrow_level, t.reason) for t in tries]
        if best is None:
            return _refused(attempts, _group_reason(cluster_queue, resource, tries))
        flavors.update(dict.fromkeys(wanted, best.flavor))
        tried_up_to.update(dict.fromkeys(wanted, reached))
        level = max(level, best.borrow_level)
        if best.mode < mode:
            mode, reason = best.mode, best.reason
    usage = {FlavorResource(flavor, name): request[name] for name, flavor in flavors.items()}
    return FlavorAssignment(mode, flavors, usage, level, tried_up_to, tuple(attempts), reason)


class _Search:
    def __init__(
        self,
        tree: QuotaTree,
        spec: ClusterQueueSpec,
        suits: Callable[[str], bool] | None,
        explain: Callable[[str], Reason],
        oracle: Oracle | None,
        assumed: Usage,
    ) -> None:
        self.tree = tree
        self.spec = spec
        self.suits = suits
        self.explain = explain
        self.oracle = oracle
        self.assumed = assumed
        self.node = tree.queue_node(spec.name)

    def find_flavor(
        self, group: ResourceGroup, wanted: Mapping[str, int], start: int
    ) -> tuple[_Tried | None, int, list[_Tried]]:
        """Return the best flavor, where the search stopped (-1 at the end), and every attempt."""
        best: _Tried | None = None
        tries: list[_Tried] = []
        fungibility = self.spec.flavor_fungibility
        reached = -1
        for index in range(start, len(group.flavors)):
            reached = index
            flavor = group.flavors[index]
            if self.suits is not None and not self.suits(flavor):
                tries.append(_Tried(flavor, FlavorMode.NO_FIT, 0, 0, self.explain(flavor)))
                continue
            tried = self._try_flavor(flavor, wanted)
            tries.append(tried)
            if not _try_next(tried, fungibility):
                best = tried
                break
            if best is None:
                best = tried if tried.mode is not FlavorMode.NO_FIT else None
            elif _is_preferred(_rank(tried), _rank(best), fungibility):
                best = tried
        return best, -1 if reached == len(group.flavors) - 1 else reached, tries

    def _try_flavor(self, flavor: str, wanted: Mapping[str, int]) -> _Tried:
        """Return the worst mode over the resources of the group in one flavor."""
        worst: _Ranked = (FlavorMode.FIT, 0)
        highest = 0
        reason: Reason | None = None
        for resource in sorted(wanted):
            mode, level, why = self._fit(FlavorResource(flavor, resource), wanted[resource])
            highest = max(highest, level)
            if _is_preferred(worst, (mode, level), self.spec.flavor_fungibility):
                worst = (mode, level)
                reason = why or reason
        return _Tried(flavor, worst[0], worst[1], highest, reason)

    def _fit(self, pair: FlavorResource, amount: int) -> tuple[FlavorMode, int, Reason | None]:
        """Return how one flavor-resource can be had, from how far up, and what is short."""
        cell = self.node.cells[pair]
        total = amount + self.assumed.get(pair, 0)
        asked = describe_pair_amount(pair, total)
        if total > cell.potential:
            most = describe_pair_amount(pair, cell.potential)
            sentence = f"Asks for {asked}; queue {self.spec.name} can use at most {most}."
            return FlavorMode.NO_FIT, 0, Reason(Word.REQUEST_EXCEEDS_QUOTA, sentence)
        level = find_lowest_fit(cell, total)[0].height
        free = max(0, available(cell))
        if total <= free:
            return FlavorMode.FIT, level, None
        more = describe_pair_amount(pair, total - free)
        sentence = f"Asks for {asked}; queue {self.spec.name} needs {more} more unused."
        reason = Reason(Word.QUOTA_EXCEEDED, sentence)
        if not may_seek_victims(self.spec.preemption, cell, total, self.tree.mode):
            return FlavorMode.NO_FIT, level, reason
        if self.oracle is None:
            somebody = may_evict_someone(self.spec.preemption, cell)
            return FlavorMode.PREEMPT if somebody else FlavorMode.NO_CANDIDATES, level, reason
        possibility, level_after = self.oracle(pair, total)
        return _MODES[possibility], level_after, reason


_MODES = {
    PreemptionPossibility.NO_CANDIDATES: FlavorMode.NO_CANDIDATES,
    PreemptionPossibility.PREEMPT: FlavorMode.PREEMPT,
    PreemptionPossibility.RECLAIM: FlavorMode.RECLAIM,
}


def _rank(tried: _Tried) -> _Ranked:
    return tried.mode, tried.rank_level


def _is_preferred(one: _Ranked, other: _Ranked, fungibility: FlavorFungibility) -> bool:
    """Tell whether one way to have a flavor is better than another."""
    (one_mode, one_level), (other_mode, other_level) = one, other
    if FlavorMode.NO_FIT in (one_mode, other_mode):
        return one_mode is not FlavorMode.NO_FIT
    # Nobody to evict means no admission in this cycle, whatever the preference.
    one_stuck = one_mode is FlavorMode.NO_CANDIDATES
    other_stuck = other_mode is FlavorMode.NO_CANDIDATES
    if one_stuck != other_stuck:
        return other_stuck
    if fungibility.preference is FlavorPreference.PREEMPTION_OVER_BORROWING:
        return (one_level, -one_mode) < (other_level, -other_mode)
    return (-one_mode, one_level) < (-other_mode, other_level)


def _try_next(tried: _Tried, fungibility: FlavorFungibility) -> bool:
    """Tell whether the search goes on although this flavor may do."""
    if tried.mode in (FlavorMode.NO_FIT, FlavorMode.NO_CANDIDATES):
        return True
    try_next = FlavorFungibilityPolicy.TRY_NEXT_FLAVOR
    if tried.mode is not FlavorMode.FIT and fungibility.when_can_preempt is try_next:
        return True
    return tried.rank_level > 0 and fungibility.when_can_borrow is try_next


def _assign_anything(request: Mapping[str, int]) -> FlavorAssignment:
    flavors = dict.fromkeys(sorted(request), ANY_FLAVOR)
    usage = {FlavorResource(ANY_FLAVOR, name): request[name] for name in flavors}
    return FlavorAssignment(FlavorMode.FIT, flavors, usage, 0, {}, ())


def _refused(attempts: list[FlavorAttempt], reason: Reason) -> FlavorAssignment:
    return FlavorAssignment(FlavorMode.NO_FIT, {}, {}, 0, {}, tuple(attempts), reason)


def _unsuited(flavor: str) -> Reason:
    return Reason(Word.SELECTOR, f"Flavor {flavor} does not match the selector or tolerations.")


def _not_offered(cluster_queue: str, resource: str) -> Reason:
    sentence = f"Queue {cluster_queue} has no quota for {resource}."
    fix = "Submit to a queue that covers it, or have a quota added."
    return Reason(Word.REQUEST_EXCEEDS_QUOTA, sentence, fix)


def _group_reason(cluster_queue: str, resource: str, tries: list[_Tried]) -> Reason:
    """Return the mildest reason over the flavors: any one of them would have done."""
    reasons = [tried.reason for tried in tries if tried.reason is not None]
    if not reasons:
        return _not_offered(cluster_queue, resource)
    return min(reasons, key=lambda reason: SEVERITY[reason.word])
