"""Tables of clusters: what they are, how they are reached, their keys, add-ons and windows."""

from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, String, UniqueConstraint
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
    platform: Mapped[str] = mapped_column(String(20), default="ON_PREM", index=True)
    role: Mapped[str] = mapped_column(String(20), default="worker")
    server_url: Mapped[str] = mapped_column(String(500), default="")
    host: Mapped[str] = mapped_column(String(253), default="")
    ingress_url: Mapped[str] = mapped_column(String(500), default="")
    enable_master_node: Mapped[bool] = mapped_column(default=False)
    kubernetes_version: Mapped[str] = mapped_column(String(40), default="")
    distribution: Mapped[str] = mapped_column(String(20), default="")
    attributes: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    """What affinity and data classification go by."""
    last_metrics_collection: Mapped[int | None]
    metrics_collection_status: Mapped[str | None] = mapped_column(String(50))
    last_retry_at: Mapped[int | None]
    next_try_at: Mapped[int | None]
    failures: Mapped[int] = mapped_column(Integer, default=0)
    """Tries in a row that failed."""
    failed_at: Mapped[list[int]] = mapped_column(Json, default=list)
    """When the last of them did: what the breaker counts."""
    health: Mapped[list[Any]] = mapped_column(Json, default=list)
    """(kind, verdict, sentence, when) of each check."""
    run_id: Mapped[UUID | None]
    """The run that registers or deletes it."""
    deleted_at: Mapped[int | None]
    """A deleted cluster is kept under another name: jobs and the ledger tell of it."""
    created_at: Mapped[int]
    updated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


class CredentialRow(Base):
    """The sealed kubeconfig of a cluster; `number` grows when it is replaced."""

    __tablename__ = "clusters_credentials"

    cluster_id: Mapped[UUID] = mapped_column(ForeignKey("clusters_clusters.id"), primary_key=True)
    sealed: Mapped[bytes]
    number: Mapped[int] = mapped_column(Integer)
    context: Mapped[str] = mapped_column(String(253))
    expires_at: Mapped[int | None]
    stored_at: Mapped[int]
    stored_by: Mapped[str] = mapped_column(String(200))


class KeyRow(Base):
    """A key with which a cluster pushes its metrics; only its hash is kept."""

    __tablename__ = "clusters_keys"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    cluster_id: Mapped[UUID] = mapped_column(ForeignKey("clusters_clusters.id"), index=True)
    key_hash: Mapped[str] = mapped_column(String(64), unique=True)
    hint: Mapped[str] = mapped_column(String(20))
    issued_at: Mapped[int]
    issued_by: Mapped[str] = mapped_column(String(200))
    revoked_at: Mapped[int | None]


class AddonRow(Base):
    """What became of one add-on on one cluster."""

    __tablename__ = "clusters_addons"
    __table_args__ = (
        CheckConstraint(
            "state IN ('installed','adopted','present','failed','left_out','removed')",
            name="addon_state_known",
        ),
    )

    cluster_id: Mapped[UUID] = mapped_column(ForeignKey("clusters_clusters.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    state: Mapped[str] = mapped_column(String(20))
    release_name: Mapped[str] = mapped_column(String(63))
    namespace: Mapped[str] = mapped_column(String(63))
    chart: Mapped[str] = mapped_column(String(200))
    chart_version: Mapped[str] = mapped_column(String(40))
    message: Mapped[str]
    updated_at: Mapped[int]


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
