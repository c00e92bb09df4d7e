"""API bodies of clusters: registration, health, add-ons, keys, maintenance, grants, preemption."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, Field, SecretStr, field_validator
from pydantic_core.core_schema import ValidationInfo

from gpuplane.kit.bodies import (
    Body,
    Flag,
    InstantIn,
    InstantOut,
    Labels,
    Name,
    SecretBody,
    Text,
    refusal,
)

Seconds = Annotated[int, Field(strict=True, ge=0, le=86_400)]
Ratio = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]


class GpuShapeOut(Body):
    """GPUs of one model: the most on one node, and all of the cluster."""

    gpu_type: str
    most_per_node: int
    total: int


class HealthOut(Body):
    """What one kind of look at a cluster found."""

    kind: str
    verdict: str
    """`healthy`, `degraded`, `unhealthy`, `absent` (not installed) or `unknown`."""
    message: str
    checked_at: InstantOut


class ClusterOut(Body):
    """One cluster."""

    id: UUID
    name: str
    kind: str
    simulated: bool
    """True when no command is ever executed there."""
    state: str
    state_reason: str
    labels: dict[str, str]
    notes: list[str]
    """What it promises and does not, in sentences."""
    frozen: bool
    frozen_reason: str
    is_open_to_all: bool
    gpus: list[GpuShapeOut]
    platform: str
    """`ON_PREM`, `EKS`, `AKS` or `GKE`."""
    role: str
    """`manager` hands work to other clusters, `worker` runs it."""
    admission: str | None
    """Who admits work: `embedded` (the scheduler here) or `kueue`; null before it was looked at."""
    expose: str
    """Which services get a Route: `asked`, `all` or `none`."""
    report_image: str
    """Where the last report of each job is kept; empty for the jobs' own images."""
    distribution: str
    kubernetes_version: str
    server_url: str
    host: str
    ingress_url: str
    enable_master_node: bool
    attributes: dict[str, str]
    health: list[HealthOut]
    last_metrics_collection: InstantOut | None
    metrics_collection_status: str | None
    not_available_since: InstantOut | None
    last_retry_time: InstantOut | None
    next_retry_time: InstantOut | None
    run_id: UUID | None
    """The run that registers or deletes it."""
    created_at: InstantOut
    updated_at: InstantOut
    resource_version: int


class ClustersOut(Body):
    """The clusters the caller may use, by name."""

    items: list[ClusterOut]


class FreezeIn(Body):
    """Why nothing new may start."""

    reason: Text = ""


class PreemptionPolicyIn(Body):
    """What of the preemption policy changes; what is left out stays."""

    enabled: Flag | None = None
    min_runtime_before_preemption_s: Seconds | None = None
    max_preemptions_per_hour: Annotated[int, Field(strict=True, ge=0, le=10_000)] | None = None
    grace_period_s: Annotated[int, Field(strict=True, ge=0, le=3_600)] | None = None
    high_cost_progress_ratio: Ratio | None = None
    low_cost_checkpoint_age_s: Seconds | None = None


class PreemptionPolicyOut(Body):
    """The preemption policy of a cluster; it counts only where the scheduler here admits."""

    is_in_force: bool
    decided_by: Literal["scheduler", "kueue"]
    """`kueue`: who is preempted is decided by `preemption` of the cluster's quotas."""
    enabled: bool
    min_runtime_before_preemption_s: int
    max_preemptions_per_hour: int
    grace_period_s: int
    high_cost_progress_ratio: float
    low_cost_checkpoint_age_s: int


class WindowIn(Body):
    """A maintenance window to announce, of the cluster or of one node."""

    start: InstantIn
    end: InstantIn
    reason: Text
    node: Annotated[str, Field(min_length=1, max_length=253)] | None = None

    @field_validator("end")
    @classmethod
    def _check_order(cls, value: int, info: ValidationInfo) -> int:
        start = info.data.get("start")
        if start is not None and value <= start:
            raise refusal("The window ends before it begins.", "Give an end after the start.")
        return value


class WindowOut(Body):
    """An announced maintenance window."""

    id: UUID
    cluster_id: UUID
    node: str | None
    start: InstantOut
    end: InstantOut
    reason: str
    announced_at: InstantOut
    announced_by: str
    has_begun: bool


class WindowsOut(Body):
    """Windows that are not over, earliest first."""

    items: list[WindowOut]


class GrantIn(Body):
    """The tenant that may use a cluster."""

    tenant_id: UUID


class DedicationIn(Body):
    """The only tenant that may use a cluster, or null for everyone again."""

    tenant_id: UUID | None


