"""What a unit of work is handed: a session that can read, and one that can also write.

A unit of work is a plain function, so nothing in it can wait for a network while it holds the
writer. Services pass sessions on and never look inside; repositories use `.sql`.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Executable, RowMapping


class ReadSession:
    """A consistent view of the database that refuses writes."""

    def __init__(self, sql: Connection) -> None:
        self.sql = sql

    @property
    def dialect(self) -> str:
        """Return `sqlite` or `postgresql`."""
        return self.sql.dialect.name

    def rows(self, statement: Executable) -> Sequence[RowMapping]:
        """Run a statement and return its rows as mappings."""
        return self.sql.execute(statement).mappings().all()

    def row(self, statement: Executable) -> RowMapping | None:
        """Run a statement and return its first row, or None."""
        return self.sql.execute(statement).mappings().first()

    def scalar(self, statement: Executable) -> Any:
        """Run a statement and return the first column of its first row, or None."""
        return self.sql.execute(statement).scalar()


class WriteSession(ReadSession):
    """A transaction that will be committed at the edge, together with the wake-ups it earned."""

    def __init__(self, sql: Connection) -> None:
        super().__init__(sql)
        self.woken: set[str] = set()

    def execute(
        self, statement: Executable, parameters: Sequence[dict[str, Any]] | None = None
    ) -> int:
        """Run a writing statement and return how many rows it touched (-1 if unknown)."""
        if parameters is not None and not parameters:
            return 0
        result = self.sql.execute(statement, parameters)
        return int(getattr(result, "rowcount", -1))

    def wake(self, *loops: str) -> None:
        """Ask for these loops to run as soon as this transaction is durable."""
        self.woken.update(loops)
