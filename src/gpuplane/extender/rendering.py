"""One class's answer for every node, as the bytes that go into a response.

Owns the bytes and keeps them true by looking at changed nodes only; which nodes fit and how good
they are is the core's row. An answer over HTTP is then a few look-ups and one join.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

import msgspec
import numpy as np

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling import filters
from gpuplane.core.scheduling.bench import MAX_REMEMBERED, NOT_FIT, Row
from gpuplane.core.scheduling.explain import describe_request
from gpuplane.core.scheduling.filters import PERMANENT_WORDS
from gpuplane.core.scheduling.scores import follows_from_state, score_of_rank
from gpuplane.extender.naming import Candidates, Places

MOST_POINTS = 10
"""`MaxExtenderPriority` of k8s.io/kube-scheduler/extender/v1. Only the best candidate gets them: of
all candidates kube-scheduler takes the core's choice unless its own scores speak against it."""
_OTHERS = MOST_POINTS - 1
_UNJUDGED: Final = 0
_WORDS: Final = (None, *Word)
"""By code, as a column of small numbers has them."""
_CODE_OF: Final = {word: code for code, word in enumerate(_WORDS)}


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
        scored: A `HostPriority` by node, never with the most points.
        is_outside: The nodes where it does not fit, shape (node,). `outside`: the same by node.
    """

    def __init__(self, row: Row, texts: NodeBytes, is_neutral: Callable[[int], bool]) -> None:
        self.row = row
        self._texts = texts
        self._is_neutral = is_neutral
        self._fleet: Fleet = row.fleet
        self._said: dict[Word, bytes] = {}
        count = len(self._fleet)
        self.scored: list[bytes] = [b""] * count
        self.outside = [True] * count
        self.is_outside = np.ones(count, dtype=np.bool_)
        # Why each of them is refused, looked up when somebody asks, and how it is written.
        self._code = np.full(count, _UNJUDGED, dtype=np.uint8)
        self._parts: list[bytes] = [b""] * count
        self._by_state = follows_from_state(row.context)
        self._word_of: dict[int, Word] = {}
        self._epoch = self._fleet.epoch
        self._active = filters.list_active(row.need, filters.FILTERS)
        self._seen = self._fleet.clock
        self._set(range(count))

    def fits_all(self, candidates: Candidates) -> bool:
        """Return whether the class fits every candidate."""
        if candidates.column is not None:
            return not self.is_outside[candidates.column].any()
        return True not in candidates.choose(self.outside)

    def split(self, candidates: Candidates) -> tuple[Sequence[bytes], Candidates, Places]:
        """Return the quoted names of those that fit, the same as candidates, and the others."""
        column = candidates.as_column()
        is_outside = self.is_outside[column]
        kept = column[~is_outside]
        fitting = Candidates(kept.tolist(), (), kept)
        return fitting.choose(self._texts.quoted), fitting, column[is_outside]

    def refresh(self) -> None:
        """Look again at the nodes that changed; the row is up to date."""
        clock = self._fleet.clock
        if clock != self._seen:
            changed = self._fleet.list_changed(self._seen)
            self._seen = clock
            self._set(dict.fromkeys(changed))

    def _set(self, nodes: Sequence[int] | dict[int, None] | range) -> None:
        ranks = self.row.ranks
        scored, texts, outside = self.scored, self._texts, self.outside
        values = ranks.tolist() if len(nodes) * 8 > len(ranks) else None
        for node in nodes:
            rank = int(ranks[node]) if values is None else values[node]
            if rank == NOT_FIT and not self._is_neutral(node):
                self._code[node] = _UNJUDGED
                if not outside[node]:
                    outside[node] = self.is_outside[node] = True
            elif outside[node]:
                outside[node] = self.is_outside[node] = False
            points = 0 if rank == NOT_FIT else self.points_of(rank, node)
            scored[node] = texts.scored(node, points)

    def points_of(self, rank: int, node: int) -> int:
        """Return the points of a node that fits but is not the best: 0 to 9 for 0 to 100."""
        return min(_OTHERS, score_of_rank(rank, self.row.context, node) * _OTHERS // 100)

    def best(self, node: int) -> bytes:
        """Return the `HostPriority` of the best candidate."""
        return self._texts.scored(node, MOST_POINTS)

    def _find_word(self, node: int) -> Word:
        """Return the first filter that refuses a node.

        Filters that look at what is free look at a node's state alone: one look for each state.
        """
        if not (self._by_state and self.row.suits(node)):
            return self._ask(node)
        fleet = self._fleet
        if self._epoch != fleet.epoch:
            self._epoch = fleet.epoch
            self._word_of.clear()
        state = fleet.state_of[node]
        known = self._word_of.get(state)
        if known is None:
            if len(self._word_of) >= MAX_REMEMBERED:
                self._word_of.clear()
            known = self._word_of[state] = self._ask(node)
        return known

    def _ask(self, node: int) -> Word:
        need, fleet = self.row.need, self._fleet
        where = slice(node, node + 1)
        for each in self._active:
            if not each.passes(need, fleet, where)[0]:
                return each.word
        return Word.GPU_COUNT

    def _judge(self, nodes: Sequence[int]) -> None:
        """Note why these nodes are refused now."""
        quoted = self._texts.quoted
        for node in nodes:
            word = self._find_word(node)
            self._code[node] = _CODE_OF[word]
            self._parts[node] = quoted[node] + b":" + self.said(word)

    def said(self, word: Word) -> bytes:
        """Return the message for nodes that a filter refuses, as JSON."""
        text = self._said.get(word)
        if text is None:
            asked = describe_request(self.row.need.resources)
            text = self._said[word] = encode(f"{word.value}: needs {asked}")
        return text

    def refusals(self, nodes: Places) -> tuple[bytes, bytes, list[tuple[Word, int]]]:
        """Return what fails now, what fails for good, as JSON without braces, and counts by word.

        Args:
            nodes: Some of those where the class does not fit.
        """
        codes = self._code[nodes]
        unjudged = nodes[codes == _UNJUDGED]
        if len(unjudged):
            self._judge(unjudged.tolist())
            codes = self._code[nodes]
        failed: list[bytes] = []
        lasting: list[bytes] = []
        counts = []
        for word in sorted(_WORDS[code] for code in np.flatnonzero(np.bincount(codes)).tolist()):
            there = np.sort(nodes[codes == _CODE_OF[word]])
            counts.append((word, len(there)))
            chosen = lasting if word in PERMANENT_WORDS else failed
            chosen += _pick(self._parts, there)
        return b",".join(failed), b",".join(lasting), counts


def _pick(column: list[bytes], places: Places) -> tuple[bytes, ...]:
    """Return the entries of a column at these places, in their order."""
    if len(places) < 2:
        return tuple(column[place] for place in places.tolist())
    chosen: tuple[bytes, ...] = itemgetter(*places.tolist())(column)
    return chosen
