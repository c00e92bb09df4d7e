"""Reads `depends` of a DAG: which tasks a task comes after, and on what ends of theirs it runs."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuplane.core.imports.results import Malformed

_TOKEN = re.compile(r"\s*(&&|\|\||!|\(|\)|[A-Za-z0-9_][\w-]*(?:\.[A-Za-z]+)?)")
ENDS = ("Succeeded", "Failed", "Errored", "Skipped", "Omitted", "Daemoned", "Completed",
        "AnySucceeded", "AllFailed")  # fmt: skip
_ORDINARY = {("Succeeded", "Skipped"), ("Succeeded", "Skipped", "Daemoned"), ()}


@dataclass(frozen=True, slots=True)
class Depends:
    """A `depends` as it was written.

    Args:
        tokens: Its words and signs.
        tasks: The tasks it names.
        is_plain: Whether it only says after whom the task comes.
    """

    tokens: tuple[str, ...]
    tasks: tuple[str, ...]
    is_plain: bool

    @property
    def needs_ends(self) -> bool:
        """Return whether it asks for an end of a task other than success or being skipped."""
        return any(each.partition(".")[2] not in ("", "Succeeded", "Skipped", "Daemoned")
                   for each in self.tokens if each not in ("&&", "||", "!", "(", ")"))  # fmt: skip

    def as_cel(self, end_of: Callable[[str, str], str]) -> str:
        """Return the condition, with CEL for each end of a task.

        Args:
            end_of: CEL of whether a task ended so; an empty end is that of a task named alone.
        """
        made = []
        for token in self.tokens:
            if token in ("&&", "||", "!", "(", ")"):
                made.append(token)
            else:
                name, _, end = token.partition(".")
                made.append(f"({end_of(name, end)})")
        return " ".join(made)


def read_depends(text: str, place: str) -> Depends:
    """Return what a `depends` says.

    Raises:
        Malformed: If it cannot be read.
    """
    tokens: list[str] = []
    plain, at = text.strip(), 0
    while at < len(plain):
        found = _TOKEN.match(plain, at)
        if found is None or len(tokens) > 2_000:
            raise Malformed(place, f"It cannot be read from {plain[at : at + 20]!r} on.")
        tokens.append(found[1])
        at = found.end()
    _check(tokens, place)
    names = [each for each in tokens if each not in ("&&", "||", "!", "(", ")")]
    for each in names:
        end = each.partition(".")[2]
        if end and end not in ENDS:
            raise Malformed(place, f"A task does not end {end!r}.")
    tasks = tuple(dict.fromkeys(each.partition(".")[0] for each in names))
    return Depends(tuple(tokens), tasks, _is_plain(tokens))


def _is_plain(tokens: Sequence[str]) -> bool:
    """Return whether every task has to succeed or be skipped, which is what steps do anyway."""
    if "!" in tokens:
        return False
    groups = " ".join(tokens).replace("(", "").replace(")", "").split("&&")
    for group in groups:
        parts = [each.strip() for each in group.split("||")]
        names = {each.partition(".")[0] for each in parts}
        ends = tuple(each.partition(".")[2] for each in parts if "." in each)
        if len(names) != 1 or ends not in _ORDINARY:
            return False
    return "||" not in tokens or "(" in tokens or len(groups) == 1


def _check(tokens: Sequence[str], place: str) -> None:
    depth, wants = 0, True
    for each in tokens:
        depth += (each == "(") - (each == ")")
        if each in ("&&", "||", ")"):
            is_wrong, wants = wants, each != ")"
        elif each in ("!", "("):
            is_wrong = not wants
        else:
            is_wrong, wants = not wants, False
        if is_wrong or depth < 0:
            raise Malformed(place, f"It cannot be read at {each!r}.")
    if depth or wants:
        raise Malformed(place, "It ends too early.")
