"""Replays that look ahead over pending pods and move placed ones.

Owns the window (which of the pods known so far is decided next) and the moves that let a refused
pod fit. The published comparison has neither; what they add is measured against it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpuplane.core.scheduling.placement import Spots
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.relocation import Quest, RelocationSearch, Tenants
from gpuplane.core.scheduling.scores import score_of_rank
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.simulation.placement.files import TraceNode, TracePod
from gpuplane.core.simulation.placement.replays import CorePlacer

MAX_WAIT = 8
"""Windows of arrivals after which a pod goes next, whatever it leaves."""
MAX_MOVES_EACH = 4
"""Most moves for one pod: more would cost more than a pod is worth."""
_UNFIT = -1
_RENEWED_EVERY = 32
"""Decisions after which every kind is ranked anew; between them only the best ones are."""


class MovingPlacer(CorePlacer):
    """Places pods with the decision core and moves placed ones where a pod would be refused.

    Attributes:
        moves: Moves carried out so far. `max_moves`: how many there may be.
    """

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        pods: Sequence[TracePod],
        policy: Policy,
        seed: int,
        max_moves: int,
    ) -> None:
        super().__init__(nodes, pods, policy, seed)
        self.max_moves = max_moves
        self.moves = 0
        self._tenants = Tenants()
        self._search = RelocationSearch(self.bench, self._tenants, lambda workload: None)

    def find_spots(self, pod: TracePod) -> Spots | None:
        """Place the pod and return where, after moves if need be, or None."""
        spots = super().find_spots(pod)
        if spots is None and self._make_room(self.workload_of(pod)):
            spots = super().find_spots(pod)
            assert spots is not None, "room was made"
        if spots is not None and self.max_moves:
            workload = self.workload_of(pod)
            for take in spots.takes:
                self._tenants.add(workload, take)
        return spots

    def _make_room(self, workload: Workload) -> bool:
        left = min(MAX_MOVES_EACH, self.max_moves - self.moves)
        if left <= 0:
            return False
        done = self._search.make_room(workload, Quest(0, left, 0))
        self.moves += len(self._search.moves)
        self._search.moves.clear()
        return done


class LookAhead:
    """The pods of a trace in the order in which they are decided, while more are known.

    Up to `window` pods are known and undecided. Of those the one goes next whose best node scores
    highest, which under the policy `fragmentation` is the one that leaves least GPU capacity
    useless; of equals the larger request, then the earlier. One that fits nowhere goes at once,
    and one that was passed over for `MAX_WAIT` windows of arrivals goes before all others.

    Attributes:
        longest_wait: Most pods that arrived between a pod and its decision, so far.
    """

    def __init__(self, arrivals: Iterable[TracePod], placer: CorePlacer, window: int) -> None:
        self.longest_wait = 0
        self._arrivals = arrivals
        self._placer = placer
        self._window = window
        self._arrived = self._decided = 0
        self._pending: dict[TracePod, deque[tuple[int, TracePod]]] = {}
        self._scores: dict[TracePod, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[TracePod]:
        """Yield each pod once; the one before has to be decided by then."""
        for pod in self._arrivals:
            kind = replace(pod, name="")
            if kind not in self._pending:
                self._pending[kind] = deque()
                self._score(kind)
            self._pending[kind].append((self._arrived, pod))
            self._arrived += 1
            while self._arrived - self._decided > self._window:
                yield self._take()
        while self._pending:
            yield self._take()

    def _score(self, kind: TracePod) -> tuple[int, int]:
        """Look up how good the best node is for a kind now, `_UNFIT` when none fits."""
        row = self._placer.bench.row(self._placer.workload_of(kind))
        best = row.find_best()
        score = _UNFIT if best is None else score_of_rank(best[1], row.context, best[0])
        self._scores[kind] = (score, kind.total_milli)
        return self._scores[kind]

    def _take(self) -> TracePod:
        kind = self._choose()
        queue = self._pending[kind]
        arrived, pod = queue.popleft()
        if not queue:
            del self._pending[kind]
        self.longest_wait = max(self.longest_wait, self._arrived - 1 - arrived)
        self._decided += 1
        return pod

    def _choose(self) -> TracePod:
        if self._decided % _RENEWED_EVERY == 0:
            for kind in self._pending:
                self._score(kind)
        oldest = min(self._pending, key=lambda each: self._pending[each][0][0])
        if self._arrived - self._pending[oldest][0][0] > MAX_WAIT * self._window:
            return oldest
        for kind in self._pending:
            if self._scores[kind][0] == _UNFIT:
                return kind
        while True:
            # Scores age as nodes fill; the best is taken once it is known to be as good as it was.
            kind = max(self._pending, key=lambda each: self._scores[each])
            was = self._scores[kind]
            if self._score(kind) >= was:
                return kind
