"""Reads a YAML document strictly: every mistake with its path, its reason and its fix.

Owns the walk over mappings and lists, unknown and repeated keys, and wrong types; knows nothing
of fleets. All mistakes are collected, so that one look at the answer mends the file.
"""

import difflib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import yaml

from gpuplane.kit.errors import FieldError, Unprocessable
from gpuplane.kit.yaml_texts import PlainLoader

MAX_BYTES = 4 * 1024 * 1024
"""Size of a fleet file; a thousand node groups with link matrices take less."""
MAX_PROBLEMS = 50
"""Mistakes told at once."""
MAX_DEPTH = 20
"""Nesting of a document; the format needs seven levels."""

T = TypeVar("T")


class FleetError(Unprocessable):
    """A fleet cannot be read; names the file and every mistake found in it.

    Args:
        source: What the text was read from, for people.
        errors: The mistakes in the order of the document, at least one.
    """

    code = "invalid_fleet"

    def __init__(self, source: str, errors: tuple[FieldError, ...]) -> None:
        self.source = source
        lines = (f"{source}: {error.field}: {error.reason}; {error.fix}" for error in errors)
        super().__init__("\n".join(lines), fix=errors[0].fix, field=errors[0].field, errors=errors)


class _StrictLoader(PlainLoader):
    """A loader that takes no merge keys and no keys but text."""


def _construct_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    found: dict[Hashable, Any] = {}
    for key_node, value_node in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise yaml.constructor.ConstructorError(
                None, None, "merge keys (<<) are not supported", key_node.start_mark
            )
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} is not a text", key_node.start_mark
            )
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def load_document(text: str, source: str) -> object:
    """Return the one YAML document in the text.

    Raises:
        FleetError: If it is no YAML, too large or too deep, or not exactly one document.
    """
    if len(text) > MAX_BYTES:
        raise _whole(source, f"the file has {len(text)} characters", f"keep it under {MAX_BYTES}")
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_StrictLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise _whole(source, "aliases (*name) are not supported", "write the value out")
            if depth > MAX_DEPTH:
                raise _whole(source, f"it is nested deeper than {MAX_DEPTH} levels", "flatten it")
        documents = list(yaml.load_all(text, Loader=_StrictLoader))
    except (yaml.YAMLError, ValueError) as error:
        raise _whole(source, f"it is not YAML: {_first_lines(error)}", "mend that line") from error
    if len(documents) != 1:
        raise _whole(source, f"it holds {len(documents)} documents", "write exactly one Fleet")
    document: object = documents[0]
    return document


def _whole(source: str, reason: str, fix: str) -> FleetError:
    return FleetError(source, (FieldError("(document)", reason, fix),))


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


