"""Answers kept by `Idempotency-Key`, written in the same transaction as what they answer for."""

from dataclasses import dataclass

from sqlalchemy import Column, Integer, String, Table, Text, delete, insert, select
from sqlalchemy.exc import IntegrityError

from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import Base, Instant
from gpuplane.kit.errors import Conflict

answers = Table(
    "db_idempotency",
    Base.metadata,
    Column("scope", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("request_hash", String(64), nullable=False),
    Column("status", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", Instant, nullable=False, index=True),
)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What was answered to the first request with a key."""

    request_hash: str
    status: int
    body: str


def find_answer(session: ReadSession, scope: str, key: str) -> StoredAnswer | None:
    """Return the answer stored for a key within a scope (one principal's tenant), or None."""
    row = session.row(select(answers).where(answers.c.scope == scope, answers.c.key == key))
    return None if row is None else StoredAnswer(row["request_hash"], row["status"], row["body"])


def store_answer(
    session: WriteSession, scope: str, key: str, answer: StoredAnswer, now: int
) -> None:
    """Keep an answer; two requests racing on one key end with one stored and one refused.

    Raises:
        Conflict: If another request with this key was stored meanwhile.
    """
    try:
        session.execute(
            insert(answers).values(
                scope=scope,
                key=key,
                request_hash=answer.request_hash,
                status=answer.status,
                body=answer.body,
                created_at=now,
            )
        )
    except IntegrityError as error:
        raise Conflict(
            "Another request with this Idempotency-Key is being answered right now.",
            code="idempotency_in_progress",
            fix="Send it again in a moment; the stored answer will come back.",
        ) from error


def prune_answers(session: WriteSession, before: int) -> int:
    """Forget answers older than an instant and return how many."""
    return session.execute(delete(answers).where(answers.c.created_at < before))
