"""The two ways into the database: `write` a named unit of work, `read` a consistent view.

SQLite: one writer connection on a thread of its own (BEGIN IMMEDIATE, synchronous FULL) with
group commit, and a few read-only connections. PostgreSQL: a pool of connections on threads.
A unit is run again when the database asks for it (serialisation failure, deadlock), so units
must not have effects outside the session. The name of a unit is its failpoint and its metric.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import Connection, Engine, event, make_url, text
from sqlalchemy import create_engine as create_sql_engine
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool, QueuePool

from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.kit.errors import Unavailable
from gpuplane.kit.failpoints import failpoint

T = TypeVar("T")

GROUP_LIMIT = 128
"""Units of work committed together at most: bounds what one lost fsync can delay."""
GROUP_TIME_S = 0.02
"""How long a group may grow before it is committed."""
READERS = 4
POOL_SIZE = 12
UNIT_TRIES = 5
"""How often a unit is run when PostgreSQL reports a deadlock or serialisation failure."""
SQLITE_BUSY_MS = 5_000
RETRYABLE_STATES = {"40001", "40P01"}
DISK_FULL_STATE = "53100"
AWAY_RETRY_AFTER_S = 5
WRONG_STATEMENTS = ("no such table", "no such column", "near ", "attempt to write a readonly")
"""How SQLite begins to tell of a statement that no waiting will help."""

Woken = Callable[[set[str]], None]


@dataclass(slots=True)
class _Unit:
    """A unit of work waiting for the writer."""

    name: str
    work: Callable[[WriteSession], Any]
    future: "Future[Any]" = field(default_factory=Future)
    result: Any = None
    woken: set[str] = field(default_factory=set)


@dataclass(slots=True)
class UnitTimes:
    """How long units of one name took, for `/metrics`."""

    count: int = 0
    seconds: float = 0.0
    failures: int = 0


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
        self._units: queue.SimpleQueue[_Unit | None] = queue.SimpleQueue()
        self._closed = False
        if self.is_sqlite:
            self._write_engine = _sqlite_engine(self.url.database or "", read_only=False)
            self._read_engine = _sqlite_engine(self.url.database or "", read_only=True)
            self._read_threads = ThreadPoolExecutor(READERS, "db-read")
            self._writer = threading.Thread(target=self._run_writer, name="db-write", daemon=True)
            self._writer.start()
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
        self._loop = asyncio.get_running_loop()
        if self.is_sqlite:
            unit = _Unit(name, work)
            self._units.put(unit)
            result = await asyncio.wrap_future(unit.future)
        else:
            result = await self._loop.run_in_executor(
                self._read_threads, self._run_pooled, name, work
            )
        failpoint(f"{name}:after")
        return cast("T", result)

    async def read(self, query: Callable[[ReadSession], T]) -> T:
        """Run a query on one consistent view and return its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._read_threads, self.read_now, query)

    def read_now(self, query: Callable[[ReadSession], T]) -> T:
        """Run a query on this thread; for threads and commands without an event loop."""
        with _translated(), self._read_engine.connect() as connection:
            if not self.is_sqlite:
                connection.execute(
                    text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                )
            return query(ReadSession(connection))

    def write_now(self, name: str, work: Callable[[WriteSession], T]) -> T:
        """Run a unit of work from a thread that is not the event loop's."""
        if self.is_sqlite:
            unit = _Unit(name, work)
            self._units.put(unit)
            return cast("T", unit.future.result())
        return self._run_pooled(name, work)

    def close(self) -> None:
        """Finish what is queued, then close every connection."""
        if self._closed:
            return
        self._closed = True
        if self.is_sqlite:
            self._units.put(None)
            self._writer.join()
        self._read_threads.shutdown(wait=True)
        self._write_engine.dispose()
        self._read_engine.dispose()

    # -- SQLite: one writer, group commit ---------------------------------------------------

    def _run_writer(self) -> None:
        connection: Connection | None = None
        while True:
            unit = self._units.get()
            if unit is None:
                break
            try:
                with _translated():
                    if connection is None:
                        connection = self._write_engine.connect()
                    self._run_group(connection, unit)
            except BaseException as error:  # noqa: BLE001 - the caller of the unit gets it
                if not unit.future.done():
                    unit.future.set_exception(error)
                if connection is not None:
                    with contextlib.suppress(SQLAlchemyError):
                        connection.close()
                    connection = None
        if connection is not None:
            connection.close()

    def _run_group(self, connection: Connection, first: _Unit) -> None:
        """Run queued units in one transaction, each in its savepoint, and commit them together."""
        done: list[_Unit] = []
        unit: _Unit | None = first
        until = time.monotonic() + GROUP_TIME_S
        try:
            with connection.begin() as transaction:
                while unit is not None:
                    if self._run_in_savepoint(connection, unit):
                        done.append(unit)
                    elif not _has_transaction(connection):
                        raise _GroupLost from unit.future.exception()
                    if len(done) >= GROUP_LIMIT or time.monotonic() > until:
                        break
                    unit = self._next_queued()
                for unit in done:
                    failpoint(f"{unit.name}:before")
                transaction.commit()
        except BaseException as error:
            failure = _public(error)
            for unit in done:
                unit.future.set_exception(failure)
            raise failure from error
        self._announce(set().union(*(unit.woken for unit in done)))
        for unit in done:
            unit.future.set_result(unit.result)

    def _next_queued(self) -> _Unit | None:
        try:
            unit = self._units.get_nowait()
        except queue.Empty:
            return None
        if unit is None:  # closing: leave the mark for the outer loop
            self._units.put(None)
        return unit

    def _run_in_savepoint(self, connection: Connection, unit: _Unit) -> bool:
        """Run one unit; False when it failed and was rolled back to its savepoint."""
        started = time.monotonic()
        times = self.times.setdefault(unit.name, UnitTimes())
        try:
            with connection.begin_nested():
                writing = WriteSession(connection)
                unit.result = unit.work(writing)
                unit.woken = writing.woken
        except BaseException as error:  # noqa: BLE001 - handed to the caller of the unit
            times.failures += 1
            unit.future.set_exception(_public(error))
            return False
        times.count += 1
        times.seconds += time.monotonic() - started
        return True

    # -- PostgreSQL: a pool of threads ------------------------------------------------------

    def _run_pooled(self, name: str, work: Callable[[WriteSession], T]) -> T:
        times = self.times.setdefault(name, UnitTimes())
        for attempt in range(1, UNIT_TRIES + 1):
            started = time.monotonic()
            try:
                with _translated(), self._write_engine.begin() as connection:
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

    def _announce(self, woken: set[str]) -> None:
        loop = self._loop
        if not woken or loop is None or loop.is_closed():
            return
        for listener in self._listeners:
            with contextlib.suppress(RuntimeError):  # the loop closed between check and call
                loop.call_soon_threadsafe(listener, woken)


class _GroupLost(Exception):
    """SQLite rolled the whole transaction back under one unit, as it does when the disk is full.

    The units before it in the group are undone too, and none may be told that it is stored.
    """


def _has_transaction(connection: Connection) -> bool:
    """Return whether SQLite still holds the transaction that was begun."""
    return bool(connection.connection.driver_connection.in_transaction)  # type: ignore[union-attr]  # it is connected


def _public(error: BaseException) -> BaseException:
    """Return what the caller of a unit should see for a database error.

    A full disk may hide behind its consequences, such as a savepoint that is gone.
    """
    if isinstance(error, OperationalError | _GroupLost) and not _is_our_mistake(error):
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


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn an unreachable database into `Unavailable`, and let retryable errors through."""
    try:
        yield
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) in RETRYABLE_STATES:
            raise
        raise _public(error) from error


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
