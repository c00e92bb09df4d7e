"""What is sent about jobs: a job to submit, and the small bodies of the verbs."""

from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, field_validator

from gpuplane.core.workloads import (
    BudgetAction,
    DeadlineAction,
    DeploymentType,
    JobType,
    Priority,
    SourceType,
)
from gpuplane.domains.jobs.schemas.parts import (
    AfterBody,
    ArrayBody,
    CheckpointBody,
    ExecutionBody,
    PlacementBody,
    ReplicasBody,
    ResourcesBody,
    RetryBody,
    WindowBody,
)
from gpuplane.domains.jobs.schemas.values import (
    MAX_AFTER,
    MAX_ITEMS,
    Cores,
    GpuCount,
    GpuType,
    MemoryGb,
    PlainText,
    PrintableText,
    Ratio,
    ReplicasFromZero,
    Retries,
    Seconds,
    StorageGb,
)
from gpuplane.kit.bodies import Body, Flag, InstantIn, Labels, MoneyIn, Name, Text, refusal


class WhenExceeded(StrEnum):
    """What to do with a job that does not fit into its quota now."""

    QUEUE = "queue"
    REFUSE = "refuse"


class JobIn(Body):
    """A job to submit: the fields of the specification by their names, and further groups."""

    name: Name
    tenant_id: UUID | None = None
    project: Annotated[str, Field(max_length=63, description="Name or id.")] | None = None
    project_id: UUID | None = None
    cluster: Annotated[str, Field(max_length=63, description="Name or id.")] | None = None
    cluster_id: UUID | None = None

    source_type: SourceType = SourceType.DIRECT
    source_id: Annotated[str, Field(max_length=200)] | None = None
    pipeline_id: UUID | None = None
    pipeline_step_id: UUID | None = None
    usecase_deployment_id: UUID | None = None

    job_type: JobType = JobType.BATCH
    deployment_type: DeploymentType = DeploymentType.PROCESS
    component_ref: Any = None
    spec: ExecutionBody = ExecutionBody()

    gpu_type: GpuType | None = None
    gpu_count: GpuCount = 0
    cpu_cores: Cores = 1.0
    memory_gb: MemoryGb = 4.0
    storage_gb: StorageGb | None = None
    resources: ResourcesBody = ResourcesBody()
    replicas: ReplicasBody = ReplicasBody()
    array: ArrayBody | None = None
    placement: PlacementBody = PlacementBody()

    estimated_duration_seconds: Seconds | None = None
    max_duration_seconds: Seconds | None = None
    deadline: InstantIn | None = None
    deadline_action: DeadlineAction = DeadlineAction.WARN
    scheduled_start: InstantIn | None = None
    window: WindowBody | None = None
    after: Annotated[list[AfterBody], Field(max_length=MAX_AFTER)] = Field(default_factory=list)

    priority: Priority = Priority.NORMAL
    preemptible: Flag | None = None
    preempts_others: Flag | None = None
    max_retries: Retries = 3
    retry: RetryBody = RetryBody()
    checkpoint: CheckpointBody | None = None

    budget_limit: MoneyIn | None = None
    budget_action: BudgetAction = BudgetAction.WARN

    labels: Labels = Field(default_factory=dict)
    cost_centre: PlainText = ""
    data_classification: Annotated[PlainText, Field(max_length=50)] = ""
    queue: Name | None = None
    when_exceeded: WhenExceeded = WhenExceeded.QUEUE
    idempotency_key: Annotated[str, Field(min_length=1, max_length=255)] | None = None

    @field_validator("component_ref")
    @classmethod
    def _refuse_components(cls, value: Any) -> Any:
        if value is not None:
            raise refusal(
                "No catalogue of components stands behind this server, so none can be referred to.",
                "Describe what runs in `spec`: a command, or an image with a command.",
            )
        return value

    @field_validator("window")
    @classmethod
    def _refuse_windows_that_never_open(cls, value: WindowBody | None) -> WindowBody | None:
        if value is not None and value.start == value.end:
            raise refusal(
                "A window that starts and ends at the same minute never opens.",
                "Give another end, or leave the window out.",
            )
        if value is not None and value.weekdays == []:
            raise refusal(
                "A window on no weekday never opens.", "Name weekdays, or leave them out for all."
            )
        return value

    @field_validator("idempotency_key")
    @classmethod
    def _check_key(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise refusal("An idempotency key is plain printable text.", "For example a UUID.")
        return value


class PriorityIn(Body):
    """The priority from now on."""

    priority: Priority


class ScaleIn(Body):
    """How many replicas a service is to have from now on."""

    replicas: ReplicasFromZero


class PreemptIn(Body):
    """Why a job is preempted by hand."""

    reason: Text = ""
    grace_s: Annotated[int, Field(strict=True, ge=0, le=3_600)] | None = None


class SuspendIn(Body):
    """Why a job is suspended."""

    reason: Text = ""


class ExecIn(Body):
    """A command to run beside a replica."""

    command: Annotated[list[PrintableText], Field(min_length=1, max_length=MAX_ITEMS)]
    rank: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 0
    stdin: Annotated[str, Field(max_length=1_000_000)] = ""
    timeout_s: Annotated[float, Field(strict=True, gt=0, le=300, allow_inf_nan=False)] = 30.0


class ProgressIn(Body):
    """How far the job says it is."""

    progress: Ratio
    message: Text = ""


class CheckpointIn(Body):
    """A checkpoint the job says it wrote."""

    path: Annotated[str, Field(min_length=1, max_length=1_024)]
    progress: Ratio | None = None

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: str) -> str:
        if not value.isprintable() or ".." in value.split("/"):
            raise refusal("A checkpoint path is plain text without '..'.", "Name the place itself.")
        return value
