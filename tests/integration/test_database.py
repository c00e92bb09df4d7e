"""Units of work: durable together, undone alone, run again when the database asks for it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from gpuplane.db.database import Database
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.units import Gathered

metadata = MetaData()
rows = Table(
    "test_rows",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("value", Integer, nullable=False),
)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url)
    metadata.create_all(opened.engine)
    yield opened
    opened.close()


def put(session: WriteSession, key: int, value: int = 0) -> int:
    session.execute(insert(rows).values(id=key, value=value))
    return key


def count(session: ReadSession) -> int:
    return len(session.rows(select(rows)))


async def test_what_a_unit_wrote_is_there_when_the_call_returns(database: Database) -> None:
    assert await database.write("test.put", lambda s: put(s, 1)) == 1
    assert await database.read(count) == 1


async def test_a_unit_that_fails_leaves_nothing_and_hurts_no_other(database: Database) -> None:
    def half(session: WriteSession) -> None:
        put(session, 100)
        put(session, 1)
        put(session, 1)

    results = await asyncio.gather(
        *(database.write("test.put", lambda s, k=key: put(s, k)) for key in range(10, 30)),
        database.write("test.half", half),
        *(database.write("test.put", lambda s, k=key: put(s, k)) for key in range(30, 50)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, IntegrityError) for each in results) == 1
    keys = await database.read(lambda s: {row["id"] for row in s.rows(select(rows))})
    assert keys == set(range(10, 50))


async def test_updates_from_many_callers_are_never_lost(database: Database) -> None:
    await database.write("test.put", lambda s: put(s, 1))

    def add_one(session: WriteSession) -> None:
        session.execute(update(rows).where(rows.c.id == 1).values(value=rows.c.value + 1))

    await asyncio.gather(*(database.write("test.add", add_one) for _ in range(200)))
    assert await database.read(lambda s: s.scalar(select(rows.c.value))) == 200


async def test_a_read_session_cannot_write(database: Database) -> None:
    def sneak(session: ReadSession) -> None:
        session.sql.execute(insert(rows).values(id=1, value=1))

    with pytest.raises(DBAPIError, match=r"(?i)read.?only"):
        await database.read(sneak)
    assert await database.read(count) == 0


async def test_loops_are_woken_only_after_the_commit(database: Database) -> None:
    woken: list[tuple[set[str], int]] = []
    done = asyncio.Event()

    def listen(names: set[str]) -> None:
        woken.append((names, database.read_now(count)))
        done.set()

    database.on_commit(listen)

    def unit(session: WriteSession) -> None:
        put(session, 1)
        session.wake("scheduler")

    await database.write("test.put", unit)
    await asyncio.wait_for(done.wait(), 5)
    assert woken == [({"scheduler"}, 1)]


async def test_a_unit_that_fails_wakes_nobody(database: Database) -> None:
    woken: list[set[str]] = []
    database.on_commit(woken.append)

    def unit(session: WriteSession) -> None:
        session.wake("scheduler")
        raise LookupError("refused")

    with pytest.raises(LookupError, match="refused"):
        await database.write("test.refuse", unit)
    await database.write("test.put", lambda s: put(s, 1))
    assert woken == []


async def test_a_reader_sees_one_consistent_view(database: Database) -> None:
    await database.write("test.put", lambda s: put(s, 1))
    loop = asyncio.get_running_loop()

    def look_twice(session: ReadSession) -> tuple[int, int]:
        first = count(session)
        asyncio.run_coroutine_threadsafe(
            database.write("test.put", lambda s: put(s, 2)), loop
        ).result(5)
        return first, count(session)

    assert await database.read(look_twice) == (1, 1)
    assert await database.read(count) == 2


async def test_the_times_of_each_unit_are_counted(database: Database) -> None:
    await database.write("test.put", lambda s: put(s, 1))
    assert database.times["test.put"].count == 1


@pytest.mark.postgresql
async def test_units_that_lock_in_opposite_order_both_succeed(postgresql_url: str) -> None:
    database = Database(postgresql_url)
    metadata.create_all(database.engine)
    try:
        for key in (1, 2):
            await database.write("test.put", lambda s, k=key: put(s, k))
        meet = threading.Barrier(2, timeout=5)
        met: set[int] = set()

        def cross(session: WriteSession, first: int, second: int) -> None:
            bump = update(rows).values(value=rows.c.value + 1)
            session.execute(bump.where(rows.c.id == first))
            if first not in met:
                met.add(first)
                meet.wait()
            session.execute(bump.where(rows.c.id == second))

        await asyncio.gather(
            database.write("test.cross", lambda s: cross(s, 1, 2)),
            database.write("test.cross", lambda s: cross(s, 2, 1)),
        )
        values = await database.read(lambda s: [row["value"] for row in s.rows(select(rows))])
        assert values == [2, 2]
    finally:
        database.close()


def put_all(session: WriteSession, keys: Sequence[int]) -> list[int | Exception]:
    """Store keys; negative ones are refused, and a key twice is the database's to refuse."""
    good = [key for key in keys if key >= 0]
    if good:
        session.execute(insert(rows), [{"id": key, "value": len(keys)} for key in good])
    return [key if key >= 0 else LookupError(str(key)) for key in keys]


