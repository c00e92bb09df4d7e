"""Sets of victims that give quota and room at once, within the limit of the hour.

Owns two questions: whom of a set that was put together for quota and for nodes apart can be spared,
and which other set keeps the limit where Kueue's own plan would break it. Who may be stopped for
quota is decided by Kueue's plan over each set, for nodes by `NodeRights`; nothing is stopped here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from gpuplane.core.ids import ClusterId
from gpuplane.core.quota.preemption import AdmittedWorkload, is_within_nominal, uses_any
from gpuplane.core.quota.tree import Usage
from gpuplane.core.quota.victims import plan_preemption
from gpuplane.core.scheduling.pieces import Piece, SetSearch, thin_out
from gpuplane.core.scheduling.preemption import NodeRights, as_preemptor
from gpuplane.core.scheduling.room import MAX_THINNED, probe_place, release_parts
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.workload import Workload

MAX_SEARCHED = 16
"""Workloads among which the best set is searched: so many of the cheapest, and of the largest."""


class QuotaSets:
    """Judges sets that are to give quota and room, and looks for one that keeps the limits.

    The search is exact for at most `pieces.MAX_EXACT` workloads that may be stopped. Of more, as
    many of the largest as the limits leave are tried together and thinned out, then sets of the
    cheapest and the largest. What is found then keeps the limit and can spare nobody; a cheaper
    set may be missed.
    """

    def __init__(
        self,
        trial: Trial,
        workload: Workload,
        usage: Usage,
        admitted: Mapping[Piece, AdmittedWorkload],
        left: Mapping[ClusterId, int],
    ) -> None:
        """Prepare a search.

        Args:
            trial: Fleets and quotas; left as they are.
            workload: What needs quota and room.
            usage: What it would count.
            admitted: Whom the table lets it stop, as the quotas see them.
            left: How many more may be stopped in each cluster within the hour.
        """
        tree = trial.admission.tree
        self._trial = trial
        self._workload = workload
        self._preemptor = as_preemptor(workload, usage)
        self._admitted = admitted
        self._left = left
        self._pairs = frozenset(pair for pair, amount in usage.items() if amount)
        self._missing = {
            pair: usage[pair] - available
            for pair in sorted(self._pairs)
            if (available := tree.available(workload.queue, pair)) < usage[pair]
        }

    def spare(self, pieces: Sequence[Piece]) -> tuple[list[Piece], Found] | None:
        """Return a set without who can be spared, the dearest first, and the place it frees.

        None if the set does not suffice. One beyond `MAX_THINNED` is left as it is.
        """
        taken = sorted(pieces, key=lambda each: each.key)
        if len(taken) <= MAX_THINNED:
            taken = thin_out(taken, self._suffices)
        found = self._find_without(taken)
        return None if found is None else (taken, found)

    def find(self) -> tuple[list[Piece], Found] | None:
        """Return whom to stop within the limits and the place that is free then, or None."""
        largest = sorted(self._admitted, key=lambda piece: (-self._amount_of(piece), piece.key))
        cheapest = sorted(self._admitted, key=lambda piece: piece.key)
        first = self._take_largest([each for each in largest if self._frees_quota(each)])
        search = SetSearch(self._could_suffice, self._suffices, self._may_take, first)
        some = {*largest[:MAX_SEARCHED], *cheapest[:MAX_SEARCHED]}
        search.run([piece for piece in cheapest if piece in some])
        if search.best is None:
            return None
        found = self._find_without(search.best)
        assert found is not None, "what gave room gives it again"
        return search.best, found

    def _take_largest(self, pieces: Sequence[Piece]) -> list[Piece] | None:
        """Return the largest that suffice and that the limits let, without who can be spared."""
        taken: list[Piece] = []
        for piece in pieces:
            if not self._may_take([*taken, piece]):
                continue
            taken.append(piece)
            if self._could_suffice(taken, ()) and self._suffices(taken):
                return thin_out(sorted(taken, key=lambda each: each.key), self._suffices)
        return None

    def _amount_of(self, piece: Piece) -> int:
        usage = self._admitted[piece].usage
        return sum(usage.get(pair, 0) for pair in self._missing or self._pairs)

    def _frees_quota(self, piece: Piece) -> bool:
        """Tell whether the quotas' policies could ever take it: own queue, or one that borrows."""
        admitted, tree = self._admitted[piece], self._trial.admission.tree
        queue = admitted.cluster_queue
        if queue not in tree.cluster_queues or not uses_any(admitted.usage, self._pairs):
            return False
        is_own = queue == self._workload.queue
        return is_own or not is_within_nominal(tree.queue_node(queue), self._pairs)

    def _may_take(self, pieces: Sequence[Piece]) -> bool:
        counts = Counter(piece.owner.cluster_id for piece in pieces)
        return all(count <= self._left.get(each, 0) for each, count in counts.items())

    def _could_suffice(self, taken: Sequence[Piece], rest: Sequence[Piece]) -> bool:
        """Tell whether all together hold as much as is missing: none gives back more than that."""
        slots = sum(self._left.values()) - len(taken)
        for pair, missing in self._missing.items():
            held = sum(self._admitted[piece].usage.get(pair, 0) for piece in taken)
            if held < missing and rest:
                amounts = (self._admitted[piece].usage.get(pair, 0) for piece in rest)
                held += sum(sorted(amounts, reverse=True)[: max(0, slots)])
            if held < missing:
                return False
        return True

    def _suffices(self, pieces: Sequence[Piece]) -> bool:
        return self._find_without(pieces) is not None

    def _find_without(self, pieces: Sequence[Piece]) -> Found | None:
        """Return the place without these, if Kueue takes them for quota or their nodes are due."""
        trial, workload = self._trial, self._workload
        admission = trial.admission
        asked: dict[str, list[AdmittedWorkload]] = {}
        for piece in pieces:
            each = self._admitted[piece]
            asked.setdefault(each.cluster_queue, []).append(each)
        targets = plan_preemption(admission.tree, self._preemptor, asked)
        if not targets:
            return None
        taken = {target.workload.id for target in targets}
        others = [piece for piece in pieces if self._admitted[piece].id not in taken]
        with trial.undone():
            for target in targets:
                each = target.workload
                admission.give_back(each.cluster_queue, each.usage, each.local_queue)
            if others:
                rights = NodeRights(admission.tree, self._preemptor, workload.tenant)
                if not all(rights.allow(piece.owner) for piece in others):
                    return None
            release_parts(trial, pieces)
            return probe_place(trial, workload)
