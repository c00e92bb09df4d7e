"""One class's answer for every node, as the bytes that go into a response.

Owns the bytes and keeps them true by looking at changed nodes only; which nodes fit and how good
they are is the core's row. An answer over HTTP is then a few look-ups and one join.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling import filters
from gpuplane.core.scheduling.bench import NOT_FIT, Row
from gpuplane.core.scheduling.explain import describe_request
from gpuplane.core.scheduling.filters import PERMANENT_WORDS
from gpuplane.core.scheduling.scores import score_of_rank
from gpuplane.extender.naming import Candidates

MOST_POINTS = 10
"""`MaxExtenderPriority` of k8s.io/kube-scheduler/extender/v1. Only the best candidate gets them: of
all candidates kube-scheduler takes the core's choice unless its own scores speak against it."""
_OTHERS = MOST_POINTS - 1


def encode(value: object) -> bytes:
    """Return a value as JSON."""
    return msgspec.json.encode(value)


class NodeBytes:
    """What is written of each node of a fleet, made at first use."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.quoted = [encode(name) for name in names]
        self._scored: list[dict[int, bytes]] = [{} for _ in names]

    def scored(self, node: int, points: int) -> bytes:
        """Return a `HostPriority`."""
        known = self._scored[node].get(points)
        if known is None:
            known = b'{"Host":%b,"Score":%d}' % (self.quoted[node], points)
            self._scored[node][points] = known
        return known


class Rendered:
    """The bytes of one class.

    Attributes:
        fits: The quoted name of each node where the class fits, empty elsewhere, by node.
        scored: A `HostPriority` by node, never with the most points.
        outside: The nodes where it does not fit, and the same as a column.
    """

    def __init__(self, row: Row, texts: NodeBytes, is_neutral: Callable[[int], bool]) -> None:
        self.row = row
        self._texts = texts
        self._is_neutral = is_neutral
        self._fleet: Fleet = row.fleet
        self._refused: dict[Word, set[int]] = {}
        self._parts: dict[int, bytes] = {}
        self._unjudged: set[int] = set()
        self._said: dict[Word, bytes] = {}
        count = len(self._fleet)
        self.fits: list[bytes] = [b""] * count
        self.scored: list[bytes] = [b""] * count
        self.outside = set(range(count))
        self.is_outside = np.ones(count, dtype=np.bool_)
        self._seen = self._fleet.clock
        self._set(range(count))

    def fits_all(self, candidates: Candidates) -> bool:
        """Return whether the class fits every candidate."""
        if candidates.column is not None:
            return not self.is_outside[candidates.column].any()
        return self.outside.isdisjoint(candidates.places)

    def refresh(self) -> None:
        """Look again at the nodes that changed; the row is up to date."""
        clock = self._fleet.clock
        if clock != self._seen:
            changed = self._fleet.list_changed(self._seen)
            self._seen = clock
            self._set(dict.fromkeys(changed))

    def _set(self, nodes: Sequence[int] | dict[int, None] | range) -> None:
        ranks = self.row.ranks
        fits, scored, texts = self.fits, self.scored, self._texts
        values = ranks.tolist() if len(nodes) * 8 > len(ranks) else None
        for node in nodes:
            rank = int(ranks[node]) if values is None else values[node]
            is_neutral = rank == NOT_FIT and self._is_neutral(node)
            if rank == NOT_FIT and not is_neutral:
                fits[node] = b""
                self.outside.add(node)
                self.is_outside[node] = True
                self._unjudged.add(node)
            else:
                fits[node] = texts.quoted[node]
                self.outside.discard(node)
                self.is_outside[node] = False
            points = 0 if rank == NOT_FIT else self.points_of(rank, node)
            scored[node] = texts.scored(node, points)

    def points_of(self, rank: int, node: int) -> int:
        """Return the points of a node that fits but is not the best: 0 to 9 for 0 to 100."""
        return min(_OTHERS, score_of_rank(rank, self.row.context, node) * _OTHERS // 100)

    def best(self, node: int) -> bytes:
        """Return the `HostPriority` of the best candidate."""
        return self._texts.scored(node, MOST_POINTS)

    def _find_word(self, node: int) -> Word:
        """Return the first filter that refuses a node."""
        need, fleet = self.row.need, self._fleet
        where = slice(node, node + 1)
        return next(
            (
                each.word
                for each in filters.list_active(need, filters.FILTERS)
                if not each.passes(need, fleet, where)[0]
            ),
            Word.GPU_COUNT,
        )

    def _judge(self, nodes: set[int]) -> None:
        """Note why these nodes are refused now."""
        for node in nodes:
            word = self._find_word(node)
            for each in self._refused.values():
                each.discard(node)
            self._refused.setdefault(word, set()).add(node)
            self._parts[node] = self._texts.quoted[node] + b":" + self.said(word)
        self._unjudged -= nodes

    def said(self, word: Word) -> bytes:
        """Return the message for nodes that a filter refuses, as JSON."""
        text = self._said.get(word)
        if text is None:
            asked = describe_request(self.row.need.resources)
            text = self._said[word] = encode(f"{word.value}: needs {asked}")
        return text

    def refusals(self, nodes: set[int]) -> tuple[bytes, bytes, list[tuple[Word, int]]]:
        """Return what fails now, what fails for good, as JSON without braces, and counts by word.

        Args:
            nodes: Some of `outside`.
        """
        unjudged = self._unjudged & nodes
        if unjudged:
            self._judge(unjudged)
        failed: list[bytes] = []
        lasting: list[bytes] = []
        counts = []
        for word, refused in sorted(self._refused.items()):
            # What was refused before and fits now is still in its set.
            there = refused & nodes
            if there:
                counts.append((word, len(there)))
                chosen = lasting if word in PERMANENT_WORDS else failed
                chosen += map(self._parts.__getitem__, sorted(there))
        return b",".join(failed), b",".join(lasting), counts
