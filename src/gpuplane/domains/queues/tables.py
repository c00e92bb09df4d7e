"""Tables of queues: what administrators declared, one row an object, its spec in Kueue's words."""

from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gpuplane.db.types import Base, Json


class ClusterQueueRow(Base):
    """One ClusterQueue of a cluster."""

    __tablename__ = "queues_cluster_queues"
    __table_args__ = (UniqueConstraint("cluster_id", "name"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    cluster_id: Mapped[UUID] = mapped_column(ForeignKey("clusters_clusters.id"))
    name: Mapped[str] = mapped_column(String(253))
    spec: Mapped[dict[str, Any]] = mapped_column(Json)
    created_at: Mapped[int]
    updated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


class CohortRow(Base):
    """One Cohort of a cluster."""

    __tablename__ = "queues_cohorts"
    __table_args__ = (UniqueConstraint("cluster_id", "name"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    cluster_id: Mapped[UUID] = mapped_column(ForeignKey("clusters_clusters.id"))
    name: Mapped[str] = mapped_column(String(253))
    spec: Mapped[dict[str, Any]] = mapped_column(Json)
    created_at: Mapped[int]
    updated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


class LocalQueueRow(Base):
    """One LocalQueue: a tenant's door to a ClusterQueue of a cluster."""

    __tablename__ = "queues_local_queues"
    __table_args__ = (UniqueConstraint("cluster_id", "tenant_id", "name"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    cluster_id: Mapped[UUID] = mapped_column(ForeignKey("clusters_clusters.id"))
    tenant_id: Mapped[UUID]
    name: Mapped[str] = mapped_column(String(253))
    cluster_queue: Mapped[str] = mapped_column(String(253))
    spec: Mapped[dict[str, Any]] = mapped_column(Json)
    created_at: Mapped[int]
    updated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


class SeenRow(Base):
    """An object of Kueue as it was last seen on a cluster, ours or anybody's.

    `spec` is how it reads in our words, `state` what it says of itself, `applied` what we wrote
    last, and `conflict` why what was declared could not be written.
    """

    __tablename__ = "queues_seen"

    cluster_id: Mapped[UUID] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(63), primary_key=True)
    namespace: Mapped[str] = mapped_column(String(63), primary_key=True)
    name: Mapped[str] = mapped_column(String(253), primary_key=True)
    ours: Mapped[bool]
    spec: Mapped[dict[str, Any]] = mapped_column(Json)
    state: Mapped[dict[str, Any]] = mapped_column(Json)
    notes: Mapped[list[str]] = mapped_column(Json)
    applied: Mapped[dict[str, Any] | None] = mapped_column(Json)
    conflict: Mapped[dict[str, Any] | None] = mapped_column(Json)
    seen_at: Mapped[int]
