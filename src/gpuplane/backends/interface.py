"""The contract every backend keeps; what only some can do is in `backends.capabilities`.

Owns the values that cross the border between control plane and backend. Instants are integer
milliseconds since the epoch. Every verb is idempotent: it may be repeated after a crash.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from gpuplane.core.ids import AttemptId, GpuId, JobId, ProjectId, ReplicaId, TenantId
from gpuplane.core.mig.profiles import MigTable
from gpuplane.core.nodedetails import NodeDetails
from gpuplane.core.workloads import Execution, JobSpec, JobType, ResourceRequest


class Phase(StrEnum):
    """What a backend says about one replica."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"
    LOST = "lost"
    """Provably over without an exit record (its supervisor or node died)."""
    UNREACHABLE = "unreachable"
    """Nothing can be said; it may still run, so it keeps its allocation and its meter."""


class Stream(StrEnum):
    """Standard output and standard error, kept apart."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """Names one attempt with its fencing epoch; a verb with an older epoch is refused."""

    attempt_id: AttemptId
    epoch: int


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """One replica of an attempt and the devices it was given."""

    replica_id: ReplicaId
    rank: int
    node_name: str
    gpu_ids: tuple[GpuId, ...] = ()
    gpu_milli: int = 1000
    mig_device: str | None = None


NOT_ADMITTING = "NotAdmitting"
"""The word of Unavailable for an attempt that the Kueue of its cluster would let start unasked: it
says nothing of other attempts."""
NOT_DISPATCHING = "NotDispatching"
"""The word of Unavailable for an attempt that is to be dispatched, and whose queue does not do that
or not yet: it says nothing of other attempts."""


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """All a backend needs to run one attempt; never a secret value (see `secrets` argument)."""

    ref: AttemptRef
    job_id: JobId
    job_name: str
    tenant_id: TenantId
    tenant_name: str
    project_name: str
    attempt_number: int
    job_type: JobType
    execution: Execution
    resources: ResourceRequest
    replicas: tuple[ReplicaPlan, ...]
    max_duration_s: int | None = None
    checkpoint_path: str = ""
    resume_from: str = ""
    env: dict[str, str] = field(default_factory=dict)
    """Environment set by the control plane (ids, trace context, API address), no secrets."""
    workspace_archive: str | None = None
    """Path of the snapshotted working directory (tar.gz), unpacked for each replica."""
    project_id: ProjectId | None = None
    spec: JobSpec | None = None
    """The job as asked, for what a cluster must know and this machine need not: tolerations, how
    far a service scales, and what the job can be rebuilt from."""
    local_queue: str = ""
    """The LocalQueue of a cluster that admits by itself; replicas have no node then, and the
    cluster decides when it starts. Empty where the scheduler here has chosen the nodes."""
    priority_class: str = ""
    """The WorkloadPriorityClass, with a `local_queue`."""
    node_affinity: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(label, values) that a node must have one of, with a `local_queue`: the GPU models asked."""
    level: tuple[str, str] | None = None
    """(`required` or `preferred`, node label) of the part of the network in which the replicas
    are to lie together, with a `local_queue`; (`unconstrained`, `true`) to be laid out anyhow."""
    dispatches: bool = False
    """Whether the cluster sends what comes through its `local_queue` to another, where it runs."""
    scales: tuple[int, int] | None = None
    """The fewest and the most replicas that a service may have; None where they are fixed."""
    leaving: tuple[int, ...] = ()
    """Ranks that are to end because fewer are wanted, and whose end is not known here yet."""
    scale_number: int = 0
    """Grows with each change of its replicas; an older plan changes nothing."""
    next_rank: int = 0
    """Where its cluster admits each pod by itself: ranks below this that are no replicas of the
    plan are done with, and how they ended need not be told any more."""


