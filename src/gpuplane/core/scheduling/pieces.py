"""Sets of what could be given back: what they cost, and the search for the cheapest that suffices.

Owns the pieces, their cost and the walk through their sets; what suffices is asked of the caller.
Never knows nodes, quotas or who may be stopped.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpuplane.core.fleet.columns import Take
from gpuplane.core.scheduling.preemption import LossKey
from gpuplane.core.scheduling.workload import RunningWorkload

MAX_EXACT = 8
"""Pieces of which every set is looked at: up to so many the cheapest set is found for certain."""
MAX_STEPS = 128
"""Sets that are looked at of more pieces than that, the cheapest pieces first."""

Parts = tuple[tuple[int, Take], ...]
"""(fleet, take) of everything one piece holds."""
Cost = tuple[int, bool, int, int, str]
"""Highest class, anyone nearly done, GPU-seconds lost together, how many, first id."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Something taken that can be given back as a whole, and what that costs.

    Attributes:
        owner: The running workload that holds it, or held it before its place was promised away.
    """

    key: LossKey
    parts: Parts
    owner: RunningWorkload


def compute_cost(pieces: Sequence[Piece]) -> Cost:
    """Return the cost of a set that is not empty; one piece more always costs more."""
    keys = [piece.key for piece in pieces]
    return (
        max(key[0] for key in keys),
        any(key[1] for key in keys),
        sum(key[2] for key in keys),
        len(keys),
        min(key[4] for key in keys),
    )


def unite(groups: Iterable[Sequence[Piece]]) -> list[Piece]:
    """Return every piece of the groups once."""
    return list(dict.fromkeys(piece for group in groups for piece in group))


def thin_out(taken: list[Piece], suffices: Callable[[Sequence[Piece]], bool]) -> list[Piece]:
    """Return a set that suffices without what it can spare, the dearest spared first.

    Args:
        taken: The set, cheapest first.
        suffices: Tells whether a set is enough.
    """
    for piece in list(reversed(taken)):
        rest = [other for other in taken if other is not piece]
        if rest and suffices(rest):
            taken = rest
    return taken


class SetSearch:
    """Looks for the cheapest set of pieces that suffices, sets of the cheapest pieces first.

    Exact for at most `MAX_EXACT` pieces. Of more, `MAX_STEPS` sets are looked at: what is found
    then costs no more than the set known before, and a cheaper one may be missed.

    Attributes:
        best: The cheapest set known.
    """

    def __init__(
        self,
        could: Callable[[Sequence[Piece], Sequence[Piece]], bool],
        suffices: Callable[[Sequence[Piece]], bool],
        may_take: Callable[[Sequence[Piece]], bool],
        best: list[Piece] | None,
    ) -> None:
        """Prepare a search.

        Args:
            could: Tells cheaply whether a set with as many of the rest as may be taken could
                suffice; it may say so of too many, and of none too few.
            suffices: Tells whether a set is enough.
            may_take: Tells whether all of a set may be taken; if not, no larger one may either.
            best: A set that suffices and is known before, or None.
        """
        self.best = best
        self._could = could
        self._suffices = suffices
        self._may_take = may_take
        self._steps_left = 0

    def run(self, pieces: Sequence[Piece]) -> None:
        """Look at the sets of these pieces, given cheapest first."""
        self._steps_left = (1 << len(pieces)) if len(pieces) <= MAX_EXACT else MAX_STEPS
        self._extend([], pieces)

    def is_better(self, pieces: Sequence[Piece]) -> bool:
        """Tell whether a set costs less than the best one known."""
        return self.best is None or compute_cost(pieces) < compute_cost(self.best)

    def _extend(self, taken: list[Piece], rest: Sequence[Piece]) -> None:
        """Try the set with each of the rest, then with more: a larger set never costs less."""
        for place, piece in enumerate(rest):
            if self._steps_left <= 0 or not self._could(taken, rest[place:]):
                return
            self._steps_left -= 1
            more = [*taken, piece]
            if not self.is_better(more) or not self._may_take(more):
                continue
            if self._could(more, ()) and self._suffices(more):
                self.best = more
            else:
                self._extend(more, rest[place + 1 :])
