"""Tables of events, their stream, webhooks and deliveries."""

from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, String, text
from sqlalchemy.orm import Mapped, mapped_column

from gpuplane.db.types import Base, Json

RowNumber = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite numbers rows by itself only in a column declared INTEGER."""


class EventRow(Base):
    """One event; `position` is its place in the stream, given once it is seen to be committed."""

    __tablename__ = "events_events"
    __table_args__ = (
        Index("ix_events_events_position", "position", unique=True),
        Index("ix_events_events_tenant", "tenant_id", "seq"),
        Index("ix_events_events_subject", "subject_id", "seq"),
        Index("ix_events_events_cluster", "cluster_id", "seq"),
        Index("ix_events_events_at", "at"),
        Index(
            "ix_events_events_unrelayed",
            "seq",
            sqlite_where=text("position IS NULL"),
            postgresql_where=text("position IS NULL"),
        ),
        {"sqlite_autoincrement": True},
    )

    seq: Mapped[int] = mapped_column(RowNumber, primary_key=True, autoincrement=True)
    id: Mapped[UUID]
    position: Mapped[int | None]
    at: Mapped[int]
    kind: Mapped[str] = mapped_column(String(80))
    tenant_id: Mapped[UUID | None]
    project_id: Mapped[UUID | None]
    cluster_id: Mapped[UUID | None]
    subject_kind: Mapped[str] = mapped_column(String(40))
    subject_id: Mapped[str] = mapped_column(String(120))
    actor: Mapped[str] = mapped_column(String(200))
    reason: Mapped[str] = mapped_column(String(50))
    message: Mapped[str]
    data: Mapped[dict[str, Any]] = mapped_column(Json)
    audit: Mapped[bool]


class StreamRow(Base):
    """The one row that counts positions: the last one given and the last one pruned."""

    __tablename__ = "events_stream"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last_position: Mapped[int]
    pruned_position: Mapped[int]


class WebhookRow(Base):
    """One address that events are sent to; the signing secret is sealed."""

    __tablename__ = "events_webhooks"
    __table_args__ = (
        CheckConstraint("state IN ('active','disabled')", name="state_known"),
        Index("ix_events_webhooks_tenant", "tenant_id", "id"),
        Index("ix_events_webhooks_cluster", "cluster_id", "id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID | None]
    cluster_id: Mapped[UUID | None]
    subject_id: Mapped[str | None] = mapped_column(String(120))
    url: Mapped[str]
    kinds: Mapped[list[str]] = mapped_column(Json)
    secret: Mapped[bytes]
    state: Mapped[str] = mapped_column(String(20))
    state_reason: Mapped[str] = mapped_column(default="")
    failures_in_a_row: Mapped[int] = mapped_column(default=0)
    position: Mapped[int]
    """The last stream position whose events were turned into deliveries."""
    created_by: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[int]
    updated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


class DeliveryRow(Base):
    """One event on its way to one webhook, and how the tries went."""

    __tablename__ = "events_deliveries"
    __table_args__ = (
        CheckConstraint("state IN ('pending','delivered','failed')", name="state_known"),
        Index("ix_events_deliveries_webhook", "webhook_id", "id"),
        Index(
            "ix_events_deliveries_due",
            "next_at",
            sqlite_where=text("state = 'pending'"),
            postgresql_where=text("state = 'pending'"),
        ),
    )

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True, autoincrement=True)
    webhook_id: Mapped[UUID] = mapped_column(ForeignKey("events_webhooks.id", ondelete="CASCADE"))
    event_position: Mapped[int]
    event_kind: Mapped[str] = mapped_column(String(80))
    state: Mapped[str] = mapped_column(String(20))
    tries: Mapped[int]
    next_at: Mapped[int]
    last_status: Mapped[int | None]
    last_error: Mapped[str] = mapped_column(default="")
    created_at: Mapped[int]
    finished_at: Mapped[int | None]
