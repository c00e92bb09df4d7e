"""What an error of the database means to whoever asked for a unit of work."""

import contextlib
from collections.abc import Iterator

from sqlalchemy.exc import OperationalError

from gpuplane.kit.errors import Unavailable

RETRYABLE_STATES = {"40001", "40P01"}
DISK_FULL_STATE = "53100"
AWAY_RETRY_AFTER_S = 5
WRONG_STATEMENTS = ("no such table", "no such column", "near ", "attempt to write a readonly")
"""How SQLite begins to tell of a statement that no waiting will help."""


class GroupLost(Exception):
    """SQLite rolled the whole transaction back under one unit, as it does when the disk is full.

    The units before it in the group are undone too, and none may be told that it is stored.
    """


def public_error(error: BaseException) -> BaseException:
    """Return what the caller of a unit should see for a database error.

    A full disk may hide behind its consequences, such as a savepoint that is gone.
    """
    if isinstance(error, OperationalError | GroupLost) and not _is_our_mistake(error):
        full = any(
            "disk is full" in str(each) or getattr(each, "sqlstate", None) == DISK_FULL_STATE
            for each in _causes(error)
        )
        away = Unavailable(
            "The disk that holds the database is full."
            if full
            else "The database cannot be reached just now.",
            code="storage_full" if full else "database_unavailable",
            fix="Free disk space." if full else "Try again; nothing was stored.",
            retry_after_s=AWAY_RETRY_AFTER_S,
        )
        away.__cause__ = error
        return away
    return error


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Turn an unreachable database into `Unavailable`, and let retryable errors through."""
    try:
        yield
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) in RETRYABLE_STATES:
            raise
        raise public_error(error) from error


def _is_our_mistake(error: BaseException) -> bool:
    """Return whether a statement is wrong rather than the database away: it is to be logged."""
    said = str(getattr(error, "orig", error))
    return said.startswith(WRONG_STATEMENTS)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and everything that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ if error.__cause__ is not None else error.__context__
