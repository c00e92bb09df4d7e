"""Units of work on their way to the database and their answers on the way back.

Owns who waits for what; never a connection or a statement.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gpuplane.db.sessions import WriteSession

Item = TypeVar("Item")
Result = TypeVar("Result")

GATHER_LIMIT = 64
"""Items that one call of a gathered unit is given at most: bounds how long it holds the writer."""


@dataclass(frozen=True, eq=False)
class Gathered(Generic[Item, Result]):
    """A unit of work that answers many callers at once, for what arrives often and is small.

    What waits for the writer together is done by one call, so that statements, savepoints and
    look-ups are shared. Callers do not notice: an item that is refused hurts no other.

    Args:
        name: `domain.verb`; names the failpoints and the metric, as for any unit.
        work: Returns an outcome for each item, in order: its result, or the exception that
            refuses it, and then nothing was written for it. If it raises, everything is undone
            and each item is tried alone.
    """

    name: str
    work: Callable[[WriteSession, Sequence[Item]], Sequence[Result | Exception]]


@dataclass(slots=True, eq=False)
class Unit:
    """One caller's unit of work, and where its answer goes.

    Attributes:
        work: What to do, for a unit of its own.
        gathered: What to do it with, for one item of a gathered unit.
        loop: The event loop that `waiter` belongs to; None when a thread waits.
    """

    name: str
    waiter: "asyncio.Future[Any] | Future[Any]"
    loop: asyncio.AbstractEventLoop | None = None
    work: Callable[[WriteSession], Any] | None = None
    gathered: Gathered[Any, Any] | None = None
    item: Any = None
    result: Any = None
    error: BaseException | None = None
    woken: set[str] = field(default_factory=set)


def run_units(units: Sequence[Unit], session: WriteSession) -> None:
    """Run one unit, or the items of one gathered unit, and note what comes of each."""
    first = units[0]
    outcomes: Sequence[Any]
    if first.gathered is not None:
        outcomes = first.gathered.work(session, [unit.item for unit in units])
    else:
        assert first.work is not None, "a unit that is not gathered has its own work"
        outcomes = (first.work(session),)
    for unit, outcome in zip(units, outcomes, strict=True):
        if unit.gathered is not None and isinstance(outcome, Exception):
            unit.error, unit.result = outcome, None
        else:
            unit.error, unit.result = None, outcome
    first.woken = session.woken


def answer_units(units: Iterable[Unit]) -> None:
    """Tell the callers what came of their units; those who went away are passed over.

    Callers on one event loop are told together: waking it once for each costs more than the work.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[Unit]] = {}
    for unit in units:
        if unit.loop is None:
            _answer(unit)
        else:
            by_loop.setdefault(unit.loop, []).append(unit)
    for loop, there in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits there
            loop.call_soon_threadsafe(_answer_all, there)


def _answer_all(units: Iterable[Unit]) -> None:
    for unit in units:
        _answer(unit)


def _answer(unit: Unit) -> None:
    waiter = unit.waiter
    if waiter.done():
        return
    with contextlib.suppress(InvalidStateError):  # cancelled by a thread at this very moment
        if unit.error is not None:
            waiter.set_exception(unit.error)
        else:
            waiter.set_result(unit.result)
