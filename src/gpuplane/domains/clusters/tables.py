"""Tables of clusters and announced maintenance windows."""

from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gpuplane.db.types import Base, Json


class ClusterRow(Base):
    """One cluster; `config` is what its backend needs to be built (never a secret)."""

    __tablename__ = "clusters_clusters"
    __table_args__ = (
        UniqueConstraint("name"),
        CheckConstraint("kind IN ('local', 'simulated', 'kubernetes')", name="kind_known"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    kind: Mapped[str] = mapped_column(String(20))
    simulated: Mapped[bool]
    state: Mapped[str] = mapped_column(String(20), index=True)
    state_reason: Mapped[str] = mapped_column(default="")
    not_available_since: Mapped[int | None]
    labels: Mapped[dict[str, str]] = mapped_column(Json)
    notes: Mapped[list[str]] = mapped_column(Json)
    config: Mapped[dict[str, Any]] = mapped_column(Json)
    frozen: Mapped[bool] = mapped_column(default=False)
    frozen_reason: Mapped[str] = mapped_column(default="")
    preemption_policy: Mapped[dict[str, Any]] = mapped_column(Json)
    gpu_shapes: Mapped[dict[str, list[int]]] = mapped_column(Json)
    """Model to [most on one node, all], so that a submit need not read the nodes."""
    inventory_generation: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[int]
    updated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


class GrantRow(Base):
    """A tenant that may use a cluster which is not open to all (a `local` one)."""

    __tablename__ = "clusters_grants"

    cluster_id: Mapped[UUID] = mapped_column(ForeignKey("clusters_clusters.id"), primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(primary_key=True)
    granted_at: Mapped[int]


class WindowRow(Base):
    """One announced maintenance window of a cluster, or of one of its nodes."""

    __tablename__ = "clusters_windows"
    __table_args__ = (
        CheckConstraint("start_at < end_at", name="order"),
        Index("ix_clusters_windows_open", "cluster_id", "end_at"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    cluster_id: Mapped[UUID] = mapped_column(ForeignKey("clusters_clusters.id"))
    node_name: Mapped[str | None] = mapped_column(String(253))
    start_at: Mapped[int]
    end_at: Mapped[int]
    reason: Mapped[str]
    announced_at: Mapped[int]
    announced_by: Mapped[str] = mapped_column(String(200))
    started: Mapped[bool] = mapped_column(default=False)
