"""What was asked: the job specification as frozen values, in exact units.

Owns the enumerations and the shape of a request between the edge and the table row; never
validates user input (the edge does, with the field's name) and never knows a state.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.topology.matrix import LinkPreference


class JobType(StrEnum):
    """What kind of work a job is (spec 5.1.1)."""

    SERVICE = "service"
    BATCH = "batch"
    TRAINING = "training"


class DeploymentType(StrEnum):
    """How a job is deployed; PROCESS is the local backend's."""

    HELM = "helm"
    DOCKER = "docker"
    MODEL = "model"
    PROCESS = "process"


class SourceType(StrEnum):
    """What created a job; its rights follow its source."""

    DIRECT = "direct"
    PIPELINE = "pipeline"
    USECASE = "usecase"


class Priority(StrEnum):
    """The five priority classes, highest first."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    SPOT = "spot"

    @property
    def value_int(self) -> int:
        """Return the class's number; values of spec scenario 14, SPOT below LOW."""
        return PRIORITY_VALUES[self]


PRIORITY_VALUES = {
    Priority.CRITICAL: 1000,
    Priority.HIGH: 100,
    Priority.NORMAL: 10,
    Priority.LOW: 1,
    Priority.SPOT: 0,
}


class BudgetAction(StrEnum):
    """What happens to a running job that has spent its budget limit."""

    WARN = "warn"
    PAUSE = "pause"
    CANCEL = "cancel"


class DeadlineAction(StrEnum):
    """What happens to a job that has missed its deadline."""

    WARN = "warn"
    CANCEL = "cancel"


class WindowEnd(StrEnum):
    """What happens to a running job when its time window closes."""

    FINISH = "finish"
    CHECKPOINT = "checkpoint"
    STOP = "stop"


class Spreading(StrEnum):
    """How the replicas of one job lie over nodes."""

    ANY = "any"
    SAME_NODE = "same_node"
    SPREAD = "spread"


class NetworkLevel(StrEnum):
    """A part of a cluster's network, smaller first."""

    RACK = "rack"
    BLOCK = "block"


class NetworkMode(StrEnum):
    """How the replicas of one job lie over parts of the network (Kueue's words for the first two).

    `balanced` asks for equally many replicas in each of as few parts as possible.
    """

    REQUIRED = "required"
    PREFERRED = "preferred"
    BALANCED = "balanced"


class DependencyCondition(StrEnum):
    """When a job named in `after` counts as satisfied."""

    COMPLETED = "completed"
    FINISHED = "finished"


class RestartPolicy(StrEnum):
    """When a supervisor starts a process again within one attempt (Kubernetes' words)."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ALWAYS = "Always"


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What one replica needs.

    Args:
        gpu_count: GPUs a replica; 0 for none.
        gpu_model: Canonical model name, several joined by `|` of which any will do, or None for
            every model.
        gpu_memory_mib: Least memory per GPU, or None.
        gpu_milli: Share of each GPU; less than 1000 only with gpu_count 1.
        mig_profile: A MIG profile such as `1g.10gb` instead of whole GPUs, or None.
        rdma_fabric: `any`, or the name of the fabric the node must be on, or None.
    """

    gpu_count: int = 0
    gpu_model: str | None = None
    gpu_memory_mib: int | None = None
    gpu_architecture: str | None = None
    gpu_milli: int = WHOLE_GPU_MILLI
    mig_profile: str | None = None
    cpu_milli: int = 1000
    memory_mib: int = 4096
    storage_mib: int = 0
    ephemeral_mib: int = 102_400
    rdma_fabric: str | None = None


@dataclass(frozen=True, slots=True)
class Toleration:
    """A Kubernetes toleration; empty key with operator Exists tolerates everything."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """In which part of the network the replicas should lie together."""

    level: NetworkLevel = NetworkLevel.RACK
    mode: NetworkMode = NetworkMode.PREFERRED


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Where a job may and would rather run.

    Args:
        data: Names of data sets it reads; nodes that have them at hand are preferred.
        network: In which part of the network its replicas should lie; None leaves it to whether
            they are a gang.
    """

    links: LinkPreference = LinkPreference.NONE
    links_required: bool = False
    spreading: Spreading = Spreading.ANY
    co_locate_with: tuple[UUID, ...] = ()
    separate_from: tuple[UUID, ...] = ()
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    data: tuple[str, ...] = ()
    network: NetworkRequest | None = None


