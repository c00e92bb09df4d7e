"""Questions of loops: an answer is given once more only while nobody wrote anything."""

import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, delete, insert, select

from gpuplane.db.database import Database
from gpuplane.db.questions import Question
from gpuplane.db.sessions import ReadSession, WriteSession

metadata = MetaData()
rows = Table("test_rows", metadata, Column("id", Integer, primary_key=True, autoincrement=False))
T = TypeVar("T")


class Counting:
    """A database that counts what it is asked."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.reads = 0

    def written(self) -> int | None:
        return self.database.written()

    async def read(self, query: Callable[[ReadSession], T]) -> T:
        self.reads += 1
        return await self.database.read(query)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url)
    metadata.create_all(opened.engine)
    yield opened
    opened.close()


def keys(session: ReadSession, least: int = 0) -> tuple[int, ...]:
    query = select(rows.c.id).where(rows.c.id >= least).order_by(rows.c.id)
    return tuple(session.sql.execute(query).scalars())


def put(session: WriteSession, key: int) -> None:
    session.execute(insert(rows).values(id=key))


def drop(session: WriteSession, key: int) -> None:
    session.execute(delete(rows).where(rows.c.id == key))


async def test_the_next_look_sees_whatever_was_written(database: Database) -> None:
    question = Question(database, keys)
    chance, there = random.Random(7), set[int]()
    for _ in range(150):
        key = chance.randrange(10)
        if chance.random() < 0.5:
            change = drop if key in there else put
            await database.write("test.change", partial(change, key=key))
            there ^= {key}
        assert await question.ask() == tuple(sorted(there))
        assert await question.ask(5) == tuple(sorted(each for each in there if each >= 5))


async def test_sqlite_is_asked_once_while_nothing_is_written(sqlite_url: str) -> None:
    with closing(Database(sqlite_url)) as database:
        metadata.create_all(database.engine)
        asked = Counting(database)
        question = Question(asked, keys)
        assert [await question.ask() for _ in range(5)] == [()] * 5
        assert asked.reads == 1
        await database.write("test.put", lambda s: put(s, 3))
        assert [await question.ask() for _ in range(5)] == [(3,)] * 5
        assert asked.reads == 2


async def test_what_another_process_or_connection_wrote_is_seen(sqlite_url: str) -> None:
    with closing(Database(sqlite_url)) as database:
        metadata.create_all(database.engine)
        question = Question(database, keys)
        assert await question.ask() == ()
        with closing(sqlite3.connect(Path(database.url.database or ""))) as other, other:
            other.execute("INSERT INTO test_rows VALUES (4)")
        assert await question.ask() == (4,)
        with closing(Database(sqlite_url)) as second:
            await second.write("test.put", lambda s: put(s, 5))
        assert await question.ask() == (4, 5)


async def test_what_is_written_while_a_question_is_answered_is_asked_about_again(
    sqlite_url: str,
) -> None:
    with closing(Database(sqlite_url)) as database:
        metadata.create_all(database.engine)
        writes = [1]

        def slow(session: ReadSession) -> tuple[int, ...]:
            found = keys(session)
            while writes:
                database.write_now("test.put", lambda s: put(s, writes.pop()))
            return found

        question = Question(database, slow)
        assert await question.ask() == ()
        assert await question.ask() == (1,)


async def test_postgresql_is_asked_each_time(postgresql_url: str) -> None:
    with closing(Database(postgresql_url)) as database:
        metadata.create_all(database.engine)
        asked = Counting(database)
        question = Question(asked, keys)
        assert [await question.ask() for _ in range(3)] == [()] * 3
        assert asked.reads == 3


async def test_a_database_that_does_not_tell_is_asked_each_time(tmp_path: Path) -> None:
    class Silent(Counting):
        def written(self) -> int | None:
            return None

    with closing(Database(f"sqlite:///{tmp_path / 'rows.db'}")) as database:
        metadata.create_all(database.engine)
        question = Question(Silent(database), keys)
        assert await question.ask() == ()
        await database.write("test.put", lambda s: put(s, 1))
        assert await question.ask() == (1,)
