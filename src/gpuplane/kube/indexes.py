"""Objects of one kind found by something of theirs, kept in step by whoever keeps the objects."""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace and name."""


class Index(Generic[T]):
    """Objects by something of theirs."""

    def __init__(self, keys_of: Callable[[T], Iterable[Hashable]]) -> None:
        """Hold nothing; `keys_of` gives for an object no, one or more keys, and is pure."""
        self._keys_of = keys_of
        self._found: dict[Hashable, set[Key]] = {}
        self._of: dict[Key, tuple[Hashable, ...]] = {}

    def put(self, key: Key, value: T) -> None:
        """Take note of an object as it is now."""
        wanted = tuple(dict.fromkeys(self._keys_of(value)))
        if self._of.get(key, ()) == wanted:
            return
        self.drop(key)
        if wanted:
            self._of[key] = wanted
        for one in wanted:
            self._found.setdefault(one, set()).add(key)

    def drop(self, key: Key) -> None:
        """Forget an object; one that is not known changes nothing."""
        for one in self._of.pop(key, ()):
            held = self._found[one]
            held.discard(key)
            if not held:
                del self._found[one]

    def find(self, key: Hashable) -> set[Key]:
        """Return which objects have a key; not to be changed."""
        return self._found.get(key, set())
