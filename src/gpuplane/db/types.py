"""Column types shared by every table: ids, instants, money and typed JSON."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast
from uuid import UUID

import msgspec
from sqlalchemy import JSON, BigInteger, Dialect, LargeBinary, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator, TypeEngine

T = TypeVar("T")

Instant = BigInteger
"""Milliseconds since the epoch, UTC."""
Micro = BigInteger
"""Money in millionths of a currency unit."""
Json = JSON().with_variant(JSONB(), "postgresql")


class Base(DeclarativeBase):
    """The one registry of tables; a domain's tables start with the domain's name."""

    type_annotation_map: ClassVar = {UUID: Uuid(), int: BigInteger, str: Text, bytes: LargeBinary}


def table_of(row: type[Base]) -> Table:
    """Return the Core table of a declared row, for statements in batches."""
    return cast("Table", row.__table__)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What stands in the place of a stored value that is not what it should be.

    Not an exception, because one bad row must not keep the good ones beside it from being read.
    """

    error: str


class JsonOf(TypeDecorator[Any]):
    """A frozen dataclass (or any msgspec type) stored as JSON text and read back as itself.

    What cannot be read back is `Unreadable`; the repository that reads it sets the row aside.
    """

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self._encoder = msgspec.json.Encoder()

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Encode on the way in."""
        return None if value is None else self._encoder.encode(value).decode()

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Decode on the way out."""
        if value is None:
            return None
        try:
            return self._decoder.decode(value)
        except (msgspec.MsgspecError, UnicodeError) as error:
            return Unreadable(str(error))

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Store as text on both databases, so that bytes are the same."""
        return dialect.type_descriptor(Text())