class Collector:
    """Gathers the mistakes of one document."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._problems: list[FieldError] = []

    def add(self, path: str, reason: str, fix: str) -> None:
        """Note one mistake."""
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(FieldError(path, reason, fix))

    def raise_if_any(self) -> None:
        """Raise FleetError if there was a mistake."""
        if self._problems:
            raise FleetError(self.source, tuple(self._problems))

    @property
    def is_clean(self) -> bool:
        """Return whether no mistake was noted."""
        return not self._problems


class Section:
    """One mapping of the document; what is taken from it is checked, what is left is refused."""

    def __init__(self, value: object, path: str, collector: Collector) -> None:
        self.path = path
        self._collector = collector
        self._known: list[str] = []
        self._values: dict[str, object] = {}
        if isinstance(value, dict):
            self._values = value
        else:
            self.refuse("", f"{_kind(value)} stands here", "write a mapping (key: value)")

    def at(self, key: str) -> str:
        """Return the path of a key."""
        if not key:
            return self.path
        return f"{self.path}.{key}" if self.path else key

    def refuse(self, key: str, reason: str, fix: str) -> None:
        """Note a mistake in the value of a key; empty for the section itself."""
        self._collector.add(self.at(key), reason, fix)

    def has(self, key: str) -> bool:
        """Return whether the key is given, and count it as known."""
        self._known.append(key)
        return self._values.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text; a key without a default must be given."""
        value = self._get(key, required=default is None)
        if value is None:
            return default or ""
        if not isinstance(value, str):
            self.refuse(key, f"{_kind(value)} stands here", "write a text (quote it)")
            return default or ""
        if not value and default is None:
            self.refuse(key, "it is empty", "write a text")
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return a whole number in [low, high]."""
        value = self._get(key, required=default is None)
        if value is None:
            return low if default is None else default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            shown = value if isinstance(value, int) else _kind(value)
            self.refuse(key, f"{shown} stands here", f"write a whole number from {low} to {high}")
            return low
        return value

    def amount(self, key: str, parse: Callable[[object], T], default: T) -> T:
        """Return what `parse` makes of a value that may be absent."""
        value = self._get(key, required=False)
        return default if value is None else self._parsed(key, value, parse, default)

    def required_amount(self, key: str, parse: Callable[[object], T], stand_in: T) -> T:
        """Return what `parse` makes of a value that must be given."""
        value = self._get(key, required=True)
        return stand_in if value is None else self._parsed(key, value, parse, stand_in)

    def section(self, key: str) -> "Section":
        """Return a nested mapping; an empty one where the key is absent."""
        value = self._get(key, required=False)
        return Section({} if value is None else value, self.at(key), self._collector)

    def sections(self, key: str) -> Iterator["Section"]:
        """Yield the mappings of a list."""
        for index, value in enumerate(self._list(key)):
            yield Section(value, f"{self.at(key)}[{index}]", self._collector)

    def texts(self, key: str) -> list[str]:
        """Return a list of texts."""
        found = []
        for index, value in enumerate(self._list(key)):
            if isinstance(value, str):
                found.append(value)
            else:
                self.refuse(f"{key}[{index}]", f"{_kind(value)} stands here", "write a text")
        return found

    def integers(self, key: str, low: int, high: int) -> list[int]:
        """Return a list of whole numbers in [low, high]."""
        found = []
        for index, value in enumerate(self._list(key)):
            if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
                found.append(value)
            else:
                fix = f"write a whole number from {low} to {high}"
                self.refuse(f"{key}[{index}]", f"{value!r} stands here", fix)
        return found

    def text_map(self, key: str) -> dict[str, str]:
        """Return a mapping of texts to texts."""
        inner = self.section(key)
        return {name: inner.text(name) for name in inner.keys()}  # noqa: SIM118  # not a dict

    def keys(self) -> list[str]:
        """Return the keys that are given."""
        return list(self._values)

    @property
    def is_clean(self) -> bool:
        """Return whether no mistake was noted in the document so far."""
        return self._collector.is_clean

    def finish(self) -> None:
        """Refuse every key that was never asked for."""
        for key in self._values:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, n=1)
                known = ", ".join(sorted(set(self._known)))
                fix = f"did you mean {near[0]}?" if near else f"known here: {known}"
                self.refuse(key, "this key is not known", fix)

    def _get(self, key: str, *, required: bool) -> object:
        self._known.append(key)
        value = self._values.get(key)
        if value is None and required:
            self.refuse(key, "it is missing", "every fleet needs it")
        return value

    def _list(self, key: str) -> list[object]:
        value = self._get(key, required=False)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(key, f"{_kind(value)} stands here", "write a list (- item)")
            return []
        return value

    def _parsed(self, key: str, value: object, parse: Callable[[object], T], stand_in: T) -> T:
        try:
            return parse(value)
        except ValueError as error:
            reason, fix = getattr(error, "reason", str(error)), getattr(error, "fix", "correct it")
            self.refuse(key, reason, fix)
            return stand_in


def _kind(value: object) -> str:
    """Return what a value is, in a person's words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return "a list" if isinstance(value, list) else "a mapping"
