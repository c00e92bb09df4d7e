"""What is told about jobs: every field back, and what became of it."""

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from gpuplane.domains.jobs.schemas.parts import (
    AfterBody,
    CheckpointBody,
    ExecutionBody,
    PlacementBody,
    ReplicasBody,
    ResourcesBody,
    RetryBody,
    WindowBody,
)
from gpuplane.kit.bodies import Body, InstantOut, MoneyOut


class ScaleOut(Body):
    """How many replicas a service that scales has and wants, and why the next one waits."""

    wanted: int
    since: InstantOut | None
    present: int
    missing: int
    """How many it does not have yet of those it wants."""
    ready: int
    reason: str
    """Why the next of them waits, in one word; empty when none does or nothing is known."""
    message: str


class JobRowOut(Body):
    """A job as lists show it."""

    id: UUID
    name: str
    tenant_id: UUID
    tenant: str
    project_id: UUID
    project: str
    user_id: UUID
    user: str
    cluster_id: UUID | None
    cluster: str | None
    simulated: bool
    """Whether it is on a simulated cluster, where no command is ever executed."""

    source_type: str
    source_id: str | None
    job_type: str
    deployment_type: str
    gpu_type: str | None
    gpu_count: int
    """GPUs of one replica."""
    replica_count: int
    replicas_wanted: int | None
    """How many a service that scales is to have now; null for others and when it does not run."""
    replicas_ready: int | None
    """How many of them are ready."""
    scale: ScaleOut | None
    """The same in full, and why the next one waits."""
    priority: str
    queue: str
    labels: dict[str, str]
    cost_centre: str
    data_classification: str
    array_id: UUID | None
    array_index: int | None

    status: str
    condition: str
    reason: str
    status_message: str
    progress: float | None
    retry_count: int
    attempt_count: int
    ran_seconds: float
    """How long its attempts ran together, until now."""

    estimated_start: InstantOut | None
    estimated_end: InstantOut | None
    actual_start: InstantOut | None
    actual_end: InstantOut | None
    queued_at: InstantOut | None
    admitted_at: InstantOut | None
    estimated_cost: MoneyOut | None
    actual_cost: MoneyOut | None
    currency: str
    created_at: InstantOut
    updated_at: InstantOut


class ReplicaOut(Body):
    """One rank of an attempt."""

    id: UUID
    rank: int
    node: str
    gpu_ids: list[str]
    gpu_share: float
    mig_device: str | None
    phase: str
    ready: bool | None
    started_at: InstantOut | None
    ended_at: InstantOut | None
    exit_code: int | None
    signal: int | None
    reason: str
    message: str
    url: str | None
    restart_count: int


class AttemptOut(Body):
    """One try of a job."""

    id: UUID
    number: int
    cluster_id: UUID
    state: str
    queue: str
    cluster_queue: str
    admitted_at: InstantOut
    started_at: InstantOut | None
    ended_at: InstantOut | None
    exit_code: int | None
    signal: int | None
    reason: str
    message: str
    stop_intent: str | None
    lost_gpu_seconds: float | None
    explanation: dict[str, Any] | None
    scale: ScaleOut | None
    replicas: list[ReplicaOut]


class AttemptRowOut(AttemptOut):
    """One try of a job, with what it held in all its time: replicas of a service come and go."""

    most_gpus: int
    """GPUs that it held at most at one time."""
    nodes: list[str]
    """Nodes on which it held anything."""


class ArrayOut(Body):
    """The array a job belongs to."""

    id: UUID
    size: int
    limit: int | None
    job_ids: list[UUID]


