"""A cluster as a value, and the pure rules of this noun."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ClusterId, TenantId

LOCAL_KIND = "local"
"""The kind that runs work as the user of this machine, so that each tenant must be granted it."""

DEDICATED_LABEL = "gpuplane.io/dedicated-to"
"""The label with the id of the only tenant that may use a cluster."""


class ClusterState(StrEnum):
    """Where a cluster stands."""

    REGISTERING = "REGISTERING"
    AVAILABLE = "AVAILABLE"
    NOT_AVAILABLE = "NOT_AVAILABLE"
    ERROR = "ERROR"
    DRAINING = "DRAINING"
    DELETING = "DELETING"


class Platform(StrEnum):
    """Who runs a cluster's machines."""

    ON_PREM = "ON_PREM"
    EKS = "EKS"
    AKS = "AKS"
    GKE = "GKE"


class ClusterRole(StrEnum):
    """What a cluster is among several: it runs work, or it hands work to those that do."""

    MANAGER = "manager"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """What one kind of look at a cluster found.

    Attributes:
        kind: One of `HEALTH_KINDS`.
        verdict: `healthy`, `degraded`, `unhealthy`, `absent` (not installed) or `unknown`.
    """

    kind: str
    verdict: str
    message: str
    checked_at: int


HEALTH_KINDS = ("api_server", "nodes", "device_plugin", "gpu_operator", "kueue", "metrics")


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster as stored."""

    id: ClusterId
    name: str
    kind: str
    simulated: bool
    state: ClusterState
    state_reason: str
    labels: dict[str, str]
    notes: tuple[str, ...]
    config: dict[str, Any]
    frozen: bool
    frozen_reason: str
    preemption_policy: dict[str, Any]
    inventory_generation: int
    created_at: int
    updated_at: int
    version: int
    not_available_since: int | None = None
    gpu_shapes: dict[str, list[int]] = field(default_factory=dict)
    """Model to [most on one node, all of the cluster]."""
    platform: str = str(Platform.ON_PREM)
    role: str = str(ClusterRole.WORKER)
    server_url: str = ""
    host: str = ""
    ingress_url: str = ""
    enable_master_node: bool = False
    """Whether nodes of the control plane count."""
    kubernetes_version: str = ""
    distribution: str = ""
    """`kubernetes`, `openshift`, `eks`, `aks`, `gke`, `k3s`; empty before it was looked at."""
    attributes: dict[str, Any] = field(default_factory=dict)
    last_metrics_collection: int | None = None
    metrics_collection_status: str | None = None
    last_retry_at: int | None = None
    next_try_at: int | None = None
    failures: int = 0
    failed_at: tuple[int, ...] = ()
    health: tuple[HealthCheck, ...] = ()
    run_id: UUID | None = None

    @property
    def dedicated_to(self) -> TenantId | None:
        """Return the only tenant that may use it, or None."""
        tenant = self.labels.get(DEDICATED_LABEL)
        return None if tenant is None else TenantId(UUID(tenant))

    @property
    def is_open_to_all(self) -> bool:
        """Return whether every tenant may use it; a local one runs work as this user."""
        return self.kind != LOCAL_KIND


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """An announced window in which nothing new starts on a cluster or node."""

    id: UUID
    cluster_id: ClusterId
    node_name: str | None
    start_at: int
    end_at: int
    reason: str
    announced_at: int
    announced_by: str
    started: bool = False


@dataclass(frozen=True, slots=True)
class PreemptionPolicy:
    """What `PATCH /clusters/{id}/preemption-policy` sets; defaults of spec scenario 16."""

    enabled: bool = True
    min_runtime_before_preemption_s: int = 300
    max_preemptions_per_hour: int = 10
    grace_period_s: int = 30
    high_cost_progress_ratio: float = 0.9
    low_cost_checkpoint_age_s: int = 300


POLICY_LIMITS: dict[str, tuple[float, float]] = {
    "min_runtime_before_preemption_s": (0, 86_400),
    "max_preemptions_per_hour": (0, 10_000),
    "grace_period_s": (0, 3_600),
    "high_cost_progress_ratio": (0, 1),
    "low_cost_checkpoint_age_s": (0, 86_400),
}


def policy_of(stored: dict[str, Any]) -> PreemptionPolicy:
    """Return the policy that stored overrides make; unknown keys were refused at the edge."""
    return PreemptionPolicy(**stored)


@dataclass(frozen=True, slots=True)
class ClusterFilter:
    """What a list of clusters may be narrowed by."""

    kind: str | None = None
    state: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
