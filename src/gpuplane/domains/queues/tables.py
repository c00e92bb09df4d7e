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
