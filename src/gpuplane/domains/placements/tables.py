"""Tables of who holds what: a guard row for each device and node, allocations, reservations.

Plain tables, not mapped classes: placing and releasing write thousands of rows at once. The
constraints are the last line: even wrong code cannot sell a device twice.
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

nodes = Table(
    "placements_nodes",
    Base.metadata,
    Column("node_id", Uuid(), primary_key=True),
    Column("cluster_id", Uuid(), nullable=False, index=True),
    Column("cpu_milli", Integer, nullable=False),
    Column("cpu_milli_used", Integer, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("memory_mib_used", Integer, nullable=False),
    Column("ephemeral_mib", Integer, nullable=False),
    Column("ephemeral_mib_used", Integer, nullable=False),
    Column("simulated", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
    CheckConstraint(
        "cpu_milli_used >= 0 AND cpu_milli_used <= cpu_milli", name="placements_cpu_not_oversold"
    ),
    CheckConstraint(
        "memory_mib_used >= 0 AND memory_mib_used <= memory_mib",
        name="placements_memory_not_oversold",
    ),
    CheckConstraint(
        "ephemeral_mib_used >= 0 AND ephemeral_mib_used <= ephemeral_mib",
        name="placements_ephemeral_not_oversold",
    ),
)

reservations = Table(
    "placements_reservations",
    Base.metadata,
    Column("id", Uuid(), primary_key=True),
    Column("cluster_id", Uuid(), nullable=False, index=True),
    Column("tenant_id", Uuid(), nullable=False, index=True),
    Column("project_id", Uuid(), nullable=False),
    Column("model", String(100), nullable=False),
    Column("gpu_count", Integer, nullable=False),
    Column("start_at", Instant, nullable=False),
    Column("end_at", Instant, nullable=False),
    Column("charge_unused", Boolean, nullable=False),
    Column("state", String(20), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("created_by", Uuid(), nullable=False),
    Column("ended_at", Instant),
    CheckConstraint("gpu_count > 0", name="placements_reservation_of_something"),
    CheckConstraint("end_at > start_at", name="placements_reservation_has_length"),
    CheckConstraint(
        "state IN ('scheduled','active','ended','cancelled')",
        name="placements_reservation_state_known",
    ),
)

devices = Table(
    "placements_devices",
    Base.metadata,
    Column("gpu_id", String(100), primary_key=True),
    Column("node_id", Uuid(), nullable=False),
    Column("cluster_id", Uuid(), nullable=False, index=True),
    Column("model", String(100), nullable=False),
    Column("allocated_milli", Integer, nullable=False),
    # A bit for the first memory slice of each MIG instance in use.
    Column("allocated_mig_mask", Integer, nullable=False),
    Column("down", Boolean, nullable=False),
    Column("reservation_id", Uuid(), ForeignKey("placements_reservations.id"), index=True),
    Column("version", Integer, nullable=False),
    CheckConstraint(
        "allocated_milli >= 0 AND allocated_milli <= 1000", name="placements_gpu_not_oversold"
    ),
)

repartitions = Table(
    "placements_repartitions",
    Base.metadata,
    Column("gpu_id", String(100), primary_key=True),
    Column("cluster_id", Uuid(), nullable=False, index=True),
    Column("node_id", Uuid(), nullable=False),
    Column("node_name", String(253), nullable=False),
    Column("gpu_index", Integer, nullable=False),
    # The job that waits for it; it may be over by now.
    Column("job_id", Uuid(), nullable=False),
    Column("destroy", Json, nullable=False),
    Column("create", Json, nullable=False),
    Column("state", String(20), nullable=False),
    Column("message", Text, nullable=False),
    Column("asked_at", Instant, nullable=False),
    Column("deadline_at", Instant, nullable=False),
    CheckConstraint(
        "state IN ('asked','sent','failed')", name="placements_repartition_state_known"
    ),
)

_OPEN_GPU = text("to_at IS NULL AND gpu_id IS NOT NULL")
_OPEN_NODE = text("to_at IS NULL AND gpu_id IS NULL")
_OPEN_WHOLE = text("to_at IS NULL AND gpu_milli = 1000 AND gpu_id IS NOT NULL")
_OPEN_MIG = text("to_at IS NULL AND mig_start IS NOT NULL")
_OPEN = text("to_at IS NULL")

allocations = Table(
    "placements_allocations",
    Base.metadata,
    Column("id", Uuid(), primary_key=True),
    Column("job_id", Uuid(), nullable=False, index=True),
    Column("attempt_id", Uuid(), nullable=False, index=True),
    Column("replica_id", Uuid(), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("tenant_id", Uuid(), nullable=False),
    Column("project_id", Uuid(), nullable=False),
    Column("cluster_id", Uuid(), nullable=False),
    Column("node_id", Uuid(), nullable=False),
    # NULL for the replica's part of the node: CPU, memory and ephemeral storage.
    Column("gpu_id", String(100)),
    Column("gpu_milli", Integer, nullable=False),
    Column("mig_profile", String(50)),
    Column("mig_start", Integer),
    Column("cpu_milli", Integer, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("ephemeral_mib", Integer, nullable=False),
    Column("from_at", Instant, nullable=False),
    Column("to_at", Instant),
    Column("busy_since", Instant),
    CheckConstraint("to_at IS NULL OR to_at >= from_at", name="placements_not_negative"),
    CheckConstraint(
        "(gpu_id IS NULL) = (gpu_milli = 0) AND gpu_milli >= 0 AND gpu_milli <= 1000",
        name="placements_share_of_one_gpu",
    ),
    CheckConstraint(
        "cpu_milli >= 0 AND memory_mib >= 0 AND ephemeral_mib >= 0",
        name="placements_amounts_not_negative",
    ),
    Index(
        "ux_placements_replica_gpu",
        "gpu_id",
        "replica_id",
        unique=True,
        sqlite_where=_OPEN_GPU,
        postgresql_where=_OPEN_GPU,
    ),
    Index(
        "ux_placements_replica_node",
        "replica_id",
        unique=True,
        sqlite_where=_OPEN_NODE,
        postgresql_where=_OPEN_NODE,
    ),
    Index(
        "ux_placements_whole_gpu",
        "gpu_id",
        unique=True,
        sqlite_where=_OPEN_WHOLE,
        postgresql_where=_OPEN_WHOLE,
    ),
    Index(
        "ux_placements_mig",
        "gpu_id",
        "mig_start",
        unique=True,
        sqlite_where=_OPEN_MIG,
        postgresql_where=_OPEN_MIG,
    ),
    Index("ix_placements_open_cluster", "cluster_id", sqlite_where=_OPEN, postgresql_where=_OPEN),
    # Whose shares a device has now, and what a node holds, even where a GPU is not in use.
    Index("ix_placements_open_gpu", "gpu_id", sqlite_where=_OPEN, postgresql_where=_OPEN),
)
