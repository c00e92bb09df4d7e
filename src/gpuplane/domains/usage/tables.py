"""Tables of the ledger: append-only, but for the end of an open interval.

Plain tables, not mapped classes: the ledger is written in batches of thousands of rows.
"""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    Uuid,
    text,
)

from gpuplane.db.types import Base, Instant, Json

_OPEN = text("to_at IS NULL")

devices = Table(
    "usage_devices",
    Base.metadata,
    Column("gpu_id", String(100), primary_key=True),
    Column("cluster_id", Uuid(), nullable=False, index=True),
    Column("node_id", Uuid(), nullable=False),
    Column("node_name", String(253), nullable=False),
    Column("gpu_index", Integer, nullable=False),
    Column("model", String(100), nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("simulated", Boolean, nullable=False),
)

intervals = Table(
    "usage_intervals",
    Base.metadata,
    Column("id", Uuid(), primary_key=True),
    Column("gpu_id", String(100), nullable=False),
    Column("node_id", Uuid(), nullable=False),
    Column("cluster_id", Uuid(), nullable=False),
    Column("from_at", Instant, nullable=False),
    Column("to_at", Instant),
    Column("state", String(20), nullable=False),
    CheckConstraint("to_at IS NULL OR to_at > from_at", name="usage_interval_has_length"),
    CheckConstraint(
        "state IN ('busy','allocated_idle','reserved','free','down')", name="usage_state_known"
    ),
    Index("ux_usage_intervals_gpu_from", "gpu_id", "from_at", unique=True),
    Index(
        "ux_usage_intervals_open", "gpu_id", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN
    ),
    Index("ix_usage_intervals_to", "to_at"),
)

shares = Table(
    "usage_shares",
    Base.metadata,
    Column("interval_id", Uuid(), ForeignKey("usage_intervals.id"), primary_key=True),
    # The allocation, or the reservation whose unused part this is.
    Column("holder_id", Uuid(), primary_key=True),
    Column("job_id", Uuid()),
    Column("tenant_id", Uuid(), nullable=False),
    Column("project_id", Uuid(), nullable=False),
    Column("milli", Integer, nullable=False),
    Column("busy", Boolean, nullable=False),
    Column("billable", Boolean, nullable=False),
    CheckConstraint("milli > 0 AND milli <= 1000", name="usage_share_of_one_gpu"),
    Index("ix_usage_shares_job", "job_id"),
)

holdings = Table(
    "usage_holdings",
    Base.metadata,
    Column("allocation_id", Uuid(), primary_key=True),
    Column("job_id", Uuid(), nullable=False, index=True),
    Column("tenant_id", Uuid(), nullable=False),
    Column("project_id", Uuid(), nullable=False),
    Column("cluster_id", Uuid(), nullable=False),
    Column("node_id", Uuid(), nullable=False),
    Column("simulated", Boolean, nullable=False),
    Column("cpu_milli", Integer, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("from_at", Instant, nullable=False),
    Column("to_at", Instant),
    CheckConstraint("to_at IS NULL OR to_at >= from_at", name="usage_holding_not_negative"),
    Index("ix_usage_holdings_to", "to_at"),
)

jobs = Table(
    "usage_jobs",
    Base.metadata,
    Column("job_id", Uuid(), primary_key=True),
    Column("name", Text, nullable=False),
    Column("tenant_id", Uuid(), nullable=False),
    Column("project_id", Uuid(), nullable=False),
    Column("labels", Json, nullable=False),
    Column("cost_centre", String(100), nullable=False),
    Column("queue", String(200), nullable=False),
    Column("priority", String(20), nullable=False),
    Column("job_type", String(20), nullable=False),
    Column("source_type", String(20), nullable=False),
    Column("simulated", Boolean, nullable=False),
)