@dataclass(frozen=True, slots=True)
class ScaleTrigger:
    """What a cluster's KEDA scales a service by: the type of a trigger, and its metadata."""

    type: str
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaRequest:
    """How many copies: `count` asked, `minimum` that may start, all or nothing when `gang`.

    Args:
        maximum: The most that a service may grow to.
        scale_to_zero: Whether a service may run without any.
        lowest: The fewest that a service may shrink to; None for `minimum`.
        triggers: What scales it where the cluster has KEDA; none for CPU use.
    """

    count: int = 1
    minimum: int = 1
    maximum: int = 1
    gang: bool = True
    scale_to_zero: bool = False
    lowest: int | None = None
    triggers: tuple[ScaleTrigger, ...] = ()

    @property
    def fewest(self) -> int:
        """Return how few replicas a service may be scaled to."""
        if self.scale_to_zero:
            return 0
        return max(1, self.minimum if self.lowest is None else self.lowest)

    @property
    def most(self) -> int:
        """Return how many replicas a service may be scaled to."""
        return max(self.maximum, self.count)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A daily window in a named zone; start > end crosses midnight.

    Args:
        start_minute: Minutes after local midnight, 0..1439.
        end_minute: Minutes after local midnight, 0..1439.
        zone: IANA zone name.
        weekdays: ISO weekdays (1 = Monday) on which a window may open; empty means all.
    """

    start_minute: int
    end_minute: int
    zone: str
    weekdays: tuple[int, ...] = ()
    at_end: WindowEnd = WindowEnd.FINISH


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How failures are tried again: count, exponential back-off with jitter, on preemption."""

    max_retries: int = 3
    delay_s: int = 30
    max_delay_s: int = 3600
    jitter_ratio: float = 0.1
    on_preemption: bool = True


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """The six fields and defaults of spec scenario 8."""

    enabled: bool = True
    storage_class: str = "standard"
    storage_size_mib: int = 102_400
    interval_s: int = 3600
    max_checkpoints: int = 3
    path: str = "/checkpoints"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """How a SERVICE replica is known to be ready: an HTTP path, or a TCP connect when empty."""

    path: str = ""
    port: int = 0
    interval_s: float = 1.0
    timeout_s: float = 2.0
    failure_threshold: int = 3
    start_period_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Mount:
    """A named volume at a path inside the job; never a path of the host."""

    name: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class SecretReference:
    """A secret by name and how it reaches the process; its value is never here."""

    name: str
    env: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class ChartRequest:
    """A Helm chart and the values it is given.

    Args:
        name: A chart of the repository, of the server's own folder of charts, an `oci://` address,
            or `./folder` in the working directory.
        repo: The repository's https address; empty for none.
        version: Exactly this one; empty only for charts in folders.
    """

    name: str
    repo: str = ""
    version: str = ""
    values: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Execution:
    """What runs.

    Args:
        workspace_digest: sha256 of the snapshotted working directory, or None.
        port: The port a SERVICE listens on; 0 lets the backend choose one and pass `PORT`.
        simulated: Behaviour on a simulated cluster (duration, exit code, log lines).
    """

    image: str = ""
    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    working_dir: str = ""
    workspace_digest: str | None = None
    mounts: tuple[Mount, ...] = ()
    secrets: tuple[SecretReference, ...] = ()
    artifacts: tuple[str, ...] = ()
    port: int | None = None
    health: HealthCheck | None = None
    restart: RestartPolicy = RestartPolicy.NEVER
    grace_s: int = 30
    seed: int | None = None
    simulated: "SimulatedBehaviour | None" = None
    chart: ChartRequest | None = None


@dataclass(frozen=True, slots=True)
class SimulatedBehaviour:
    """What a job does on a simulated cluster, where no command is ever executed."""

    duration_s: float = 60.0
    exit_code: int = 0
    log: tuple[str, ...] = ()
    startup_s: float = 0.0
    checkpoint_every_s: float = 0.0
    outputs: dict[str, object] = field(default_factory=dict)
    """What it would have written to `outputs.json`, reported by rank 0 when it succeeds."""
    gpu_memory_mib: int | None = None
    """Peak memory of a GPU that is measured of it; None for not measured."""
    gpu_utilization: float | None = None
    """Mean utilisation of its GPUs that is measured of it; None for not measured."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """Another job this one comes after."""

    job_id: UUID
    condition: DependencyCondition = DependencyCondition.COMPLETED


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job as asked; immutable after submit except for its priority.

    Instants are integer milliseconds since the epoch; money is micro-units.
    """

    name: str
    job_type: JobType
    deployment_type: DeploymentType
    resources: ResourceRequest = field(default_factory=ResourceRequest)
    replicas: ReplicaRequest = field(default_factory=ReplicaRequest)
    placement: PlacementRequest = field(default_factory=PlacementRequest)
    execution: Execution = field(default_factory=Execution)
    priority: Priority = Priority.NORMAL
    preemptible: bool | None = None
    preempts_others: bool | None = None
    estimated_duration_s: int | None = None
    max_duration_s: int | None = None
    deadline: int | None = None
    deadline_action: DeadlineAction = DeadlineAction.WARN
    scheduled_start: int | None = None
    window: TimeWindow | None = None
    after: tuple[Dependency, ...] = ()
    budget_limit_micro: int | None = None
    budget_action: BudgetAction = BudgetAction.WARN
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    checkpoint: CheckpointConfig | None = None
    labels: dict[str, str] = field(default_factory=dict)
    cost_centre: str = ""
    data_classification: str = ""
    queue: str | None = None

    @property
    def is_plain_service(self) -> bool:
        """Return whether it serves by replicas that are alike, a pod each where clusters run it."""
        return self.job_type is JobType.SERVICE and self.execution.chart is None
