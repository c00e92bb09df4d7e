"""Names as pipelines take them: ids of steps, unique in the document, and names of pipelines."""

import re

MAX_ID = 80
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]+")
_NOT_IN_NAME = re.compile(r"[^a-z0-9-]+")


class Ids:
    """Gives ids that nobody else has."""

    def __init__(self) -> None:
        """Begin with none."""
        self._taken: set[str] = set()

    def new(self, wanted: str) -> str:
        """Return an id as near to the wanted one as may be."""
        first = word_of(wanted)[:MAX_ID]
        found, count = first, 1
        while found in self._taken:
            count += 1
            found = f"{first}-{count}"
        self._taken.add(found)
        return found


def word_of(text: str) -> str:
    """Return text as the id of a step or the name of a parameter."""
    return _NOT_IN_ID.sub("-", text).strip("-")[:100] or "step"


def name_of(text: str) -> str:
    """Return text as the name of a pipeline, a secret or a volume: lower case, 63 characters."""
    return _NOT_IN_NAME.sub("-", text.lower()).strip("-")[:63].strip("-") or "imported"
