"""Tables of nodes and GPUs."""

from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, Integer, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gpuplane.db.types import Base, Json


class NodeRow(Base):
    """One node: facts last observed, and the operator's marks (cordoned, draining)."""

    __tablename__ = "nodes_nodes"
    __table_args__ = (UniqueConstraint("cluster_id", "name"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    cluster_id: Mapped[UUID] = mapped_column(ForeignKey("clusters_clusters.id"))
    name: Mapped[str] = mapped_column(String(253))
    ready: Mapped[bool]
    message: Mapped[str] = mapped_column(default="")
    present: Mapped[bool] = mapped_column(default=True)
    cordoned: Mapped[bool] = mapped_column(default=False)
    drain_started_at: Mapped[int | None]
    drain_wait_s: Mapped[int | None]
    cpu_milli: Mapped[int]
    memory_mib: Mapped[int]
    ephemeral_mib: Mapped[int]
    labels: Mapped[dict[str, str]] = mapped_column(Json)
    taints: Mapped[list[list[str]]] = mapped_column(Json)
    topology: Mapped[str | None]
    rack: Mapped[str] = mapped_column(String(100), default="")
    block: Mapped[str] = mapped_column(String(100), default="")
    rdma_fabric: Mapped[str] = mapped_column(String(100), default="")
    uid: Mapped[str] = mapped_column(String(64), default="")
    kind: Mapped[str] = mapped_column(String(10), default="WORKER")
    internal_ip: Mapped[str] = mapped_column(String(64), default="")
    unschedulable: Mapped[bool] = mapped_column(default=False)
    is_counted: Mapped[bool] = mapped_column(default=True)
    threads_per_core: Mapped[int | None] = mapped_column(Integer)
    core_count: Mapped[int | None] = mapped_column(Integer)
    hardware_info: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    conditions: Mapped[list[Any]] = mapped_column(Json, default=list)
    nfd_detected: Mapped[bool] = mapped_column(default=False)
    nfd_labels: Mapped[dict[str, str]] = mapped_column(Json, default=dict)
    detection_method: Mapped[str] = mapped_column(String(40), default="backend")
    kernel_info: Mapped[dict[str, str]] = mapped_column(Json, default=dict)
    driver_info: Mapped[dict[str, str]] = mapped_column(Json, default=dict)
    status_sync_at: Mapped[int | None]
    created_at: Mapped[int]
    updated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


class GpuRow(Base):
    """One GPU, named by its NVML UUID for as long as it exists."""

    __tablename__ = "nodes_gpus"
    __table_args__ = (Index("ix_nodes_gpus_node", "node_id"),)

    gpu_id: Mapped[str] = mapped_column(String(100), primary_key=True)
    node_id: Mapped[UUID] = mapped_column(ForeignKey("nodes_nodes.id"))
    cluster_id: Mapped[UUID] = mapped_column(ForeignKey("clusters_clusters.id"), index=True)
    gpu_index: Mapped[int]
    model: Mapped[str] = mapped_column(String(100), index=True)
    product: Mapped[str] = mapped_column(String(200))
    memory_mib: Mapped[int]
    healthy: Mapped[bool]
    present: Mapped[bool] = mapped_column(default=True)
    message: Mapped[str] = mapped_column(default="")
    numa: Mapped[int | None]
    mig_enabled: Mapped[bool] = mapped_column(default=False)
    mig_instances: Mapped[list[Any]] = mapped_column(Json)
    used_percent: Mapped[int | None] = mapped_column(Integer)
    """How much of it its cluster says is given away, by whomever; None where nothing tells."""
    used_at: Mapped[int | None]
    # The profiles that the device reports, where it does.
    mig_table: Mapped[list[Any] | None] = mapped_column(Json)
    updated_at: Mapped[int]
