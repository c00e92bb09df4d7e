"""Why-words: one word a program can read and one sentence a person can.

The same word is used by the decision, the event, the metric, the API and the console.
"""

from dataclasses import dataclass
from enum import StrEnum

TAKEN_BY_OTHERS = "Taken by pods that are no jobs of gpuplane:"
"""How the message of a GPU begins that works and is not to be had."""


class Word(StrEnum):
    """Every reason a workload can wait for, be refused for or be stopped for."""

    # Gates before the queue.
    SCHEDULED_START = "ScheduledStart"
    DEPENDENCY = "WaitingForDependency"
    DEPENDENCY_FAILED = "DependencyFailed"
    ARRAY_LIMIT = "ArrayConcurrencyLimit"
    BACKING_OFF = "BackingOff"
    BREAKER_OPEN = "BreakerOpen"
    PAUSED = "Paused"
    FROZEN = "SchedulingFrozen"
    NO_CLUSTER = "NoClusterAllowed"
    CLUSTER_NOT_AVAILABLE = "ClusterNotAvailable"
    DEDICATED_CLUSTER = "DedicatedClusterRequired"
    # Quota.
    QUOTA_EXCEEDED = "QuotaExceeded"
    BORROWING_LIMIT = "BorrowingLimitReached"
    LOCAL_QUEUE_LIMIT = "LocalQueueLimitReached"
    REQUEST_EXCEEDS_QUOTA = "RequestExceedsQuota"
    NO_QUOTA_FOR_MODEL = "NoQuotaForGpuModel"
    NO_QUEUE = "NoQueue"
    OFFERED = "WaitingForAdmission"
    NOT_HANDED_OVER = "NotHandedOver"
    WORKER_LOST = "WorkerLost"
    WORKER_NOT_CONNECTED = "WorkerNotConnected"
    UNSCHEDULABLE = "Unschedulable"
    BEHIND_HEAD = "BehindBlockedHead"
    # Filters over nodes, in the order they are applied.
    NOT_READY = "NodeNotReady"
    CORDONED = "NodeCordoned"
    MAINTENANCE = "MaintenanceWindow"
    UNTOLERATED_TAINT = "UntoleratedTaint"
    SELECTOR = "SelectorMismatch"
    GPU_MODEL = "GpuModelMismatch"
    GPU_MEMORY = "GpuMemoryTooSmall"
    GPU_ARCHITECTURE = "GpuArchitectureMismatch"
    MIG_UNAVAILABLE = "MigProfileUnavailable"
    MIG_REPARTITION = "MigRepartitionNeeded"
    RDMA = "RdmaFabricMissing"
    NODE_TOO_SMALL = "NodeTooSmall"
    CPU = "InsufficientCpu"
    MEMORY = "InsufficientMemory"
    EPHEMERAL_STORAGE = "InsufficientEphemeralStorage"
    GPU_COUNT = "InsufficientGpu"
    TOPOLOGY = "TopologyUnsatisfied"
    AFFINITY = "AffinityUnsatisfied"
    RESERVED = "ReservedForOthers"
    NETWORK = "NetworkLevelUnsatisfied"
    GANG = "GangIncomplete"
    TIME_WINDOW = "OutsideTimeWindow"
    WINDOW_TOO_SHORT = "WindowTooShort"
    DEADLINE = "DeadlineUnreachable"
    # Why a running workload was stopped or failed.
    CANCELLED = "Cancelled"
    PREEMPTED = "Preempted"
    PREEMPTED_BY_HAND = "PreemptedByHand"
    DRAINED = "NodeDrained"
    SUSPENDED = "Suspended"
    TIMED_OUT = "MaxDurationExceeded"
    DEADLINE_MISSED = "DeadlineMissed"
    BUDGET_EXCEEDED = "BudgetExceeded"
    WINDOW_CLOSED = "WindowClosed"
    NON_ZERO_EXIT = "NonZeroExit"
    SIGNALLED = "KilledBySignal"
    OUT_OF_MEMORY = "OOMKilled"
    START_FAILED = "StartFailed"
    START_REFUSED = "StartRefused"
    START_TIMEOUT = "StartTimeout"
    UNHEALTHY = "HealthCheckFailed"
    NODE_LOST = "NodeLost"
    EVICTED = "Evicted"
    SUPERVISOR_LOST = "SupervisorLost"
    DELETED = "DeletedOnCluster"
    END_NOT_SEEN = "EndNotSeen"
    GPU_FAILED = "GpuFailed"
    UNREADABLE = "SpecificationUnreadable"
    COMPLETED = "Completed"
    SCALED_DOWN = "ScaledDown"


@dataclass(frozen=True, slots=True)
class Reason:
    """A refusal or cause as a value: the word, the sentence, and what would change it."""

    word: Word
    sentence: str
    fix: str = ""