@dataclass(frozen=True, slots=True)
class ReplicaObservation:
    """What is seen of one replica now."""

    ref: AttemptRef
    rank: int
    phase: Phase
    started_at: int | None = None
    ended_at: int | None = None
    exit_code: int | None = None
    """As shells and Kubernetes report it: 128 + the signal for a process that one killed, 127 for
    a command that could not be started, None for a replica that never started or was lost."""
    signal: int | None = None
    reason: str = ""
    """A `core.reasons.Word` value when the phase is EXITED or LOST."""
    message: str = ""
    ready: bool | None = None
    """For a SERVICE: the health check's verdict; None where there is none."""
    port: int | None = None
    url: str | None = None
    restart_count: int = 0
    progress_ratio: float | None = None
    checkpoint: str | None = None
    checkpoint_at: int | None = None
    outputs: dict[str, object] | None = None
    cpu_ms: int | None = None
    memory_peak_mib: int | None = None
    gpu_memory_peak_mib: int | None = None
    """Peak memory of its fullest GPU since it started; None where it has none to itself or where
    nothing measures it."""
    gpu_utilization_permille: int | None = None
    """Mean utilisation of its GPUs since it started, in thousandths."""
    node_name: str = ""
    """The node it is bound to, where the cluster chose it; empty while it has none."""
    gpu_ids: tuple[GpuId, ...] = ()
    """The GPUs that a device layer says it has; empty where nothing tells."""
    forbids: bool = False
    """Whether the attempt was evicted before it was started: its ranks are not known then, and
    what is said of this one holds of all."""
    for_attempt: AttemptId | None = None
    """Of one that its cluster preempted by itself: whom it made room for, where that is ours."""
    by_pod: bool = False
    """Whether its cluster admits each pod of the attempt by itself: ranks are given as pods are
    bound, and another takes the place of one that ended, under a rank of its own."""


@dataclass(frozen=True, slots=True)
class GpuObservation:
    """One GPU as the backend sees it."""

    gpu_id: GpuId
    index: int
    model: str
    memory_mib: int
    healthy: bool = True
    message: str = ""
    numa: int | None = None
    mig_enabled: bool = False
    mig_instances: tuple[tuple[str, int], ...] = ()
    """(profile, first memory slice) of each MIG instance that exists."""
    mig_table: MigTable | None = None
    """How it can be cut as the device tells it; None where the product's own table serves."""
    utilization_ratio: float | None = None
    memory_used_mib: int | None = None


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """One node as the backend sees it."""

    name: str
    ready: bool
    cpu_milli: int
    memory_mib: int
    ephemeral_mib: int
    gpus: tuple[GpuObservation, ...] = ()
    topology: str | None = None
    """A `nvidia-smi topo -m` text or the name of a named topology."""
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()
    """(key, value, effect)."""
    rack: str = ""
    block: str = ""
    rdma_fabric: str = ""
    message: str = ""
    details: NodeDetails = field(default_factory=NodeDetails)


AUTOSCALER = "autoscaler"
"""Who moved a number of replicas: a HorizontalPodAutoscaler or KEDA."""
OURSELVES = "gpuplane"
"""The same, where the control plane did."""