class JobOut(JobRowOut):
    """A job with everything that was asked and what became of it."""

    pipeline_id: UUID | None
    pipeline_step_id: UUID | None
    usecase_deployment_id: UUID | None
    spec: ExecutionBody
    cpu_cores: float
    memory_gb: float
    storage_gb: int | None
    resources: ResourcesBody
    replicas: ReplicasBody
    placement: PlacementBody
    estimated_duration_seconds: int | None
    max_duration_seconds: int | None
    deadline: InstantOut | None
    deadline_action: str
    scheduled_start: InstantOut | None
    window: WindowBody | None
    after: list[AfterBody]
    preemptible: bool | None
    preempts_others: bool | None
    max_retries: int
    retry: RetryBody
    checkpoint: CheckpointBody | None
    budget_limit: MoneyOut | None
    budget_action: str
    requested_cluster_id: UUID | None
    idempotency_key: str | None
    array: ArrayOut | None = None

    reason_counts: dict[str, int] | None
    condition_at: InstantOut | None
    due_at: InstantOut | None
    last_checkpoint: str | None
    last_checkpoint_at: InstantOut | None
    exit_code: int | None
    """The exit code of the attempt that ended the job; null while it may be tried again."""
    outputs: dict[str, Any]
    """Sensitive outputs are named and masked."""
    current_attempt: AttemptOut | None = None
    resource_version: int


class ScheduleOut(Body):
    """When a job is expected to run, or ran."""

    job_id: UUID
    status: str
    cluster: str | None
    position: int | None
    """Place in the queue of its cluster, from 1; absent when it does not wait."""
    scheduled_start: InstantOut | None
    estimated_start: InstantOut | None
    estimated_end: InstantOut | None
    actual_start: InstantOut | None
    actual_end: InstantOut | None
    deadline: InstantOut | None
    meets_deadline: bool | None
    explanation: list[str]


class FilterCountOut(Body):
    """How many nodes one filter refused."""

    word: str
    nodes: int


class FieldChangeOut(Body):
    """A field and the value that works."""

    field: str
    value: str


class ChangeOut(Body):
    """The smallest change known that would let the job start now."""

    field: str
    value: str
    sentence: str
    also: FieldChangeOut | None = None
    """A second change that is needed beside the first; the sentence tells both."""


class QuantilesOut(Body):
    """What similar jobs took or used: tenth percentile, median, ninetieth percentile."""

    low: int
    median: int
    high: int
    samples: int
    """Ended jobs that this rests on."""
    likeness: str
    """How alike they are: series, user, tenant-class or class, most alike first."""


class PredictionOut(Body):
    """What is expected of a job, and on what that rests."""

    workload_class: str
    confidence: str
    """high, medium or low: how far the class is ahead of the next one."""
    evidence: list[str]
    """What spoke for a class, the strongest first."""
    duration_seconds: int
    """The duration that is counted on."""
    duration_seconds_p90: int
    basis: str
    """What the duration rests on: estimate, history, maximum or default."""
    durations_seconds: QuantilesOut | None
    """How long similar jobs ran; null when too few have ended."""
    gpu_memory_mib: QuantilesOut | None
    """Peak memory of the fullest GPU; null when it was not measured."""
    gpu_utilization_permille: QuantilesOut | None
    """Mean utilisation of the GPUs in thousandths; null when it was not measured."""
    sentence: str


class WhyOut(Body):
    """Why a job stands where it stands: one dominant reason, and what would change it."""

    job_id: UUID
    status: str
    condition: str
    reason: str
    sentence: str
    fix: str
    counts: list[FilterCountOut]
    change: ChangeOut | None = None
    prediction: PredictionOut | None = None
    """What is expected of a waiting job; told with the smallest change."""
    explanation: list[str]


class LogsOut(Body):
    """A run of bytes of one stream of one replica."""

    job_id: UUID
    attempt: int
    rank: int
    stream: str
    offset: int
    next_offset: int
    """Ask from here for what comes after."""
    text: str
    is_over: bool
    """Whether the attempt has ended and nothing comes after this."""


class PriceOptionOut(Body):
    """What a job would cost another way."""

    sentence: str
    cluster: str
    gpu_type: str | None
    priority: str
    cost: MoneyOut | None
    saving: MoneyOut | None
    earliest_start: InstantOut | None


class WorkerCostOut(Body):
    """What a job would cost on one of the clusters that its queue may dispatch it to."""

    cluster: str
    hourly_cost: MoneyOut | None
    estimated_cost: MoneyOut | None
    max_cost: MoneyOut | None
    currency: str


