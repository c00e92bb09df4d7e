"""A cluster as a value, and the pure rules of this noun."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ClusterId, TenantId

DELETED_MARK = "~"
"""Between the name that a deleted cluster had and the end of its id, which frees the name."""
WAS_AVAILABLE = "was_available"
"""The mark in a registered cluster's config that it took work once."""
ADDONS = "addons"
"""The key in a registered cluster's config: the add-ons asked for last; absent for all that fit."""
NOT_ASKED_FOR = "It was not asked for."
"""The message of an add-on that was left out because others were named."""

REGISTERED_KIND = "kubernetes"
"""The kind that is registered, and reached by a kubeconfig."""

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
        kind: One of `HealthKind`.
        verdict: `healthy`, `degraded`, `unhealthy`, `absent` (not installed) or `unknown`.
    """

    kind: str
    verdict: str
    message: str
    checked_at: int


class HealthKind(StrEnum):
    """The kinds of looks, in the order in which they are shown."""

    API_SERVER = "api_server"
    NODES = "nodes"
    DEVICE_PLUGIN = "device_plugin"
    GPU_OPERATOR = "gpu_operator"
    KUEUE = "kueue"
    METRICS = "metrics"


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
    deleted_at: int | None = None

    @property
    def known_ids(self) -> tuple[str, ...]:
        """Return the ids that its objects may be labelled with: its own, and its former ones."""
        return (str(self.id), *self.config.get("former_ids", ()))

    @property
    def dedicated_to(self) -> TenantId | None:
        """Return the only tenant that may use it, or None."""
        tenant = self.labels.get(DEDICATED_LABEL)
        return None if tenant is None else TenantId(UUID(tenant))

    @property
    def was_available(self) -> bool:
        """Return whether a registered cluster took work once, so that some may run there."""
        return bool(self.config.get(WAS_AVAILABLE))

    @property
    def addons_asked(self) -> list[str] | None:
        """Return the add-ons that were asked for last, None where all that fit were."""
        told = self.config.get(ADDONS)
        return None if told is None else [str(each) for each in told]

    @property
    def admits_by_kueue(self) -> bool:
        """Return whether the cluster's own Kueue admits and preempts, not the scheduler here."""
        return bool(self.config.get("admission") == "kueue")

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


@dataclass(frozen=True, slots=True)
class ContactPolicy:
    """How a cluster that does not answer is tried again.

    Source:
        The cluster service's design document, 11.2: three tries, exponential from 30 s; the
        breaker opens at five failures within five minutes.
    """

    tries: int = 3
    base_ms: int = 30_000
    breaker_failures: int = 5
    breaker_window_ms: int = 300_000
    breaker_open_ms: int = 300_000


DEFAULT_CONTACT_POLICY = ContactPolicy()
HELD_STATES = frozenset({ClusterState.REGISTERING, ClusterState.DRAINING, ClusterState.DELETING})
"""States that a look at a cluster never changes: a run does."""


def decide_reached(cluster: Cluster) -> dict[str, Any]:
    """Return what changes when a cluster answered; nothing where nothing does."""
    changes: dict[str, Any] = {}
    if cluster.failures or cluster.failed_at or cluster.next_try_at is not None:
        changes |= {"failures": 0, "failed_at": [], "next_try_at": None}
    was_exhausted = cluster.state is ClusterState.ERROR and cluster.not_available_since is not None
    if cluster.state is ClusterState.NOT_AVAILABLE or was_exhausted:
        changes |= {"state": ClusterState.AVAILABLE, "state_reason": ""}
    if cluster.not_available_since is not None and cluster.state is not ClusterState.ERROR:
        changes["not_available_since"] = None
    if was_exhausted:
        changes["not_available_since"] = None
    return changes


def decide_unreached(
    cluster: Cluster, reason: str, now: int, policy: ContactPolicy = DEFAULT_CONTACT_POLICY
) -> dict[str, Any]:
    """Return what changes when a cluster did not answer.

    It is tried again after 30, 60 and 120 s; when the last of these fails too it is ERROR and is
    looked at again as often as the breaker lets one try through.
    """
    failures = cluster.failures + 1
    recent = [at for at in cluster.failed_at if at > now - policy.breaker_window_ms]
    recent = [*recent, now][-policy.breaker_failures :]
    exhausted = failures > policy.tries
    wait_ms = policy.breaker_open_ms if exhausted else policy.base_ms << (failures - 1)
    if len(recent) >= policy.breaker_failures:
        wait_ms = max(wait_ms, policy.breaker_open_ms)
    changes: dict[str, Any] = {
        "failures": failures,
        "failed_at": recent,
        "next_try_at": now + wait_ms,
        "last_retry_at": now if cluster.failures else cluster.last_retry_at,
    }
    if cluster.state in HELD_STATES or _failed_to_register(cluster):
        return changes
    # Of one that failed to register it stays None: that is how it is told from one out of reach.
    if cluster.not_available_since is None:
        changes["not_available_since"] = now
    said = f"{reason} It was tried {failures} times." if exhausted else reason
    changes["state"] = ClusterState.ERROR if exhausted else ClusterState.NOT_AVAILABLE
    changes["state_reason"] = said
    return changes


def _failed_to_register(cluster: Cluster) -> bool:
    return cluster.state is ClusterState.ERROR and cluster.not_available_since is None


def may_be_tried(cluster: Cluster, now: int) -> bool:
    """Return whether a cluster may be asked now: not while it backs off."""
    return cluster.next_try_at is None or now >= cluster.next_try_at


@dataclass(frozen=True, slots=True)
class Credential:
    """The sealed kubeconfig of a cluster."""

    cluster_id: ClusterId
    sealed: bytes = field(repr=False)
    number: int
    """From 1; grows when it is replaced."""
    context: str
    """The context in use, empty for the current one."""
    expires_at: int | None
    stored_at: int
    stored_by: str


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """A key by which a cluster pushes its metrics; its secret is shown once."""

    id: UUID
    cluster_id: ClusterId
    key_hash: str = field(repr=False)
    hint: str
    issued_at: int
    issued_by: str
    revoked_at: int | None = None


@dataclass(frozen=True, slots=True)
class AddonStatus:
    """What became of one add-on on one cluster.

    Attributes:
        state: `installed` by us, `adopted` from somebody, `present` by somebody and left alone,
            `failed`, `left_out` (not wanted or not to be had; the message says which), `removed`.
    """

    cluster_id: ClusterId
    name: str
    state: str
    release_name: str
    namespace: str
    chart: str
    chart_version: str
    message: str
    updated_at: int


def credential_context(cluster_id: UUID, number: int) -> str:
    """Return what a sealed kubeconfig is bound to: it opens nowhere else."""
    return f"clusters/{cluster_id}/kubeconfig/{number}"


VERSION_CHARS = 40
"""What is kept of a version that a cluster or a chart tells; their tables hold as much."""


def cut_versions(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with versions no longer than is kept of them."""
    return {
        name: value[:VERSION_CHARS] if name in ("kubernetes_version", "chart_version") else value
        for name, value in values.items()
    }


def find_changes(cluster: Cluster, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the wanted values that differ from what is stored."""
    return {name: value for name, value in wanted.items() if getattr(cluster, name) != value}