class GrantsOut(Body):
    """The tenants a cluster that is not open to all was granted to."""

    tenant_ids: list[UUID]


def _check_text(given: SecretStr) -> SecretStr:
    if not given.get_secret_value().strip():
        raise refusal(
            "The kubeconfig is empty.",
            "Send the text of the file, such as `kubectl config view --raw --minify` prints it.",
        )
    return given


Kubeconfig = Annotated[SecretStr, AfterValidator(_check_text), Field(max_length=524_288)]
"""Never shown by `repr`, logs or validation errors."""
ContextName = Annotated[str, Field(min_length=1, max_length=253)]
Url = Annotated[str, Field(max_length=500)]
ImageName = Annotated[str, Field(max_length=500, pattern=r"^[A-Za-z0-9._/:@-]*$")]


class ClusterSettingsIn(Body):
    """What people say of a cluster; what is left out stays as it is."""

    role: Literal["manager", "worker"] | None = None
    admission: Literal["embedded", "kueue"] | None = None
    """Who admits work; Kueue where it is served unless it is said otherwise."""
    expose: Literal["asked", "all", "none"] | None = None
    """Which services get a Route where OpenShift serves them: those whose job has the label
    `expose: "true"`, all, or none."""
    report_image: ImageName | None = None
    """Where the last report of each job is kept: an image with `sh` and `tail`; `none` for nowhere,
    empty for the jobs' own images where a shell is known to be in them."""
    ingress_url: Url | None = None
    enable_master_node: Flag | None = None
    """Whether nodes of the control plane count and take work."""
    attributes: Labels | None = None
    """What affinity and data classification go by, such as `region` or `data-classification`."""


class ClusterDescriptionIn(ClusterSettingsIn):
    """A cluster to register, without its kubeconfig: the first part of the form."""

    name: Name
    platform: Literal["ON_PREM", "EKS", "AKS", "GKE"] | None = None
    """Found out from the cluster where it is left out."""
    context: ContextName | None = None
    """Which context of the kubeconfig; the current one where it is left out."""
    addons: Annotated[list[Name], Field(max_length=32)] | None = None
    """Add-ons that may be installed; all that fit where it is left out, none for []."""


class ClusterIn(ClusterDescriptionIn):
    """A cluster to register: its kubeconfig goes in, is sealed, and is never shown again."""

    kubeconfig: Kubeconfig


class CredentialsIn(Body):
    """A kubeconfig in the place of the one before."""

    kubeconfig: Kubeconfig
    context: ContextName | None = None


class RegistrationStepOut(Body):
    """One step of a registration or a deletion."""

    name: str
    status: str
    title: str


class RegistrationOut(SecretBody):
    """A registration that goes on as a run; the key is shown this once."""

    success: bool
    workflow_id: UUID
    """The run: follow it at `/runs/{id}`."""
    cluster: ClusterOut
    steps: list[RegistrationStepOut]
    metrics_key: str | None
    """By which the cluster pushes its metrics; null where one was issued before."""
    warnings: list[str]
    """Rights that are missing and not needed for running work."""


class CredentialsOut(Body):
    """What is known of a cluster's credentials: nothing of them."""

    number: int
    """From 1; grows when they are replaced."""
    context: str
    expires_at: InstantOut | None
    stored_at: InstantOut
    stored_by: str


class ClusterHealthOut(Body):
    """A cluster's checks."""

    cluster_id: UUID
    state: str
    checks: list[HealthOut]


class AddonOut(Body):
    """What became of an add-on on a cluster."""

    name: str
    state: str
    """`installed`, `adopted`, `present` (somebody else's), `failed`, `left_out` or `removed`."""
    release_name: str
    namespace: str
    chart: str
    chart_version: str
    message: str
    updated_at: InstantOut


class AddonsOut(Body):
    """The add-ons of a cluster, by name."""

    items: list[AddonOut]


class AddonsIn(Body):
    """Which add-ons to bring in."""

    addons: Annotated[list[Name], Field(max_length=32)] | None = None
    """What was asked for before, and what is ours there, where it is left out; none for []."""


class ClusterKeyOut(SecretBody):
    """A key by which a cluster pushes its metrics; its secret is in the first answer alone."""

    id: UUID
    hint: str
    key: str | None
    issued_at: InstantOut
    issued_by: str
    revoked_at: InstantOut | None


class ClusterKeysOut(Body):
    """The keys of a cluster, newest first; secrets are not among what is kept."""

    items: list[ClusterKeyOut]
