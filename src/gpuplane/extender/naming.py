"""Finds the node names of a question at once, as columns instead of one by one.

Owns the way from a JSON list of names to places in the fleet. Looking up each name in a dict costs
a miss of the processor's cache or three; here names of one length are rows of a table, told apart
by the few bytes in which the fleet's names differ, and compared whole in one go. A hash decides
nothing: every byte of the list is compared. A list with a name that is not known, or written
otherwise, is left to a reader of JSON.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, Final, TypeVar

import numpy as np

_T = TypeVar("_T")
Places = np.ndarray[Any, np.dtype[np.int64]]
_Words = np.ndarray[Any, np.dtype[np.uint64]]
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Rows = np.ndarray[Any, np.dtype[np.void]]

FEWEST: Final = 64
"""Names below which a dict is as quick: a dozen of operations on arrays cost 20 µs."""
FEWEST_UNEVEN: Final = 400
"""The same where names differ in length, and their places in the list are to be found first."""
LONGEST: Final = 253
"""Bytes of a name: a DNS subdomain."""
MAX_LENGTHS: Final = 8
"""Lengths in one list; each is a pass of its own, and with more of them a dict is as quick."""
_WORD: Final = 8
_PAD: Final = bytes(_WORD)
"""Behind the last name, so that a whole word can be read wherever a name begins."""
_QUOTE = ord('"')
_FACTORS: Final[_Words] = np.array(
    [0x9E3779B97F4A7C15 * (2 * each + 1) & 0xFFFFFFFFFFFFFFFF for each in range(32)],
    dtype=np.uint64,
)
"""Odd, so that no bit of a word is lost; the golden ratio of 64 bits (Knuth, TAOCP 3, 6.4)."""
_FOLD: Final = np.uint64(29)
_MAX_TURNS: Final = 8
"""Factors tried for the one with the fewest names in another's slot: numbers in sequence fall into
a lattice that suits some badly."""


class Candidates:
    """The nodes of a question.

    Attributes:
        column: By position the place in the fleet, shape (candidate,); unknown nodes are left out.
        unknown: Names that are not known (yet).
    """

    __slots__ = ("_pick", "column", "unknown")

    def __init__(self, column: Places, unknown: Sequence[str] = ()) -> None:
        self.column = column
        self.unknown = unknown
        self._pick: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(self.column)

    def pick(self, column: Sequence[_T]) -> Sequence[_T]:
        """Return the entries of a column by node, in the order of the question."""
        if self._pick is None:
            places = self.column.tolist()
            if len(places) < 2:
                return [column[place] for place in places]
            # The quickest way through thousands of entries: no call for each.
            self._pick = itemgetter(*places)
        chosen: tuple[_T, ...] = self._pick(column)
        return chosen

    def join(self, pieces: "Pieces") -> bytes:
        """Return the pieces of all candidates in a row."""
        table = pieces.table
        if table is not None:
            return table.take(self.column).tobytes()
        return b"".join(self.pick(pieces.by_node))

    def find(self, place: int) -> int | None:
        """Return the position of a node, None where it is no candidate."""
        there = self.column == place
        position = int(there.argmax())
        return position if there[position] else None


class Pieces:
    """A piece of text for each node, to be put together by the hundred.

    Attributes:
        by_node: The pieces.
        table: The same where all have one width, so that picking some touches no object for each.
    """

    def __init__(self, by_node: Sequence[bytes]) -> None:
        self.by_node = by_node
        self._widths = np.fromiter(map(len, by_node), dtype=np.int64, count=len(by_node))
        is_even = len(by_node) > 0 and bool((self._widths == self._widths[0]).all())
        self.table: _Rows | None = None
        if is_even:
            self.table = np.frombuffer(b"".join(by_node), dtype=f"V{self._widths[0]}")

    def spread(self, candidates: Candidates, before_end: int) -> tuple[_Bytes, slice | Places]:
        """Return the pieces of candidates in a row to be written to, and one place in each.

        Args:
            candidates: Some nodes.
            before_end: How far before the end of each piece its place is, in bytes.
        """
        if self.table is not None:
            width = self.table.itemsize
            row = self.table.take(candidates.column).view(np.uint8)
            return row, slice(width - before_end, None, width)
        row = np.frombuffer(bytearray(candidates.join(self)), dtype=np.uint8)
        return row, np.cumsum(self._widths[candidates.column]) - before_end


def look_up(names: list[str], place_of: Mapping[str, int]) -> Candidates:
    """Return the nodes of these names, each looked up."""
    if len(names) > 1:
        try:
            # The quickest way through hundreds of names: no call for each.
            return Candidates(np.array(itemgetter(*names)(place_of), dtype=np.int64))
        except KeyError:
            pass  # each is looked up; `contextlib.suppress` takes 3 % of a question
    known = [place_of[name] for name in names if name in place_of]
    unknown = [name for name in names if name not in place_of]
    return Candidates(np.array(known, dtype=np.int64), unknown)


class NameIndex:
    """The names of a fleet by their bytes.

    Args:
        names: By place.
        fewest: Lists of about so many names and more are found here.
        fewest_uneven: The same where the names differ in length.
    """

    def __init__(
        self,
        names: Sequence[str],
        fewest: int = FEWEST,
        fewest_uneven: int = FEWEST_UNEVEN,
    ) -> None:
        self._names = names
        self._fewest = fewest
        self._fewest_uneven = fewest_uneven

    @cached_property
    def _by_length(self) -> dict[int, "_OneLength"]:
        grouped: dict[int, list[tuple[bytes, int]]] = {}
        for place, name in enumerate(self._names):
            data = name.encode()
            # What JSON writes otherwise than it is could be found by another spelling only.
            if 0 < len(data) <= LONGEST and b'"' not in data and b"\\" not in data:
                grouped.setdefault(len(data), []).append((data, place))
        return {length: _OneLength(length, pairs) for length, pairs in grouped.items()}

    def find(self, raw: bytes) -> Candidates | None:
        """Return the nodes of a JSON list of names, None where they are to be looked up.

        That is: a name is not known, blanks stand between names, or there are few names.
        """
        found = self._find(raw)
        return None if found is None else Candidates(found)

    def _find(self, raw: bytes) -> Places | None:
        if not (raw.startswith(b'["') and raw.endswith(b'"]') and len(raw) > 3):
            return None
        # About so many: to count them would take as long as to look some of them up.
        stride = raw.index(b'"', 2) + 1
        if len(raw) < self._fewest * stride:
            return None
        if (len(raw) - 1) % stride == 0:
            found = self._find_even(raw, stride)
            if found is not None:
                return found
        return self._find_uneven(raw) if len(raw) >= self._fewest_uneven * stride else None

    def _find_even(self, raw: bytes, stride: int) -> Places | None:
        """Find names that all have one length, so that they are the rows of a table."""
        known = self._by_length.get(stride - 3)
        if known is None:
            return None
        count = (len(raw) - 1) // stride
        # The bracket at the end is at hand where a name is no shorter than a word.
        padded = raw if stride > _WORD + 2 else raw + _PAD
        at = known.find(lambda offset: np.ndarray((count,), "<u8", padded, 2 + offset, (stride,)))
        # A row is `name","`; after the last one there is a bracket instead of comma and quote.
        last = known.rows[at[-1]].tobytes()[:-2] + b"]"
        if raw.endswith(last) and raw.startswith(known.rows.take(at[:-1]).data, 2):
            return known.places.take(at)
        return None

    def _find_uneven(self, raw: bytes) -> Places | None:
        data = np.frombuffer(raw, dtype=np.uint8)
        quotes = np.flatnonzero(data == _QUOTE)
        begins, ends = quotes[::2] + 1, quotes[1::2]
        if len(begins) != len(ends) or ends[-1] != len(data) - 2:
            return None
        lengths = ends - begins
        different = np.flatnonzero(np.bincount(lengths)).tolist()
        if len(different) > MAX_LENGTHS:
            return None
        padded = raw + b',"' + _PAD
        words = np.ndarray((len(padded) - _WORD + 1,), "<u8", padded, 0, (1,))
        places = np.empty(len(begins), dtype=np.int64)
        for length in different:
            known = self._by_length.get(length)
            if known is None:
                return None
            where = np.flatnonzero(lengths == length)
            starts = begins[where]
            at = known.find(_reader(words, starts))
            rows = np.ndarray((len(raw) - length,), f"V{length + 3}", padded, 0, (1,))
            # With what follows it; the list's last bracket stands where others have their comma.
            mine = rows[starts].tobytes()
            if where[-1] == len(begins) - 1:
                mine = mine[:-2] + b',"'
            if known.rows.take(at).tobytes() != mine:
                return None
            places[where] = known.places.take(at)
        return places


def _reader(words: _Words, starts: Places) -> Callable[[int], _Words]:
    return lambda offset: words[starts + offset]


class _OneLength:
    """All names of one length, by a hash of the bytes in which they differ.

    Attributes:
        rows: The names, each with the quote, the comma and the quote that follow it in a list.
        places: The place of each.
    """

    def __init__(self, length: int, pairs: Sequence[tuple[bytes, int]]) -> None:
        joined = b"".join(data + b'","' for data, _ in pairs) + _PAD
        count, stride = len(pairs), length + 3
        # What follows a short name says nothing of it.
        is_short = length < _WORD
        self._mask = np.uint64((1 << 8 * length) - 1) if is_short else None

        def read(offset: int) -> _Words:
            return np.ndarray((count,), "<u8", joined, offset, (stride,))

        bits = count.bit_length() + 3
        self._shift = np.uint64(64 - bits)
        self._turn = 0
        self._offsets = self._choose_offsets(length, count, read)
        self._turn = max(range(_MAX_TURNS), key=lambda turn: self._count_slots(read, turn))
        hashes = self._hash(read, self._offsets)
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self.rows: _Rows = np.frombuffer(joined[: count * stride], f"V{stride}")[order]
        self.places: Places = np.array([place for _, place in pairs], dtype=np.int64)[order]
        slots = (self._hashes >> self._shift).astype(np.int64)
        first = np.searchsorted(slots, np.arange(1 << bits, dtype=np.int64))
        # Narrow, because it is read all over: that of 5,000 names is 128 KB.
        narrow = np.int16 if count < 1 << 15 else np.int32
        self._first = np.minimum(first, count - 1).astype(narrow)
        self._most = int(np.bincount(slots).max())

    def _choose_offsets(
        self, length: int, count: int, read: Callable[[int], _Words]
    ) -> tuple[int, ...]:
        """Return where to read words that tell all names apart, as few as one or two if they do."""
        last = max(0, length - _WORD)
        possible = sorted({*range(0, last, _WORD // 2), last})
        telling = {each: len(np.unique(self._hash(read, (each,)))) for each in possible}
        best = max(possible, key=lambda each: telling[each])
        if telling[best] == count:
            return (best,)
        for other in possible:
            if len(np.unique(self._hash(read, (best, other)))) == count:
                return (best, other)
        return tuple(sorted({*range(0, last, _WORD), last}))

    def _count_slots(self, read: Callable[[int], _Words], turn: int) -> int:
        self._turn = turn
        return len(np.unique(self._hash(read, self._offsets) >> self._shift))

    def _hash(self, read: Callable[[int], _Words], offsets: tuple[int, ...]) -> _Words:
        words = read(offsets[0])
        mixed: _Words = (words if self._mask is None else words & self._mask) * _FACTORS[self._turn]
        for number, offset in enumerate(offsets[1:], 1):
            mixed ^= mixed >> _FOLD
            mixed += read(offset)
            mixed *= _FACTORS[number]
        return mixed

    def find(self, read: Callable[[int], _Words]) -> Places:
        """Return which row each name has if it has one; whoever asks compares all bytes.

        Args:
            read: Returns the eight bytes of each name from an offset on, shape (name,).
        """
        hashes = self._hash(read, self._offsets)
        at = self._first.take((hashes >> self._shift).view(np.int64)).astype(np.int64)
        if self._most > 1:
            others = np.flatnonzero(self._hashes.take(at) != hashes)
            for _ in range(1, self._most):
                if not len(others):
                    break
                # Of two names with one hash the second is not found, and all are read slowly.
                nexts = np.minimum(at[others] + 1, len(self._hashes) - 1)
                at[others] = nexts
                others = others[self._hashes.take(nexts) != hashes[others]]
        return at
