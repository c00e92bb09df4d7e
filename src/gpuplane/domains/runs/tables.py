"""Tables of runs, their steps, events kept for them, places under keys, outputs to reuse, workers.

Plain tables, not mapped classes: thousands of steps go on at once. Steps name their neighbours by
number in the run, in their own row: a run's rows are read and written together, so a table of
edges would only double what is written. Values are JSON text that nobody searches.
"""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    String,
    Table,
    Text,
    Uuid,
    text,
)

from gpuplane.db.types import Base, Instant

_OPEN = text("status IN ('pending','running')")

runs = Table(
    "runs_runs",
    Base.metadata,
    Column("id", Uuid(), primary_key=True),
    Column("tenant_id", Uuid(), nullable=False),
    Column("project_id", Uuid(), nullable=False),
    Column("kind", String(100), nullable=False),
    Column("name", String(250), nullable=False),
    Column("source_id", Uuid()),
    Column("source_version", Integer),
    Column("trigger", String(100), nullable=False),
    Column("dedup_id", String(250)),
    Column("created_by", String(200), nullable=False),
    Column("status", String(20), nullable=False),
    Column("condition", String(20), nullable=False),
    Column("on_failure", String(20), nullable=False),
    Column("params", Text, nullable=False),
    Column("context", Text, nullable=False),
    Column("limits", Text, nullable=False),
    Column("traceparent", String(100)),
    Column("forked_from", Uuid()),
    Column("max_parallel", Integer),
    Column("timeout_ms", Instant),
    Column("deadline_at", Instant),
    Column("expires_at", Instant),
    Column("created_at", Instant, nullable=False),
    Column("started_at", Instant),
    Column("ended_at", Instant),
    Column("step_count", Integer, nullable=False),
    Column("next_seq", Integer, nullable=False),
    Column("left", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("active", Integer, nullable=False),
    Column("output_bytes", Instant, nullable=False),
    Column("verdict", String(20), nullable=False),
    Column("undoes", Boolean, nullable=False),
    Column("error", String(100), nullable=False),
    Column("message", Text, nullable=False),
    Column("told_at", Instant, nullable=False),
    CheckConstraint(
        "status IN ('pending','running','completed','partial','failed','cancelled')",
        name="runs_run_status_known",
    ),
    CheckConstraint('"left" >= 0 AND active >= 0', name="runs_run_counts"),
    Index("ix_runs_runs_project", "project_id", "created_at", "id"),
    Index("ix_runs_runs_tenant", "tenant_id", "created_at", "id"),
    Index("ix_runs_runs_created", "created_at", "id"),
    Index(
        "ix_runs_runs_source",
        "source_id",
        "created_at",
        "id",
        sqlite_where=text("source_id IS NOT NULL"),
        postgresql_where=text("source_id IS NOT NULL"),
    ),
    Index(
        "ux_runs_runs_dedup",
        "project_id",
        "dedup_id",
        unique=True,
        sqlite_where=text("dedup_id IS NOT NULL"),
        postgresql_where=text("dedup_id IS NOT NULL"),
    ),
    Index(
        "ix_runs_runs_expires",
        "expires_at",
        sqlite_where=text("expires_at IS NOT NULL"),
        postgresql_where=text("expires_at IS NOT NULL"),
    ),
    Index("ix_runs_runs_open", "project_id", "source_id", sqlite_where=_OPEN,
          postgresql_where=_OPEN),
    Index(
        "ix_runs_runs_ended",
        "ended_at",
        sqlite_where=text("ended_at IS NOT NULL"),
        postgresql_where=text("ended_at IS NOT NULL"),
    ),
)  # fmt: skip

_DUE = text("due_at IS NOT NULL")
_OWNED = text("owner IS NOT NULL")
_AWAITING = text("wait_key IS NOT NULL")
_CHILD = text("parent > 0")
_LIMITED = text("condition = 'Limited'")
_PARKED = text("condition = 'NoHandler'")

steps = Table(
    "runs_steps",
    Base.metadata,
    Column("id", Uuid(), primary_key=True),
    # The id of the run with the number of the step in its last bits: see core.runs.boards.
    Column("run_id", Uuid(), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("parent", Integer, nullable=False),
    Column("undo_of", Integer, nullable=False),
    Column("key", String(300), nullable=False),
    Column("handler", String(100), nullable=False),
    Column("spec", Text, nullable=False),
    Column("needs", Text, nullable=False),
    Column("followers", Text, nullable=False),
    Column("status", String(20), nullable=False),
    Column("condition", String(20), nullable=False),
    Column("needs_left", Integer, nullable=False),
    Column("due_at", Instant),
    Column("held_at", Instant),
    Column("owner", String(200)),
    Column("epoch", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("limited_by", String(10), nullable=False),
    Column("run_slot", Boolean, nullable=False),
    Column("kin_slot", Boolean, nullable=False),
    Column("key_slot", Boolean, nullable=False),
    Column("expires_at", Instant),
    Column("wait_key", String(300)),
    Column("wait_until", Instant),
    Column("state", Text),
    Column("event", Text),
    Column("join", String(10), nullable=False),
    Column("join_count", Integer, nullable=False),
    Column("kids_left", Integer, nullable=False),
    Column("kids_done", Integer, nullable=False),
    Column("kids_active", Integer, nullable=False),
    Column("kids_parallel", Integer),
    Column("stopping", Integer, nullable=False),
    Column("done_no", Integer, nullable=False),
    Column("error", String(100), nullable=False),
    Column("message", Text, nullable=False),
    Column("cache_note", Text, nullable=False),
    Column("started_at", Instant),
    Column("ended_at", Instant),
    Column("output", Text),
    CheckConstraint(
        "status IN ('waiting','pending','running','completed','failed','skipped','cancelled')",
        name="runs_step_status_known",
    ),
    CheckConstraint("needs_left >= 0 AND kids_left >= 0", name="runs_step_counts"),
    CheckConstraint("(owner IS NOT NULL) = (status = 'running')", name="runs_step_owned"),
    Index("ix_runs_steps_due", "due_at", "id", sqlite_where=_DUE, postgresql_where=_DUE),
    Index("ix_runs_steps_owner", "owner", sqlite_where=_OWNED, postgresql_where=_OWNED),
    Index("ix_runs_steps_awaiting", "wait_key", sqlite_where=_AWAITING, postgresql_where=_AWAITING),
    Index("ix_runs_steps_parent", "run_id", "parent", "seq", sqlite_where=_CHILD,
          postgresql_where=_CHILD),
    Index("ix_runs_steps_limited", "run_id", "limited_by", "parent", "seq", sqlite_where=_LIMITED,
          postgresql_where=_LIMITED),
    Index("ix_runs_steps_parked", "handler", sqlite_where=_PARKED, postgresql_where=_PARKED),
)  # fmt: skip

events = Table(
    "runs_events",
    Base.metadata,
    Column("id", Uuid(), primary_key=True),
    Column("key", String(300), nullable=False),
    # NULL for keys that name no run; those are kept for a while only.
    Column("run_id", Uuid()),
    Column("payload", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Index("ix_runs_events_key", "key", "id"),
    Index("ix_runs_events_run", "run_id"),
    Index("ix_runs_events_at", "at"),
)

places = Table(
    "runs_places",
    Base.metadata,
    Column("project_id", Uuid(), primary_key=True),
    Column("kind", String(10), primary_key=True),
    Column("key", String(250), primary_key=True),
    # The run or step that holds a place under the key or waits for one.
    Column("holder_id", Uuid(), primary_key=True),
    Column("run_id", Uuid(), nullable=False),
    Column("count", Integer, nullable=False),
    Column("held", Boolean, nullable=False),
    CheckConstraint("kind IN ('run','step')", name="runs_place_kind_known"),
    Index("ix_runs_places_holder", "holder_id"),
    Index("ix_runs_places_run", "run_id"),
)

cache = Table(
    "runs_cache",
    Base.metadata,
    Column("project_id", Uuid(), primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("handler", String(100), nullable=False),
    Column("step_key", String(300), nullable=False),
    Column("salt_hash", String(64), nullable=False),
    Column("input_hash", String(64), nullable=False),
    Column("output", Text),
    Column("run_id", Uuid(), nullable=False),
    Column("at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Index("ix_runs_cache_step", "project_id", "handler", "step_key", "at"),
    Index("ix_runs_cache_expires", "expires_at"),
)

workers = Table(
    "runs_workers",
    Base.metadata,
    Column("owner", String(200), primary_key=True),
    Column("handlers", Text, nullable=False),
    Column("expires_at", Instant, nullable=False),
)