PUT = Gathered("test.put_all", put_all)


async def test_what_waits_for_a_gathered_unit_is_done_together(database: Database) -> None:
    assert await asyncio.gather(
        *(database.write_gathered(PUT, key) for key in range(100, 200))
    ) == list(range(100, 200))
    sizes = await database.read(lambda s: {row["value"] for row in s.rows(select(rows))})
    assert max(sizes) > 1


async def test_an_item_that_is_refused_hurts_no_other(database: Database) -> None:
    results = await asyncio.gather(
        *(database.write_gathered(PUT, key) for key in (1, -2, 3)), return_exceptions=True
    )
    assert [str(each) for each in results] == ["1", "-2", "3"]
    assert isinstance(results[1], LookupError)
    assert await database.read(count) == 2


async def test_items_that_fail_together_are_tried_alone(database: Database) -> None:
    await database.write("test.put", lambda s: put(s, 7))
    results = await asyncio.gather(
        *(database.write_gathered(PUT, key) for key in range(20)), return_exceptions=True
    )
    assert [index for index, each in enumerate(results) if isinstance(each, Exception)] == [7]
    assert isinstance(results[7], IntegrityError)
    assert await database.read(count) == 20


async def test_units_between_gathered_ones_keep_their_order(database: Database) -> None:
    seen: list[str] = []

    def note(name: str) -> int:
        seen.append(name)
        return len(seen)

    gathered = Gathered("test.note", lambda s, items: [note(item) for item in items])
    await asyncio.gather(
        database.write_gathered(gathered, "a"),
        database.write_gathered(gathered, "b"),
        database.write("test.note", lambda s: note("between")),
        database.write_gathered(gathered, "c"),
    )
    if database.is_sqlite:
        assert seen == ["a", "b", "between", "c"]
    else:
        assert sorted(seen) == ["a", "b", "between", "c"]


async def test_a_caller_who_goes_away_holds_nobody_up(database: Database) -> None:
    started, go_on = threading.Event(), threading.Event()

    def wait_first(session: WriteSession) -> None:
        started.set()
        go_on.wait(10)

    blocking = asyncio.create_task(database.write("test.wait", wait_first))
    await asyncio.to_thread(started.wait, 10)
    gone = asyncio.create_task(database.write("test.put", lambda s: put(s, 1)))
    gone_too = asyncio.create_task(database.write_gathered(PUT, 2))
    stays = [asyncio.create_task(database.write_gathered(PUT, key)) for key in (3, 4)]
    stays.append(asyncio.create_task(database.write("test.put", lambda s: put(s, 5))))
    await asyncio.sleep(0)
    gone.cancel()
    gone_too.cancel()
    go_on.set()
    await blocking
    assert await asyncio.wait_for(asyncio.gather(*stays), 10) == [3, 4, 5]
    assert gone.cancelled()
    assert gone_too.cancelled()