@dataclass(frozen=True, slots=True)
class ScaleObservation:
    """How many replicas the scaler of a cluster wants of an attempt, at most what it may have.

    Args:
        by: Who moved the number last: AUTOSCALER, OURSELVES, or whoever the cluster names, such as
            `kubectl`; empty where nothing tells.
        is_gone: Whether somebody else deleted what its replicas are made by, while it had none that
            could be told as lost; it can never have one again.
    """

    ref: AttemptRef
    wanted: int
    is_gone: bool = False
    by: str = AUTOSCALER


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a backend; `generation` grows when its inventory changes."""

    generation: int
    observed_at: int
    nodes: tuple[NodeObservation, ...]
    replicas: tuple[ReplicaObservation, ...]
    scales: tuple[ScaleObservation, ...] = ()
    """Of attempts whose number of replicas the cluster itself decides."""


@dataclass(frozen=True, slots=True)
class ReplicaChanges:
    """The replicas whose observation changed since a cursor, for loops that must stay cheap.

    Args:
        cursor: Pass it to the next call; opaque, and valid for the life of the backend object.
        generation: The inventory's generation; when it differs from the last
            `Observation.generation`, call `observe` for the nodes.
        observed_at: When this was looked at, milliseconds since the epoch.
        replicas: One observation for each changed replica, in the order of the changes. Progress
            alone is a change only now and then: `observe` carries it at any time.
        scales: One for each attempt of which the cluster's scaler wants another number.
    """

    cursor: str
    generation: int
    observed_at: int
    replicas: tuple[ReplicaObservation, ...]
    scales: tuple[ScaleObservation, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a backend can be used, and what it promises."""

    reachable: bool
    kind: str
    version: str
    simulated: bool = False
    notes: tuple[str, ...] = ()
    """Plain sentences for people, e.g. that CPU limits are not enforced here."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A run of bytes of one stream of one replica.

    Args:
        offset: Position of the first byte in the stream since its start; rotation never
            renumbers, so an offset stays valid or is refused as gone.
        at: When the last byte was written, if the backend knows.
    """

    rank: int
    stream: Stream
    offset: int
    data: bytes
    at: int | None = None


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command run beside a replica gave back."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class MigOrder:
    """How to cut one GPU: (profile, first memory slice) of instances to destroy and to create."""

    node_name: str
    gpu_id: GpuId
    destroy: tuple[tuple[str, int], ...]
    create: tuple[tuple[str, int], ...]


STARTING = "Starting"
"""The word of an `Unavailable` of an attempt that is being started and not there yet."""


class BackendError(Exception):
    """A backend could not do what was asked; `word` is a `core.reasons.Word` value."""

    def __init__(self, word: str, message: str) -> None:
        super().__init__(message)
        self.word = word
        self.message = message


class Unfit(BackendError):
    """What a job asks can never start as it is: its field, the reason, and what would help."""

    def __init__(self, word: str, field: str, reason: str, fix: str) -> None:
        super().__init__(word, f"{field}: {reason}. {fix}")
        self.field = field
        self.reason = reason
        self.fix = fix


class Unavailable(BackendError):
    """The backend cannot be reached or is overloaded: nothing was learnt, ask again later."""


class StaleEpoch(BackendError):
    """A verb named an epoch older than the attempt's; nothing was done."""


class Tombstoned(BackendError):
    """The attempt was evicted before it started; it may never start."""


class ScalerDecides(BackendError):
    """An autoscaler of the cluster says how many replicas there are; nothing was changed."""


class OffsetGone(BackendError):
    """Output at this offset has been rotated away; what is kept begins at `oldest_offset`."""

    def __init__(self, stream: Stream, offset: int, oldest_offset: int) -> None:
        super().__init__(
            "OffsetGone",
            f"{stream.value} is kept from byte {oldest_offset} on; byte {offset} is gone",
        )
        self.stream = stream
        self.offset = offset
        self.oldest_offset = oldest_offset


@runtime_checkable
class Backend(Protocol):
    """What every backend can do."""

    kind: str

    async def probe(self) -> Probe:
        """Return whether the backend can be reached and what it promises."""
        ...

    async def observe(self) -> Observation:
        """Return nodes, GPUs and every replica not yet forgotten."""
        ...

    async def ensure_workload(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        """Start the attempt unless it was started already or was evicted.

        Args:
            plan: What to run and where.
            secrets: Environment names to secret values; never written anywhere that lasts.

        Raises:
            Tombstoned: If the attempt was evicted first.
            StaleEpoch: If a newer epoch of this attempt is known.
            BackendError: If it cannot be started; nothing half-started stays behind.
        """
        ...

    async def evict(self, ref: AttemptRef, grace_s: float, reason: str) -> None:
        """Ask an attempt to stop: SIGTERM, then SIGKILL after grace_s. A late start is forbidden.

        Returns at once; the end is seen by `observe`.
        """
        ...

    async def forget(self, ref: AttemptRef) -> None:
        """Drop what is kept of an attempt that is over; logs too."""
        ...

    async def wait_changed(self, timeout_s: float) -> None:
        """Return when something observable changed since the last return, or after timeout_s."""
        ...
