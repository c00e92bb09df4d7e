"""Reads the fields of a document that a person wrote and collects what is wrong with them.

Owns the form of a problem (field, reason, fix). Knows no field of its own and raises only at the
end, with every problem at once.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one field: its place, the reason and the fix, whole sentences."""

    field: str
    reason: str
    fix: str


class BadSpec(ValueError):
    """A specification that cannot be meant; holds every problem that was found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Keep the problems in the order of the document."""
        super().__init__("; ".join(f"{each.field}: {each.reason}" for each in problems))
        self.problems = tuple(problems)


@dataclass(slots=True)
class Fields:
    """The fields of one mapping of a document, each read once; what nobody read is unknown.

    A value that is wrong is noted and replaced by what `default` says, so that reading goes on.
    """

    values: Mapping[str, Any]
    place: str
    problems: list[Problem]
    read: list[str] = field(default_factory=list)

    def wrong(self, name: str, reason: str, fix: str) -> None:
        """Note a problem of a field."""
        self.problems.append(Problem(self._at(name), reason, fix))

    def has(self, name: str) -> bool:
        """Return whether a field is given."""
        return self.values.get(name) is not None

    def text(
        self, name: str, pattern: re.Pattern[str], what: str, *, default: str | None = ""
    ) -> str:
        """Return a text of a form; one that is missing is a problem unless a default is given.

        Args:
            name: The field.
            pattern: What the whole text must match.
            what: The form in words, with an example.
            default: Where the field is absent; None makes it required.
        """
        value = self._take(name)
        if value is None:
            if default is None:
                self.wrong(name, "It is missing.", f"Give it {what}.")
            return default or ""
        if not isinstance(value, str):
            self.wrong(name, f"{_shown(value)} is no text.", f'Write {what}, in "quotes".')
            return default or ""
        if not pattern.fullmatch(value):
            self.wrong(name, f"{_shown(value)} is not {what}.", f"Give it {what}.")
            return default or ""
        return value

    def number(self, name: str, least: int, most: int, *, default: int) -> int:
        """Return a whole number within bounds."""
        value = self._take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(name, f"{_shown(value)} is no whole number.", "Write a number.")
            return default
        if not least <= value <= most:
            self.wrong(name, f"{value} is out of bounds.", f"Choose {least} to {most}.")
            return default
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(name, f"{_shown(value)} is neither true nor false.", "Write true or false.")
            return default
        return value

    def texts(self, name: str, pattern: re.Pattern[str], what: str) -> tuple[str, ...]:
        """Return a list of different texts of a form, in the order of the document."""
        value = self._take(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.wrong(name, f"{_shown(value)} is no list.", f"Write a list; each is {what}.")
            return ()
        found: list[str] = []
        for index, each in enumerate(value):
            if not isinstance(each, str) or not pattern.fullmatch(each):
                self.wrong(f"{name}[{index}]", f"{_shown(each)} is not {what}.", f"Give {what}.")
            elif each in found:
                self.wrong(f"{name}[{index}]", f"{each!r} stands twice.", "Leave one out.")
            else:
                found.append(each)
        return tuple(found)

    def pairs(
        self, name: str, key: re.Pattern[str], value: re.Pattern[str], what: str
    ) -> tuple[tuple[str, str], ...]:
        """Return a mapping of texts as pairs sorted by key."""
        given = self._take(name)
        if given is None:
            return ()
        if not isinstance(given, dict):
            self.wrong(name, f"{_shown(given)} is no mapping.", "Write keys and values.")
            return ()
        found = {}
        for one, text in given.items():
            if not key.fullmatch(one) or not isinstance(text, str) or not value.fullmatch(text):
                self.wrong(f"{name}.{one}", f"{_shown(text)} is not {what}.", f"Give {what}.")
            else:
                found[one] = text
        return tuple(sorted(found.items()))

    def part(self, name: str) -> "Fields":
        """Return the fields of a mapping inside this one; none where it is absent."""
        value = self._take(name)
        if value is not None and not isinstance(value, dict):
            self.wrong(name, f"{_shown(value)} is no mapping.", "Write fields and values.")
            value = None
        return Fields(value or {}, self._at(name), self.problems)

    def parts(self, name: str, most: int) -> "list[Fields]":
        """Return the mappings of a list."""
        value = self._take(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > most:
            self.wrong(name, f"It is no list of at most {most}.", "Write a list of mappings.")
            return []
        found = []
        for index, each in enumerate(value):
            if isinstance(each, dict):
                found.append(Fields(each, self._at(f"{name}[{index}]"), self.problems))
            else:
                self.wrong(f"{name}[{index}]", f"{_shown(each)} is no mapping.", "Write fields.")
        return found

    def refuse_rest(self) -> None:
        """Note every field that nobody asked for, with the nearest name."""
        for name in self.values:
            if name not in self.read:
                near = difflib.get_close_matches(name, self.read, 1)
                fix = f"Did you mean {near[0]!r}?" if near else "Leave it out."
                self.wrong(name, "There is no such field here.", fix)

    def _take(self, name: str) -> Any:
        self.read.append(name)
        return self.values.get(name)

    def _at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
