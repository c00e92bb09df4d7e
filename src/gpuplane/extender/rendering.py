"""One class's answer for every node, as the bytes that go into a response.

Owns how an answer is written and why a node is refused, looked up when somebody asks; which nodes
fit and how good they are is the core's row. An answer over HTTP is then a few operations on
columns, whatever their length.
"""

from collections.abc import Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

import msgspec
import numpy as np

from gpuplane.core.fleet.columns import Bools, Fleet
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling import filters
from gpuplane.core.scheduling.bench import MAX_REMEMBERED, NOT_FIT, Row, StateKey
from gpuplane.core.scheduling.explain import describe_request
from gpuplane.core.scheduling.filters import PERMANENT_WORDS, Filter
from gpuplane.core.scheduling.scores import follows_from_state, scores_of_ranks
from gpuplane.extender.naming import Candidates, Pieces, Places

Points = np.ndarray[Any, np.dtype[np.uint8]]
Buffer = bytes | memoryview

MOST_POINTS = 10
"""`MaxExtenderPriority` of k8s.io/kube-scheduler/extender/v1. Only the best candidate gets them: of
all candidates kube-scheduler takes the core's choice unless its own scores speak against it."""
FEWEST_EACH: Final = 128
"""Names below which a join of their bytes is as quick as writing rows of a table."""
_MOST: Final = b"%d" % MOST_POINTS
_OTHERS = MOST_POINTS - 1
_POINTS: Final[Points] = (np.arange(101) * _OTHERS // 100).astype(np.uint8)
"""By score of 0 to 100."""
_BEFORE_END: Final = 3
"""Where the points are in a piece: a brace and a comma follow them."""
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

    @cached_property
    def quoted(self) -> list[bytes]:
        """Return each name as JSON."""
        return [encode(name) for name in self.names]

    @cached_property
    def _quoted(self) -> Pieces:
        return Pieces(self.quoted)

    @cached_property
    def _listed(self) -> Pieces:
        return Pieces([name + b"," for name in self.quoted])

    @cached_property
    def _scored(self) -> Pieces:
        """Return a `HostPriority` without points by node."""
        return Pieces([b'{"Host":%b,"Score":0},' % name for name in self.quoted])

    def write_list(self, candidates: Candidates) -> bytes:
        """Return names as a JSON list."""
        return b"[" + candidates.join(self._listed)[:-1] + b"]"

    def write_each(self, places: Places, said: bytes) -> bytes:
        """Return each name with the same words behind it, with commas between.

        Args:
            places: One at least.
            said: What stands behind each.
        """
        table = self._quoted.table
        if table is None or len(places) < FEWEST_EACH:
            return (said + b",").join(_pick(self.quoted, places)) + said
        words = np.frombuffer(said + b",", dtype=f"V{len(said) + 1}")
        row = np.empty(len(places), dtype=[("name", table.dtype), ("said", words.dtype)])
        row["name"] = table.take(places)
        row["said"] = words
        return row.tobytes()[:-1]

    def write_scores(
        self, candidates: Candidates, points: Points | None = None, best: int | None = None
    ) -> tuple[Buffer, ...]:
        """Return the `HostPriority` of each candidate, with commas between, in pieces.

        Args:
            candidates: Of whom the unknown ones are left out.
            points: 0 to 9 by position; None for none.
            best: The position of the one that gets the most points whatever stands above.
        """
        if not len(candidates):
            return ()
        written, digits = self._scored.spread(candidates, _BEFORE_END)
        if points is not None:
            # As bytes, '0' to '9' follow each other.
            written[digits] += points
        text = written.data
        if best is None:
            return (text[:-1],)
        at = range(len(text))[digits][best] if isinstance(digits, slice) else int(digits[best])
        return text[:at], _MOST, text[at + 1 : -1]


class Rendered:
    """The bytes of one class.

    Args:
        row: Which nodes fit and how good they are.
        texts: The nodes in bytes.
        is_neutral: Nodes of which nothing is said, shape (node,); None for none.
    """

    def __init__(self, row: Row, texts: NodeBytes, is_neutral: Bools | None) -> None:
        self.row = row
        self._texts = texts
        self._is_neutral = is_neutral
        self._fleet: Fleet = row.fleet
        self._said: dict[Word, bytes] = {}
        # Why each of them is refused, as far as somebody asked since the node changed.
        self._code = np.full(len(self._fleet), _UNJUDGED, dtype=np.uint8)
        self._by_state = follows_from_state(row.context)
        self._code_of: dict[int, int] = {}
        self._code_with: dict[StateKey, int] = {}
        self._epoch = self._fleet.epoch
        self._all = filters.list_active(row.need, filters.FILTERS)
        self._active = filters.list_active(row.need, filters.DYNAMIC_FILTERS)
        self._seen = self._fleet.clock

    def find_outside(self, places: Places) -> Bools:
        """Return at which of these nodes the class does not fit, shape (place,)."""
        outside: Bools = self.row.ranks.take(places) == NOT_FIT
        if self._is_neutral is not None:
            outside &= ~self._is_neutral[places]
        return outside

    def refresh(self) -> None:
        """Forget why nodes that changed were refused; the row is up to date."""
        clock = self._fleet.clock
        if clock != self._seen:
            # A question is asked every few changes: one by one costs less than an index of a list.
            for node in self._fleet.list_changed(self._seen):
                self._code[node] = _UNJUDGED
            self._seen = clock

    def list_points(self, places: Places) -> Points:
        """Return the points of nodes that are not the best, 0 where the class does not fit."""
        row = self.row
        return _POINTS.take(
            scores_of_ranks(row.ranks.take(places), row.context, places), mode="clip"
        )

    def _find_code(self, node: int) -> int:
        """Return the first filter that refuses a node, by its word's code.

        Filters that look at what is free look at a node's state alone: one look for each state.
        """
        if not self.row.suits(node):
            return self._ask(node, self._all)
        if not self._by_state:
            return self._ask(node, self._active)
        fleet = self._fleet
        if self._epoch != fleet.epoch:
            self._epoch = fleet.epoch
            self._code_of.clear()
            self._code_with.clear()
        state = fleet.state_of[node]
        known = self._code_of.get(state)
        if known is None:
            if len(self._code_of) >= MAX_REMEMBERED:
                self._code_of.clear()
            known = self._code_of[state] = self._find_dynamic_code(node)
        return known

    def _find_dynamic_code(self, node: int) -> int:
        """Return the first filter that refuses a state; those with equal GPUs are refused alike."""
        key = self.row.find_key(node)
        if key is None:
            return self._ask(node, self._active)
        known = self._code_with.get(key)
        if known is None:
            if len(self._code_with) >= MAX_REMEMBERED:
                self._code_with.clear()
            known = self._code_with[key] = self._ask(node, self._active)
        return known

    def _ask(self, node: int, active: Sequence[Filter]) -> int:
        need, fleet = self.row.need, self._fleet
        where = slice(node, node + 1)
        for each in active:
            if not each.passes(need, fleet, where)[0]:
                return _CODE_OF[each.word]
        return _CODE_OF[Word.GPU_COUNT]

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
            nodes: Some of those where the class does not fit, in the order of the answer.
        """
        if not len(nodes):
            return b"", b"", []
        codes = self._code.take(nodes)
        if not codes.all():
            for node in nodes[codes == _UNJUDGED].tolist():
                self._code[node] = self._find_code(node)
            codes = self._code.take(nodes)
        different = [int(codes[0])]
        if not (codes == different[0]).all():
            different = np.flatnonzero(np.bincount(codes)).tolist()
        failed: list[bytes] = []
        lasting: list[bytes] = []
        counts = []
        for word, code in sorted((_WORDS[code], code) for code in different):
            there = nodes if len(different) == 1 else nodes[codes == code]
            counts.append((word, len(there)))
            chosen = lasting if word in PERMANENT_WORDS else failed
            chosen.append(self._texts.write_each(there, b":" + self.said(word)))
        return b",".join(failed), b",".join(lasting), counts


def _pick(column: list[bytes], places: Places) -> tuple[bytes, ...]:
    """Return the entries of a column at these places, in their order."""
    if len(places) < 2:
        return tuple(column[place] for place in places.tolist())
    chosen: tuple[bytes, ...] = itemgetter(*places.tolist())(column)
    return chosen
