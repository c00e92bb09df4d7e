"""SQLite's one writer: a thread with one connection that commits queued units in groups.

Each unit runs in a savepoint of its own, so one that fails leaves the others alone; what is
queued for the same gathered unit shares one. Nobody is told of a unit before its commit.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from gpuplane.db.sessions import WriteSession
from gpuplane.db.troubles import GroupLost, public_error, translated_errors
from gpuplane.db.units import GATHER_LIMIT, Unit, answer_units, run_units
from gpuplane.kit.failpoints import failpoint

GROUP_LIMIT = 128
"""Units of work committed together at most: bounds what one lost fsync can delay."""
GROUP_TIME_S = 0.02
"""How long a group may grow before it is committed."""


@dataclass(slots=True)
class UnitTimes:
    """How long units of one name took, for `/metrics`."""

    count: int = 0
    seconds: float = 0.0
    failures: int = 0


class Writer:
    """The thread that writes; units are put into its queue from anywhere."""

    def __init__(
        self, engine: Engine, times: dict[str, UnitTimes], announce: Callable[[set[str]], None]
    ) -> None:
        """Start the thread; it connects at its first unit.

        Args:
            engine: Where to connect.
            times: Where to count how long units take.
            announce: Told which loops to wake, after each commit.
        """
        self._engine = engine
        self._times = times
        self._announce = announce
        self._units: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()
        self._ahead: Unit | None = None
        """Taken from the queue while looking for more of its like; it is next."""
        self._thread = threading.Thread(target=self._run, name="db-write", daemon=True)
        self._thread.start()

    def put(self, unit: Unit) -> None:
        """Queue a unit."""
        self._units.put(unit)

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        self._units.put(None)
        self._thread.join()

    def _run(self) -> None:
        connection: Connection | None = None
        while True:
            unit, self._ahead = self._ahead or self._units.get(), None
            if unit is None:
                break
            try:
                with translated_errors():
                    if connection is None:
                        connection = self._engine.connect()
                    self._run_group(connection, unit)
            except BaseException as error:  # noqa: BLE001 - the caller of the unit gets it
                unit.error = error
                answer_units([unit])
                if connection is not None:
                    with contextlib.suppress(SQLAlchemyError):
                        connection.close()
                    connection = None
        if connection is not None:
            connection.close()

    def _run_group(self, connection: Connection, first: Unit) -> None:
        """Run queued units in one transaction and commit them together."""
        done: list[Unit] = []
        failed: list[Unit] = []
        count = 0
        unit: Unit | None = first
        until = time.monotonic() + GROUP_TIME_S
        try:
            with connection.begin() as transaction:
                while unit is not None:
                    mates = self._mates_of(unit)
                    self._run_mates(connection, mates, done, failed)
                    count += len(mates)
                    if count >= GROUP_LIMIT or time.monotonic() > until:
                        break
                    unit = self._next_queued()
                for name in [unit.name for unit in done]:
                    failpoint(f"{name}:before")
                transaction.commit()
        except BaseException as error:
            failure = public_error(error)
            for each in done:
                each.error = failure
            answer_units([*done, *failed])
            raise failure from error
        self._announce(set().union(*(each.woken for each in done)))
        answer_units([*done, *failed])

    def _mates_of(self, first: Unit) -> list[Unit]:
        """Return a unit with those right behind it that are items of the same gathered unit."""
        mates = [first]
        while first.gathered is not None and len(mates) < GATHER_LIMIT:
            following = self._next_queued()
            if following is None:
                break
            if following.gathered is not first.gathered:
                self._ahead = following
                break
            mates.append(following)
        return mates

    def _next_queued(self) -> Unit | None:
        if self._ahead is not None:
            unit, self._ahead = self._ahead, None
            return unit
        try:
            following = self._units.get_nowait()
        except queue.Empty:
            return None
        if following is None:  # closing: leave the mark for the outer loop
            self._units.put(None)
        return following

    def _run_mates(
        self, connection: Connection, mates: list[Unit], done: list[Unit], failed: list[Unit]
    ) -> None:
        """Run units that share a savepoint; if that fails, each in one of its own."""
        if self._run_in_savepoint(connection, mates):
            done += [unit for unit in mates if unit.error is None]
            failed += [unit for unit in mates if unit.error is not None]
            return
        if not _has_transaction(connection):
            failed += mates
            raise GroupLost from mates[0].error
        if len(mates) == 1:
            failed += mates
            return
        for unit in mates:
            self._run_mates(connection, [unit], done, failed)

    def _run_in_savepoint(self, connection: Connection, units: Sequence[Unit]) -> bool:
        """Run units together; False when they failed and were rolled back to their savepoint."""
        started = time.monotonic()
        times = self._times.setdefault(units[0].name, UnitTimes())
        try:
            with connection.begin_nested():
                run_units(units, WriteSession(connection))
        except BaseException as error:  # noqa: BLE001 - handed to the callers of the units
            times.failures += 1
            for unit in units:
                unit.error, unit.result, unit.woken = public_error(error), None, set()
            return False
        refused = sum(unit.error is not None for unit in units)
        times.failures += refused
        times.count += len(units) - refused
        times.seconds += time.monotonic() - started
        return True


def _has_transaction(connection: Connection) -> bool:
    """Return whether SQLite still holds the transaction that was begun."""
    return bool(connection.connection.driver_connection.in_transaction)  # type: ignore[union-attr]  # it is connected
