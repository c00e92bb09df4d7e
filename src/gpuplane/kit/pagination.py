"""Cursor pages: an opaque position, never an offset, so that a list may change while it is read."""

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpuplane.kit.errors import InvalidInput

T = TypeVar("T")
U = TypeVar("U")

DEFAULT_LIMIT = 50
MAX_LIMIT = 500


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What page is asked: at most `limit` rows after the last row seen, by its sort keys."""

    limit: int = DEFAULT_LIMIT
    after: tuple[object, ...] | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of rows, and the cursor of the next one if there is more."""

    items: tuple[T, ...]
    next_cursor: str | None = None

    def map(self, items: Sequence[U]) -> "Page[U]":
        """Return the same page with other items."""
        return Page(tuple(items), self.next_cursor)


def encode_cursor(sort: str, keys: Sequence[object]) -> str:
    """Return the cursor that names a position in a list sorted by `sort`."""
    text = json.dumps([sort, *keys], separators=(",", ":"), default=str)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None, sort: str) -> tuple[object, ...] | None:
    """Return the sort keys a cursor stands for.

    Raises:
        InvalidInput: If the cursor is damaged or belongs to a list sorted otherwise.
    """
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        value = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if not isinstance(value, list) or value[0] != sort:
            raise ValueError("another list")
        keys = tuple(value[1:])
        if not all(isinstance(key, (str, int, float, type(None))) for key in keys):
            raise ValueError("not scalar keys")
        if any(isinstance(key, int) and abs(key) >= 2**63 for key in keys):
            raise ValueError("not a number a column can hold")
        if any(isinstance(key, str) and "\x00" in key for key in keys):
            raise ValueError("not a text a column can hold")
    except (ValueError, IndexError, binascii.Error, UnicodeDecodeError) as error:
        raise InvalidInput(
            "The cursor does not belong to this list.",
            code="invalid_cursor",
            field="cursor",
            fix="Leave the cursor out to start from the first page, and keep sort and filters.",
        ) from error
    return keys
