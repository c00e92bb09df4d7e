"""Finds thousands of node names of a question at once, as columns instead of one by one.

Owns the way from a JSON list of names to places in the fleet. Looking up each name in a dict costs
a miss of the processor's cache or three; here names of one length are one block of bytes, hashed,
found and compared by a few operations on arrays. A hash decides nothing: every byte of the list is
compared. A list with a name that is not known, or written otherwise, is left to a reader of JSON.
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

FEWEST: Final = 1_000
"""Names below which a dict is as quick: some dozens of operations on arrays cost 50 µs."""
LONGEST: Final = 253
"""Bytes of a name: a DNS subdomain."""
MAX_LENGTHS: Final = 8
"""Lengths in one list; each is a pass of its own, and with more of them a dict is as quick."""
_WORD: Final = 8
_QUOTE, _COMMA = ord('"'), ord(",")
_FACTORS: Final[_Words] = np.array(
    [0x9E3779B97F4A7C15 * (2 * each + 1) & 0xFFFFFFFFFFFFFFFF for each in range(32)],
    dtype=np.uint64,
)
"""Odd, so that no bit of a word is lost; the golden ratio of 64 bits (Knuth, TAOCP 3, 6.4)."""
_FOLD: Final = np.uint64(29)


class Candidates:
    """The nodes of a question.

    Attributes:
        places: By position the place in the fleet; unknown nodes are left out.
        unknown: Names that are not known (yet).
        column: The places as an array, None where a few are handled quicker one by one.
    """

    __slots__ = ("_pick", "column", "places", "unknown")

    def __init__(
        self,
        places: Sequence[int],
        unknown: Sequence[str] = (),
        column: Places | None = None,
    ) -> None:
        self.places = places
        self.unknown = unknown
        self.column = column
        self._pick: Callable[[Any], Any] | None = None

    def pick(self, column: Sequence[_T]) -> list[_T]:
        """Return the entries of a column by node, in the order of the question."""
        return [*self.choose(column)]

    def choose(self, column: Sequence[_T]) -> Sequence[_T]:
        """Return the same, not to be written to."""
        if len(self.places) < 2:
            return [column[place] for place in self.places]
        if self._pick is None:
            # The quickest way through thousands of entries: no call for each.
            self._pick = itemgetter(*self.places)
        chosen: tuple[_T, ...] = self._pick(column)
        return chosen

    def find(self, place: int) -> int | None:
        """Return the position of a node, None where it is no candidate."""
        if self.column is not None:
            there = np.flatnonzero(self.column == place)
            return int(there[0]) if len(there) else None
        try:
            return self.places.index(place)
        except ValueError:
            return None

    def as_column(self) -> Places:
        """Return the places as an array, kept from then on."""
        if self.column is None:
            self.column = np.array(self.places, dtype=np.int64)
        return self.column


def look_up(names: list[str], place_of: Mapping[str, int]) -> Candidates:
    """Return the nodes of these names, each looked up."""
    if len(names) > 1:
        try:
            # The quickest way through hundreds of names: no call for each.
            return Candidates(itemgetter(*names)(place_of))
        except KeyError:
            pass  # each is looked up; `contextlib.suppress` takes 3 % of a question
    known = [place_of[name] for name in names if name in place_of]
    return Candidates(known, [name for name in names if name not in place_of])


class NameIndex:
    """The names of a fleet by their bytes.

    Args:
        names: By place.
        fewest: Lists of about so many names and more are found here.
    """

    def __init__(self, names: Sequence[str], fewest: int = FEWEST) -> None:
        self._names = names
        self._fewest = fewest

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
        return None if found is None else Candidates(found.tolist(), (), found)

    def _find(self, raw: bytes) -> Places | None:
        if not (raw.startswith(b'["') and raw.endswith(b'"]') and len(raw) > 3):
            return None
        length = raw.index(b'"', 2) - 2
        # About so many: to count them would take as long as to look some of them up.
        if len(raw) < self._fewest * (length + 3):
            return None
        if (len(raw) - 1) % (length + 3) == 0:
            found = self._find_even(raw, length)
            if found is not None:
                return found
        return self._find_uneven(raw)

    def _find_even(self, raw: bytes, length: int) -> Places | None:
        """Find names that all have one length, so that they are the rows of a table."""
        known = self._by_length.get(length)
        if known is None:
            return None
        # A row is `name","`; the last one lacks its comma and quote.
        rows = np.frombuffer(raw[2:-1] + b',"', dtype=np.uint8).reshape(-1, length + 3)
        return known.find(rows[:, :length]) if _are_separators(rows[:, length:]) else None

    def _find_uneven(self, raw: bytes) -> Places | None:
        data = np.frombuffer(raw, dtype=np.uint8)
        quotes = np.flatnonzero(data == _QUOTE)
        begins, ends = quotes[::2] + 1, quotes[1::2]
        if len(begins) != len(ends) or ends[-1] != len(data) - 2:
            return None
        if (begins[1:] - ends[:-1] != 3).any() or (data[ends[:-1] + 1] != _COMMA).any():
            return None
        lengths = ends - begins
        different = np.flatnonzero(np.bincount(lengths)).tolist()
        if len(different) > MAX_LENGTHS:
            return None
        places = np.empty(len(begins), dtype=np.int64)
        for length in different:
            known = self._by_length.get(length)
            if known is None:
                return None
            where = np.flatnonzero(lengths == length)
            windows = np.lib.stride_tricks.as_strided(
                data, (len(data) - length + 1, length), (1, 1), writeable=False
            )
            found = known.find(windows[begins[where]])
            if found is None:
                return None
            places[where] = found
        return places


class _OneLength:
    """All names of one length, by a hash of their bytes."""

    def __init__(self, length: int, pairs: Sequence[tuple[bytes, int]]) -> None:
        joined = np.frombuffer(b"".join(data for data, _ in pairs), dtype=np.uint8)
        words = _words(joined.reshape(-1, length))
        hashes = _hash(words)
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._known = words[order]
        self._places = np.array([place for _, place in pairs], dtype=np.int64)[order]
        bits = len(pairs).bit_length() + 2
        self._shift = np.uint64(64 - bits)
        slots = (self._hashes >> self._shift).astype(np.int64)
        self._first = np.searchsorted(slots, np.arange(1 << bits, dtype=np.int64))
        self._first = np.minimum(self._first, len(pairs) - 1)
        self._most = int(np.bincount(slots).max())

    def find(self, rows: _Bytes) -> Places | None:
        """Return the place of each name, None where one is not known.

        Args:
            rows: Bytes of names, shape (name, byte).
        """
        words = _words(rows)
        hashes = _hash(words)
        at = self._first[(hashes >> self._shift).astype(np.int64)]
        for _ in range(1, self._most):
            others = np.flatnonzero(self._hashes[at] != hashes)
            if not len(others):
                break
            at[others] = np.minimum(at[others] + 1, len(self._hashes) - 1)
        # Of two names with one hash the second is not found, and all are read slowly.
        is_whole = np.array_equal(self._known.take(at, axis=0), words)
        return self._places[at] if is_whole else None


def _words(rows: _Bytes) -> _Words:
    """Return the bytes of each row as words, the last one filled with zeros."""
    count, length = rows.shape
    padded = np.zeros((count, -(-length // _WORD) * _WORD), dtype=np.uint8)
    padded[:, :length] = rows
    return padded.view("<u8")


def _hash(words: _Words) -> _Words:
    mixed: _Words = words[:, 0] * _FACTORS[0]
    for column in range(1, words.shape[1]):
        mixed ^= mixed >> _FOLD
        mixed += words[:, column]
        mixed *= _FACTORS[column]
    mixed ^= mixed >> _FOLD
    mixed *= _FACTORS[0]
    return mixed


def _are_separators(columns: _Bytes) -> bool:
    """Return whether each row is a quote, a comma and a quote."""
    return bool(
        (columns[:, 0] == _QUOTE).all()
        and (columns[:, 1] == _COMMA).all()
        and (columns[:, 2] == _QUOTE).all()
    )
