"""Tables of pipelines, their versions, their triggers and firings, and what functions printed.

Documents are JSON text that nobody searches; a version's row is never changed.
"""

from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gpuplane.db.types import Base


class PipelineRow(Base):
    """One pipeline; its document is that of the version it names."""

    __tablename__ = "pipelines_pipelines"
    __table_args__ = (
        UniqueConstraint("project_id", "name"),
        CheckConstraint("status IN ('active','archived')", name="pipelines_status_known"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID]
    project_id: Mapped[UUID]
    name: Mapped[str] = mapped_column(String(63))
    status: Mapped[str] = mapped_column(String(20))
    labels: Mapped[str] = mapped_column(Text)
    version_number: Mapped[int] = mapped_column(Integer)
    step_count: Mapped[int] = mapped_column(Integer)
    created_by: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[int] = mapped_column(BigInteger)
    updated_at: Mapped[int] = mapped_column(BigInteger)
    version: Mapped[int] = mapped_column(Integer, default=1)


class VersionRow(Base):
    """One immutable version."""

    __tablename__ = "pipelines_versions"

    pipeline_id: Mapped[UUID] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    document: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))
    step_count: Mapped[int] = mapped_column(Integer)
    created_by: Mapped[str] = mapped_column(String(200))
    user_id: Mapped[UUID]
    """In whose name triggers start runs of it."""
    may_critical: Mapped[bool]
    """Whether that user might use the priority class critical when it was saved."""
    rolled_back_from: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[int] = mapped_column(BigInteger)


class LogRow(Base):
    """What one try of a function printed."""

    __tablename__ = "pipelines_logs"
    __table_args__ = (Index("ix_pipelines_logs_created_at", "created_at"),)

    step_id: Mapped[UUID] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    text: Mapped[str] = mapped_column(Text)
    created_at: Mapped[int] = mapped_column(BigInteger)


class TriggerRow(Base):
    """One trigger of the newest version of an active pipeline."""

    __tablename__ = "pipelines_triggers"
    __table_args__ = (
        Index("ix_pipelines_triggers_due", "due_at"),
        Index("ix_pipelines_triggers_pipeline", "pipeline_id"),
        Index("ix_pipelines_triggers_upstream", "project_id", "upstream"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    pipeline_id: Mapped[UUID]
    tenant_id: Mapped[UUID]
    project_id: Mapped[UUID]
    kind: Mapped[str] = mapped_column(String(20))
    """`scheduled`, `webhook`, `folder`, `bucket` or `pipeline`."""
    digest: Mapped[str] = mapped_column(String(64))
    """Of what it says: a version that leaves it as it was leaves its row, so nothing is missed."""
    spec: Mapped[str] = mapped_column(Text)
    upstream: Mapped[str | None] = mapped_column(String(63))
    due_at: Mapped[int | None] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(Text)
    problem: Mapped[str] = mapped_column(Text, default="")
    version: Mapped[int] = mapped_column(Integer, default=1)


class FireRow(Base):
    """One firing: that it happened once is what its key is for."""

    __tablename__ = "pipelines_fires"
    __table_args__ = (Index("ix_pipelines_fires_fired_at", "fired_at"),)

    trigger_id: Mapped[UUID] = mapped_column(primary_key=True)
    fire_key: Mapped[str] = mapped_column(String(250), primary_key=True)
    run_id: Mapped[UUID | None]
    problem: Mapped[str] = mapped_column(Text, default="")
    fired_at: Mapped[int] = mapped_column(BigInteger)


class CursorRow(Base):
    """How far a reader of the stream of events has come."""

    __tablename__ = "pipelines_cursors"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger)