class EstimateOut(Body):
    """Where, when and for how much a job would run if it were submitted now."""

    cluster: str | None
    simulated: bool
    fits_now: bool
    earliest_start: InstantOut | None
    expected_end: InstantOut | None
    nodes: list[str]
    hourly_cost: MoneyOut | None
    estimated_cost: MoneyOut | None
    max_cost: MoneyOut | None
    currency: str
    reason: str
    sentence: str
    explanation: list[str]
    prediction: PredictionOut | None
    cheaper: list[PriceOptionOut]
    by_worker: list[WorkerCostOut]
    """Where its queue dispatches to other clusters, the cost on each that may run it, best first;
    the costs above are then null unless they are the same on all."""


class ExecOut(Body):
    """What a command run beside a replica gave back."""

    exit_code: int
    stdout: str
    stderr: str


class ManifestOut(Body):
    """What would be needed to run the job again: names of variables, never their values."""

    job_id: UUID
    manifest: dict[str, Any]


class CheckpointOut(Body):
    """One checkpoint a job reported."""

    id: UUID
    at: InstantOut
    path: str
    progress: float | None


class CheckpointsOut(Body):
    """The checkpoints a job keeps, newest first."""

    items: list[CheckpointOut]


class AttemptsOut(Body):
    """The attempts of a job, first to last."""

    items: list[AttemptRowOut]


class ArtifactOut(Body):
    """One artifact of a job that is over."""

    path: str
    size_bytes: int


class ArtifactsOut(Body):
    """The artifacts of a job's latest attempt."""

    items: list[ArtifactOut]


class DifferenceOut(Body):
    """One field in which compared jobs differ, with its value in each."""

    field: str
    values: list[Any]


class CompareOut(Body):
    """Jobs side by side: what differs, and the jobs."""

    jobs: list[JobOut]
    differences: list[DifferenceOut]


class WorkspaceOut(Body):
    """An uploaded working directory."""

    digest: str
    size_bytes: Annotated[int, Field(ge=0)]
    is_new: bool


class JobEventOut(Body):
    """Something that happened to a job."""

    id: UUID
    at: InstantOut
    kind: str
    actor: str
    reason: str
    message: str
    data: dict[str, Any]
    audit: bool


class TimelineRowOut(Body):
    """One bar of a timeline; whose it is is told only to those who may read the job."""

    job_id: UUID | None
    name: str
    tenant: str | None
    project: str | None
    priority: str | None
    job_type: str | None
    status: str
    attempt: int | None
    is_estimate: bool
    """True for bars that have not begun: start and end are forecasts. Where the cluster's own Kueue
    decides, nobody knows them: start is the present then, and end is absent."""
    admitted_at: InstantOut | None
    start: InstantOut
    end: InstantOut | None
    """Absent while no end is known."""
    is_end_estimated: bool
    nodes: list[str]
    gpu_count: int
    gpu_type: str | None
    reason: str


class TimelineOut(Body):
    """What a cluster did, does and is expected to do."""

    cluster_id: UUID
    cluster: str
    simulated: bool
    since: InstantOut
    until: InstantOut
    now: InstantOut
    is_whole: bool
    """False when the window holds more than is shown."""
    rows: list[TimelineRowOut]


class FreedOut(Body):
    """From when on so many GPUs of a model are expected to be free."""

    at: InstantOut
    free: int


class ModelResourcesOut(Body):
    """GPUs of one model."""

    gpu_type: str
    total: int
    free: int
    busy: int
    reserved: int
    down: int
    without_end: int
    """GPUs held by jobs of which no end is known."""
    forecast: list[FreedOut]


class ClusterResourcesOut(Body):
    """What a cluster has, what is free of it now, and when more is expected to be."""

    cluster_id: UUID
    cluster: str
    simulated: bool
    at: InstantOut
    nodes: int
    ready_nodes: int
    cpu_cores_free: float
    cpu_cores_total: float
    memory_gb_free: float
    memory_gb_total: float
    gpus: list[ModelResourcesOut]
