"""The two ways into the database: `write` a named unit of work, `read` a consistent view.

SQLite: one writer connection on a thread of its own (BEGIN IMMEDIATE, synchronous FULL) with
group commit, and a few read-only connections. PostgreSQL: a pool of connections on threads.
A unit is run again when the database asks for it (serialisation failure, deadlock), so units
must not have effects outside the session. The name of a unit is its failpoint and its metric.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import Connection, Engine, event, make_url, text
from sqlalchemy import create_engine as create_sql_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from gpuplane.db.questions import CommitWatch
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.troubles import RETRYABLE_STATES, public_error, translated_errors
from gpuplane.db.units import GATHER_LIMIT, Gathered, Unit, answer_units, run_units
from gpuplane.db.writer import UnitTimes, Writer
from gpuplane.kit.failpoints import failpoint

T = TypeVar("T")
Item = TypeVar("Item")

READERS = 4
POOL_SIZE = 12
GATHERERS = 2
"""Threads that answer one gathered unit on PostgreSQL: more would take smaller batches each."""
UNIT_TRIES = 5
"""How often a unit is run when PostgreSQL reports a deadlock or serialisation failure."""
SQLITE_BUSY_MS = 5_000

Woken = Callable[[set[str]], None]


class Database:
    """Owns the engines and threads; made once by the composition root."""

    def __init__(self, url: str) -> None:
        """Open the database named by a SQLAlchemy URL (`sqlite:///…` or `postgresql://…`)."""
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if not self.is_sqlite:
            self.url = self.url.set(drivername="postgresql+psycopg")
        self.times: dict[str, UnitTimes] = {}
        self._listeners: list[Woken] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer: Writer | None = None
        self._watch: CommitWatch | None = None
        self._waiting: dict[Gathered[Any, Any], deque[Unit]] = {}
        self._gatherers: dict[Gathered[Any, Any], int] = {}
        self._gathering = threading.Lock()
        self._closed = False
        if self.is_sqlite:
            self._write_engine = _sqlite_engine(self.url.database or "", read_only=False)
            self._read_engine = _sqlite_engine(self.url.database or "", read_only=True)
            self._read_threads = ThreadPoolExecutor(READERS, "db-read")
            self._writer = Writer(self._write_engine, self.times, self._announce)
            self._watch = CommitWatch(self.url.database or "")
        else:
            self._write_engine = _postgres_engine(self.url.render_as_string(hide_password=False))
            self._read_engine = self._write_engine
            self._read_threads = ThreadPoolExecutor(POOL_SIZE, "db")

    @property
    def engine(self) -> Engine:
        """Return the engine that may write; for migrations and `db check` only."""
        return self._write_engine

    def on_commit(self, listener: Woken) -> None:
        """Call this with the names of loops to wake after each durable commit, on the loop."""
        self._listeners.append(listener)

    async def write(self, name: str, work: Callable[[WriteSession], T]) -> T:
        """Run a unit of work and return its result once it is durable.

        Args:
            name: `domain.verb`; names the failpoints `name:before` and `name:after`.
            work: A plain function of the session, without effects outside it.

        Raises:
            Unavailable: If the database is away or full.
        """
        loop = self._loop = asyncio.get_running_loop()
        if self._writer is not None:
            unit = Unit(name, loop.create_future(), loop, work)
            self._writer.put(unit)
            result = await unit.waiter  # type: ignore[misc]  # it was made on this loop
        else:
            result = await loop.run_in_executor(self._read_threads, self._run_pooled, name, work)
        failpoint(f"{name}:after")
        return cast("T", result)

    async def write_gathered(self, gathered: Gathered[Item, T], item: Item) -> T:
        """Run a gathered unit for an item, together with what else waits for the same unit.

        Raises:
            Unavailable: If the database is away or full.
        """
        loop = self._loop = asyncio.get_running_loop()
        unit = Unit(gathered.name, loop.create_future(), loop, gathered=gathered, item=item)
        if self._writer is not None:
            self._writer.put(unit)
        else:
            self._gather(gathered, unit)
        result = await unit.waiter  # type: ignore[misc]  # it was made on this loop
        failpoint(f"{gathered.name}:after")
        return cast("T", result)

    async def read(self, query: Callable[[ReadSession], T]) -> T:
        """Run a query on one consistent view and return its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._read_threads, self.read_now, query)

    def written(self) -> int | None:
        """Return a number that is another one after each commit, whoever wrote.

        None on PostgreSQL, where that costs as much as asking what one wants to know, and when it
        cannot be told just now.
        """
        return self._watch.number() if self._watch is not None else None

    def read_now(self, query: Callable[[ReadSession], T]) -> T:
        """Run a query on this thread; for threads and commands without an event loop."""
        with translated_errors(), self._read_engine.connect() as connection:
            if not self.is_sqlite:
                connection.execute(
                    text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                )
            return query(ReadSession(connection))

    def write_now(self, name: str, work: Callable[[WriteSession], T]) -> T:
        """Run a unit of work from a thread that is not the event loop's."""
        if self._writer is not None:
            waiter: Future[T] = Future()
            self._writer.put(Unit(name, waiter, work=work))
            return waiter.result()
        return self._run_pooled(name, work)

    def close(self) -> None:
        """Finish what is queued, then close every connection."""
        if self._closed:
            return
        self._closed = True
        if self._writer is not None:
            self._writer.close()
        self._read_threads.shutdown(wait=True)
        if self._watch is not None:
            self._watch.close()
        self._write_engine.dispose()
        self._read_engine.dispose()

    # -- PostgreSQL: a pool of threads ------------------------------------------------------

    def _run_pooled(self, name: str, work: Callable[[WriteSession], T]) -> T:
        times = self.times.setdefault(name, UnitTimes())
        for attempt in range(1, UNIT_TRIES + 1):
            started = time.monotonic()
            try:
                with translated_errors(), self._write_engine.begin() as connection:
                    writing = WriteSession(connection)
                    result = work(writing)
                    failpoint(f"{name}:before")
            except DBAPIError as error:
                state = getattr(error.orig, "sqlstate", None)
                times.failures += 1
                if state not in RETRYABLE_STATES or attempt == UNIT_TRIES:
                    raise
                continue
            except BaseException:
                times.failures += 1
                raise
            times.count += 1
            times.seconds += time.monotonic() - started
            self._announce(writing.woken)
            return result
        raise AssertionError("unreachable: the last try returns or raises")

    def _gather(self, gathered: Gathered[Any, Any], unit: Unit) -> None:
        """Queue an item, and have a thread take it unless enough of them are at it."""
        with self._gathering:
            self._waiting.setdefault(gathered, deque()).append(unit)
            if self._gatherers.get(gathered, 0) >= GATHERERS:
                return
            self._gatherers[gathered] = self._gatherers.get(gathered, 0) + 1
        self._read_threads.submit(self._run_gathered, gathered)

    def _run_gathered(self, gathered: Gathered[Any, Any]) -> None:
        """Take what waits for a unit, a batch at a time, until nothing does."""
        while True:
            with self._gathering:
                waiting = self._waiting[gathered]
                units = [waiting.popleft() for _ in range(min(len(waiting), GATHER_LIMIT))]
                if not units:
                    self._gatherers[gathered] -= 1
                    return
            self._run_together(units)
            answer_units(units)

    def _run_together(self, units: Sequence[Unit]) -> None:
        """Run items in one transaction; if that fails, each in one of its own."""

        def work(session: WriteSession) -> None:
            run_units(units, session)

        try:
            self._run_pooled(units[0].name, work)
        except BaseException as error:  # noqa: BLE001 - handed to the callers of the units
            for unit in units:
                unit.error = public_error(error)
                if len(units) > 1:
                    self._run_together([unit])

    def _announce(self, woken: set[str]) -> None:
        loop = self._loop
        if not woken or loop is None or loop.is_closed():
            return
        for listener in self._listeners:
            with contextlib.suppress(RuntimeError):  # the loop closed between check and call
                loop.call_soon_threadsafe(listener, woken)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


JSON_CODEC: dict[str, Any] = {"json_serializer": _json, "json_deserializer": msgspec.json.decode}
"""A job's row has six small JSON columns, and thousands of rows are read in one unit."""


def _sqlite_engine(path: str, *, read_only: bool) -> Engine:
    engine = create_sql_engine(
        f"sqlite:///{path}",
        poolclass=QueuePool if read_only else NullPool,
        connect_args={"check_same_thread": False, "timeout": SQLITE_BUSY_MS / 1000},
        **JSON_CODEC,
        **({"pool_size": READERS, "max_overflow": READERS} if read_only else {}),
    )

    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy begins and commits, not the driver
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute(f"PRAGMA busy_timeout={SQLITE_BUSY_MS}")
        cursor.execute("PRAGMA cache_size=-16000")
        if read_only:
            cursor.execute("PRAGMA query_only=ON")
        cursor.close()

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", begin)
    return engine


def _postgres_engine(url: str) -> Engine:
    return create_sql_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_pre_ping=True,
        **JSON_CODEC,
        connect_args={"connect_timeout": 5, "application_name": "gpuplane"},
    )
