"""Questions that loops ask again and again, and answers that hold while nothing is written.

Owns when an answer may be given once more. Never a question that depends on the time: such a one
asks for the next instant that matters, which stands in the rows, and compares that each time.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from gpuplane.db.sessions import ReadSession

LAST_INSTANT = 2**62
"""Later than anything: what is not due by then is not waited for at all, which rows alone tell."""

T = TypeVar("T")
Answer = TypeVar("Answer")


class Asked(Protocol):
    """The part of a database that questions need."""

    def written(self) -> int | None:
        """Return a number that is another one after each commit; None if that is not told."""
        ...

    async def read(self, query: Callable[[ReadSession], T]) -> T:
        """Run a query on one consistent view and return its result."""
        ...


class CommitWatch:
    """Tells whether anybody wrote to a SQLite database: this process or any other.

    A connection of its own, for what SQLite tells is whether *others* have committed. It costs a
    fiftieth of the smallest read, and waits for nobody.

    Source:
        https://www.sqlite.org/pragma.html#pragma_data_version
    """

    def __init__(self, path: str) -> None:
        """Watch the database in this file; it is opened when it is first asked about."""
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def number(self) -> int | None:
        """Return a number that is another one after each commit; None if it cannot be told now."""
        with contextlib.suppress(sqlite3.Error):  # whoever asks looks for himself then
            if self._connection is None:
                self._connection = sqlite3.connect(
                    self._path, timeout=0, isolation_level=None, check_same_thread=False
                )
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        return None

    def close(self) -> None:
        """Let go of the database."""
        if self._connection is not None:
            self._connection.close()


class Question(Generic[Answer]):
    """One question of a loop. What it answers must depend on rows and its arguments alone."""

    def __init__(self, database: Asked, query: Callable[..., Answer]) -> None:
        """Make the question.

        Args:
            database: Whom to ask.
            query: Called with a session and the arguments. Whoever gets its answer may not change
                it: the next one may get the same.
        """
        self._database = database
        self._query = query
        self._number: int | None = None
        self._answers: dict[tuple[Hashable, ...], Answer] = {}

    async def ask(self, *arguments: Hashable) -> Answer:
        """Return the answer: the one given before if nothing was written since.

        The number is asked for first, so that what is written meanwhile is asked about again.
        """
        number = self._database.written()
        if number != self._number:
            self._answers.clear()
            self._number = number
        if number is not None and arguments in self._answers:
            return self._answers[arguments]
        answer = await self._database.read(lambda session: self._query(session, *arguments))
        if number is not None and number == self._number:
            self._answers[arguments] = answer
        return answer
