"""Reads one page of a list by the sort keys of the last row seen; never counts or skips rows."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, Select, literal, tuple_

from gpuplane.db.sessions import ReadSession
from gpuplane.kit.errors import InvalidInput
from gpuplane.kit.pagination import Page, PageRequest, encode_cursor

T = TypeVar("T")


def load_page(
    session: ReadSession,
    query: Select[Any],
    keys: Sequence[ColumnElement[Any]],
    page: PageRequest,
    shape: Callable[[Any], T],
    *,
    sort: str,
) -> Page[T]:
    """Return one page of a query sorted by its key columns.

    Args:
        session: Where to read.
        query: What to list, without order or limit; it selects the key columns.
        keys: Columns that are never NULL, the last one unique; an index should begin with them.
        page: The page asked for; its cursor was decoded with the same `sort`.
        shape: Makes an item from a row.
        sort: The name of the order, kept in the cursor; a leading `-` means descending.

    Raises:
        InvalidInput: If the cursor does not hold what these keys hold.
    """
    descending = sort.startswith("-")
    if page.after is not None:
        query = query.where(_beyond(keys, page.after, descending=descending))
    order = [key.desc() if descending else key.asc() for key in keys]
    rows = session.rows(query.order_by(*order).limit(page.limit + 1))
    shown = rows[: page.limit]
    items = tuple(shape(row) for row in shown)
    if len(rows) <= page.limit:
        return Page(items)
    return Page(items, encode_cursor(sort, [shown[-1][key] for key in keys]))


def _beyond(
    keys: Sequence[ColumnElement[Any]], after: tuple[object, ...], *, descending: bool
) -> ColumnElement[bool]:
    if len(keys) != len(after):
        raise _foreign()
    values = [literal(_typed(key, value), key.type) for key, value in zip(keys, after, strict=True)]
    if len(keys) == 1:
        return keys[0] < values[0] if descending else keys[0] > values[0]
    left, right = tuple_(*keys), tuple_(*values)
    return left < right if descending else left > right


def _typed(key: ColumnElement[Any], value: object) -> object:
    """Return a key of a cursor as its column holds it."""
    kind = key.type.python_type
    if kind is UUID and isinstance(value, str):
        try:
            return UUID(value)
        except ValueError as error:
            raise _foreign() from error
    if isinstance(value, bool) or not isinstance(value, kind):
        raise _foreign()
    return value


def _foreign() -> InvalidInput:
    return InvalidInput(
        "The cursor does not belong to this list.",
        code="invalid_cursor",
        field="cursor",
        fix="Leave the cursor out to start from the first page, and keep sort and filters.",
    )
