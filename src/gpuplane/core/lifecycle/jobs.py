"""The life of a job: statuses, conditions and every allowed edge, each with its sentence.

Status has exactly the eight values of the specification; a condition says what goes on inside
one. Retry and preemption make attempts, never jobs. Owns the table; never applies an edge.
"""

from dataclasses import dataclass
from enum import StrEnum


class JobStatus(StrEnum):
    """The eight statuses of spec 5.1.1; text and metrics call `scheduled` admitted."""

    PENDING = "pending"
    QUEUED = "queued"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"


class Condition(StrEnum):
    """What goes on inside a status; each has its own owner, deadline and exit."""

    NONE = ""
    STARTING = "Starting"
    STOPPING = "Stopping"
    PAUSED = "Paused"
    BACKING_OFF = "BackingOff"
    UNREACHABLE = "Unreachable"


class StopIntent(StrEnum):
    """What a stopping attempt's job becomes once the attempt is seen to be over."""

    CANCEL = "cancel"
    FAIL = "fail"
    PREEMPT = "preempt"
    REQUEUE = "requeue"
    PAUSE = "pause"


TERMINAL = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})
"""A job in one of these leaves it only by a manual retry."""
WAITING = frozenset({JobStatus.PENDING, JobStatus.QUEUED, JobStatus.PREEMPTED})
HOLDING = frozenset({JobStatus.SCHEDULED, JobStatus.RUNNING})
"""A job in one of these holds allocations."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One allowed transition: when it happens, said to a person."""

    source: JobStatus
    target: JobStatus
    sentence: str


@dataclass(frozen=True, slots=True)
class Stay:
    """Who owns a status or condition, how long it may last, and how it is left."""

    owner: str
    deadline: str
    exit: str


_S = JobStatus
EDGES: tuple[Edge, ...] = (
    Edge(_S.PENDING, _S.QUEUED, "Every gate before the queue is open, so the job stands in line."),
    Edge(_S.PENDING, _S.CANCELLED, "Somebody cancelled the job before it stood in line."),
    Edge(_S.PENDING, _S.FAILED, "A gate can never open: a job it waits for failed, or its breaker "
         "is open with no retry left."),
    Edge(_S.QUEUED, _S.SCHEDULED, "The scheduler admitted the job and gave it devices."),
    Edge(_S.QUEUED, _S.PENDING, "A gate closed again: the job was suspended or its window ended."),
    Edge(_S.QUEUED, _S.CANCELLED, "Somebody, or its deadline, cancelled the waiting job."),
    Edge(_S.QUEUED, _S.FAILED, "The job can no longer run as asked."),
    Edge(_S.SCHEDULED, _S.RUNNING, "Every replica that must run was seen running."),
    Edge(_S.SCHEDULED, _S.COMPLETED, "The attempt ran and ended well between two looks."),
    Edge(_S.SCHEDULED, _S.FAILED, "The attempt ended badly and no retry is left."),
    Edge(_S.SCHEDULED, _S.PENDING, "The attempt ended badly and will be tried again after a delay, "
         "or was paused."),
    Edge(_S.SCHEDULED, _S.QUEUED, "The attempt was moved away before it ran, and stands in line."),
    Edge(_S.SCHEDULED, _S.CANCELLED, "The job was cancelled and its attempt is over."),
    Edge(_S.SCHEDULED, _S.PREEMPTED, "A higher job took the devices before this one ran."),
    Edge(_S.RUNNING, _S.COMPLETED, "Every replica ended with exit code 0."),
    Edge(_S.RUNNING, _S.FAILED, "The attempt ended badly and no retry is left."),
    Edge(_S.RUNNING, _S.PENDING, "The attempt ended and the job waits for a delay or is paused."),
    Edge(_S.RUNNING, _S.QUEUED, "The attempt was moved off its node and stands in line again."),
    Edge(_S.RUNNING, _S.CANCELLED, "The job was cancelled and its attempt is over."),
    Edge(_S.RUNNING, _S.PREEMPTED, "A higher job took the devices; this one stopped."),
    Edge(_S.PREEMPTED, _S.QUEUED, "The preempted job may run again and stands in line."),
    Edge(_S.PREEMPTED, _S.CANCELLED, "Somebody cancelled the preempted job."),
    Edge(_S.PREEMPTED, _S.FAILED, "The job was not to be tried again after preemption."),
    Edge(_S.FAILED, _S.PENDING, "Somebody asked for another try of a failed job."),
    Edge(_S.CANCELLED, _S.PENDING, "Somebody asked for another try of a cancelled job."),
)  # fmt: skip

STATUS_STAYS: dict[JobStatus, Stay] = {
    _S.PENDING: Stay("gates", "the gate's own instant", "queued when every gate is open"),
    _S.QUEUED: Stay("scheduler", "the job's deadline", "scheduled when it fits, or cancelled"),
    _S.SCHEDULED: Stay("dispatcher", "start time-out", "running when seen, else the attempt ends"),
    _S.RUNNING: Stay("observer", "maximum duration", "the attempt's end"),
    _S.PREEMPTED: Stay("gates", "one turn", "queued again, or failed without retry"),
    _S.COMPLETED: Stay("retention", "kept by the retention setting", "pruned"),
    _S.FAILED: Stay("retention", "kept by the retention setting", "pruned, or retried by hand"),
    _S.CANCELLED: Stay("retention", "kept by the retention setting", "pruned, or retried by hand"),
}

CONDITION_STAYS: dict[Condition, Stay] = {
    Condition.STARTING: Stay("dispatcher", "start time-out", "seen running, or the attempt fails"),
    Condition.STOPPING: Stay("dispatcher", "grace period and a margin", "the attempt is over; after"
                             " the deadline it is killed again"),
    Condition.PAUSED: Stay("a person", "the job's deadline", "resume or cancel"),
    Condition.BACKING_OFF: Stay("gates", "the delay's end", "queued when the delay is over"),
    Condition.UNREACHABLE: Stay("observer", "unreachable time-out", "seen again, or fenced"),
}  # fmt: skip

_ALLOWED: dict[tuple[JobStatus, JobStatus], Edge] = {(e.source, e.target): e for e in EDGES}


def find_edge(source: JobStatus, target: JobStatus) -> Edge | None:
    """Return the edge between two statuses, or None if there is none."""
    return _ALLOWED.get((source, target))


def allowed_targets(source: JobStatus) -> tuple[JobStatus, ...]:
    """Return every status that may follow, in the table's order."""
    return tuple(edge.target for edge in EDGES if edge.source is source)
