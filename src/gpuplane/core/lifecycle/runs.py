"""The life of a run and of its steps: statuses, conditions and every allowed edge.

A step's six statuses are those of spec 5.2.1, and `cancelled`, without which a step that somebody
stopped would have to be called failed or skipped. Owns the tables; never applies an edge.
"""

from enum import StrEnum


class RunStatus(StrEnum):
    """Where a run is."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunCondition(StrEnum):
    """What goes on inside a status of a run; each has its own exit."""

    NONE = ""
    LIMITED = "Limited"
    STOPPING = "Stopping"
    ROLLING_BACK = "RollingBack"
    PAUSED = "Paused"


class StepStatus(StrEnum):
    """Where a step is (spec 5.2.1)."""

    WAITING = "waiting"
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class StepCondition(StrEnum):
    """What a step that is neither waiting for others nor over is doing."""

    NONE = ""
    SLEEPING = "Sleeping"
    AWAITING = "AwaitingEvent"
    EXPANDED = "AwaitingChildren"
    BACKING_OFF = "BackingOff"
    LIMITED = "Limited"
    PARKED = "NoHandler"


RUN_OVER = frozenset(
    {RunStatus.COMPLETED, RunStatus.PARTIAL, RunStatus.FAILED, RunStatus.CANCELLED}
)
STEP_OVER = frozenset(
    {StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELLED}
)
SATISFIED = frozenset({StepStatus.COMPLETED, StepStatus.SKIPPED})
"""What depends on a step in one of these may go on; a skipped one yields null."""

RUN_EDGES = frozenset(
    {
        (RunStatus.PENDING, RunStatus.RUNNING),
        (RunStatus.PENDING, RunStatus.CANCELLED),
        (RunStatus.PENDING, RunStatus.FAILED),
        (RunStatus.RUNNING, RunStatus.COMPLETED),
        (RunStatus.RUNNING, RunStatus.PARTIAL),
        (RunStatus.RUNNING, RunStatus.FAILED),
        (RunStatus.RUNNING, RunStatus.CANCELLED),
        # Retry of a step and rerun from failure open a run again.
        (RunStatus.PARTIAL, RunStatus.RUNNING),
        (RunStatus.FAILED, RunStatus.RUNNING),
        (RunStatus.CANCELLED, RunStatus.RUNNING),
    }
)
STEP_EDGES = frozenset(
    {
        (StepStatus.WAITING, StepStatus.PENDING),
        (StepStatus.WAITING, StepStatus.SKIPPED),
        (StepStatus.WAITING, StepStatus.CANCELLED),
        (StepStatus.PENDING, StepStatus.RUNNING),
        (StepStatus.PENDING, StepStatus.SKIPPED),
        (StepStatus.PENDING, StepStatus.FAILED),
        (StepStatus.PENDING, StepStatus.CANCELLED),
        # Sleep, wait, expansion, back-off and a lease that ran out lead back to pending.
        (StepStatus.RUNNING, StepStatus.PENDING),
        (StepStatus.RUNNING, StepStatus.COMPLETED),
        (StepStatus.RUNNING, StepStatus.FAILED),
        (StepStatus.RUNNING, StepStatus.SKIPPED),
        (StepStatus.RUNNING, StepStatus.CANCELLED),
        # Retry by hand and rerun from failure.
        (StepStatus.FAILED, StepStatus.WAITING),
        (StepStatus.FAILED, StepStatus.PENDING),
        (StepStatus.CANCELLED, StepStatus.WAITING),
        (StepStatus.CANCELLED, StepStatus.PENDING),
        (StepStatus.SKIPPED, StepStatus.WAITING),
    }
)
