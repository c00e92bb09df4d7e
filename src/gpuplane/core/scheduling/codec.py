"""Frozen values to JSON and back by their declared types, exactly.

Owns the mapping for every kind of field that the core's values have; a type it does not know is
an error at the first use, never a guess. Keys are sorted where a value has no order of its own,
so that equal values give equal bytes.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints
from uuid import UUID

Reader = Callable[[Any], Any]


class Codec:
    """Encodes and decodes; values of `shared` types are written once and named by their place.

    Args of the constructor:
        shared: Types of which a snapshot has many equal values, such as link matrices.
        pool: The shared values of a text that is read, empty for one that is written.
    """

    def __init__(self, shared: tuple[type, ...] = (), pool: list[Any] | None = None) -> None:
        self._shared = shared
        self._places: dict[Any, int] = {}
        self.pool: list[Any] = [] if pool is None else pool
        self._read: list[Any] = []
        self._readers: dict[Any, Reader] = {}

    def encode(self, value: Any) -> Any:
        """Return a value as JSON types.

        Raises:
            TypeError: If it has a part of no known kind.
        """
        if isinstance(value, Enum):
            return value.value
        if value is None or isinstance(value, (bool, str, int, float)):
            return value
        if isinstance(value, UUID):
            return str(value)
        if isinstance(value, self._shared):
            return self._place_of(value)
        if isinstance(value, (tuple, list)):
            return [self.encode(each) for each in value]
        if isinstance(value, (set, frozenset)):
            return sorted((self.encode(each) for each in value), key=repr)
        if isinstance(value, Mapping):
            pairs = [[self.encode(key), self.encode(each)] for key, each in value.items()]
            return sorted(pairs, key=lambda pair: repr(pair[0]))
        if is_dataclass(value) and not isinstance(value, type):
            return self._encode_fields(value)
        raise TypeError(f"no way to write a {type(value).__name__}")

    def decode(self, kind: Any, value: Any) -> Any:
        """Return the value of a declared type that JSON types stand for.

        Raises:
            TypeError: If the type is of no known kind.
            ValueError: If the JSON does not fit it.
        """
        return self._reader(kind)(value)

    def decode_fields(self, kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return some fields of a value by name, for a type of which others are written apart."""
        hints = _hints_of(kind)
        return {name: self._reader(hints[name])(each) for name, each in values.items()}

    def load_pool(self, kinds: Mapping[str, type]) -> None:
        """Read the shared values of a text; `kinds` are the shared types by name."""
        for name, value in self.pool:
            self._read.append(self._read_fields(kinds[name], value))

    def _encode_fields(self, value: Any) -> dict[str, Any]:
        return {
            each.name: self.encode(getattr(value, each.name)) for each in fields(value) if each.init
        }

    def _place_of(self, value: Any) -> int:
        place = self._places.get(value)
        if place is None:
            place = self._places[value] = len(self.pool)
            self.pool.append([type(value).__name__, self._encode_fields(value)])
        return place

    def _reader(self, kind: Any) -> Reader:
        found = self._readers.get(kind)
        if found is None:
            found = self._readers[kind] = self._make_reader(kind)
        return found

    def _make_reader(self, kind: Any) -> Reader:
        while isinstance(kind, NewType):
            kind = kind.__supertype__
        origin = get_origin(kind)
        if origin in (Union, UnionType):
            return self._read_union(kind)
        if origin is not None:
            return self._read_container(origin, get_args(kind))
        if isinstance(kind, type):
            return self._read_plain(kind)
        raise TypeError(f"no way to read a {kind}")

    def _read_union(self, kind: Any) -> Reader:
        inner = [each for each in get_args(kind) if each is not NoneType]
        if len(inner) != 1:
            raise TypeError(f"no way to tell which of {kind} was written")
        read = self._reader(inner[0])
        return lambda value: None if value is None else read(value)

    def _read_container(self, origin: Any, args: tuple[Any, ...]) -> Reader:
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            read = self._reader(args[0])
            return lambda value: tuple(read(each) for each in value)
        if origin is tuple:
            readers = [self._reader(each) for each in args]
            return lambda value: tuple(
                read(each) for read, each in zip(readers, value, strict=True)
            )
        if origin in (frozenset, set):
            read = self._reader(args[0])
            return lambda value: frozenset(read(each) for each in value)
        if origin in (dict, Mapping):
            read_key, read_value = self._reader(args[0]), self._reader(args[1])
            return lambda value: {read_key(key): read_value(each) for key, each in value}
        raise TypeError(f"no way to read a {origin}")

    def _read_plain(self, kind: type) -> Reader:
        if kind in (bool, int, float, str):
            return lambda value: _exactly(kind, value)
        if issubclass(kind, (Enum, UUID)):
            return kind
        if kind in self._shared:
            return lambda place: self._read[place]
        if hasattr(kind, "_fields"):
            hints = get_type_hints(kind)
            names: tuple[str, ...] = kind._fields
            readers = [self._reader(hints[name]) for name in names]
            return lambda value: kind(
                *(read(each) for read, each in zip(readers, value, strict=True))
            )
        if is_dataclass(kind):
            return lambda value: self._read_fields(kind, value)
        raise TypeError(f"no way to read a {kind.__name__}")

    def _read_fields(self, kind: type, value: Any) -> Any:
        hints = _hints_of(kind)
        if not isinstance(value, dict) or not value.keys() <= hints.keys():
            raise ValueError(f"this is no {kind.__name__}: {str(value)[:100]}")
        return kind(**self.decode_fields(kind, value))


def _exactly(kind: type, value: Any) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, found {value!r}")
    return value


@cache
def _hints_of(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)
