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
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.simulation.placement import CorePlacer
from gpuplane.core.simulation.placement_files import TraceNode, TracePod

MAX_WAIT = 8
"""Windows of arrivals after which a pod goes next, whatever it leaves."""
MAX_MOVES_EACH = 4
"""Most moves for one pod: more would cost more than a pod is worth."""
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


def look_ahead(arrivals: Iterable[TracePod], placer: CorePlacer, window: int) -> Iterator[TracePod]:
    """Yield the pods in the order in which they are decided.

    Up to `window` pods are known and undecided. Of those the one goes next whose best node has the
    highest rank, which under the policy `fragmentation` is the one that leaves least GPU capacity
    useless; of equals the larger request, then the earlier. A pod that fits nowhere goes at once.
    """
    pending: dict[TracePod, deque[tuple[int, TracePod]]] = {}
    ranked: dict[TracePod, tuple[int, int]] = {}
    arrived = count = decided = 0

    def rank(kind: TracePod) -> tuple[int, int]:
        best = placer.bench.row(placer.workload_of(kind)).find_best()
        ranked[kind] = (-1 if best is None else best[1] >> 16, kind.total_milli)
        return ranked[kind]

    def take() -> TracePod:
        if decided % _RENEWED_EVERY == 0:
            for kind in pending:
                rank(kind)
        oldest = min(pending, key=lambda each: pending[each][0][0])
        is_late = arrived - pending[oldest][0][0] > MAX_WAIT * window
        unfit = next((kind for kind in pending if ranked[kind][0] < 0), None)
        best = oldest if is_late else unfit
        while best is None:
            kind = max(pending, key=lambda each: ranked[each])
            was = ranked[kind]
            if rank(kind) >= was:
                best = kind
        queue = pending[best]
        pod = queue.popleft()[1]
        if not queue:
            del pending[best]
        return pod

    for pod in arrivals:
        kind = replace(pod, name="")
        if kind not in pending:
            pending[kind] = deque()
            rank(kind)
        pending[kind].append((arrived, pod))
        arrived += 1
        count += 1
        while count > window:
            yield take()
            decided += 1
            count -= 1
    while count:
        yield take()
        decided += 1
        count -= 1
