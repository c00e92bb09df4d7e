"""Values of runs as they are listed, and what a worker is given with a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gpuplane.core.lifecycle.runs import RunCondition, RunStatus, StepCondition, StepStatus
from gpuplane.core.runs.boards import Run, Step
from gpuplane.core.runs.plans import Limit

RUN_KEY = "run:"
"""Begins the key of an event that users send to a run: `run:<run id>:<name>`."""


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as people see it."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    kind: str
    name: str
    source_id: UUID | None
    source_version: int | None
    trigger: str
    dedup_id: str | None
    created_by: str
    status: RunStatus
    condition: RunCondition
    on_failure: str
    params: Mapping[str, Any]
    context: Mapping[str, Any]
    limits: tuple[Limit, ...]
    traceparent: str | None
    forked_from: UUID | None
    max_parallel: int | None
    timeout_ms: int | None
    deadline_at: int | None
    created_at: int
    started_at: int | None
    ended_at: int | None
    step_count: int
    left: int
    failed: int
    completed: int
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class StepView:
    """One step as people see it; `output` is JSON text or None."""

    id: UUID
    run_id: UUID
    seq: int
    parent: int
    undo_of: int
    key: str
    name: str
    handler: str
    needs: tuple[int, ...]
    status: StepStatus
    condition: StepCondition
    attempt: int
    attempts: int
    generation: int
    due_at: int | None
    wait_key: str | None
    wait_until: int | None
    limited_by: str
    error: str
    message: str
    cache_note: str
    started_at: int | None
    ended_at: int | None
    input: Any
    output: Any


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What a list of runs is narrowed by."""

    statuses: tuple[str, ...] = ()
    kind: str | None = None
    source_id: UUID | None = None
    project_id: UUID | None = None
    trigger: str | None = None
    created_since: int | None = None
    created_until: int | None = None


@dataclass(frozen=True, slots=True)
class StepFilter:
    """What a list of steps is narrowed by."""

    statuses: tuple[str, ...] = ()
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class RunHead:
    """What every call of a run's handlers is told."""

    params: Mapping[str, Any]
    context: Mapping[str, Any]
    traceparent: str | None
    is_readable: bool = True
    """False where the row is damaged: no handler is called with half of what it was told."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A step that a worker has to run now, as it was claimed.

    Args:
        expires_at: The earliest of the run's and the attempt's end.
        late: Whether the attempt's time was over already: its handler is not called again.
        timed_out: Whether the time for the awaited event is over.
        stopping: Whether the handler is to end what it began, instead of going on.
        undo_of: What it compensates; 0 for others.
    """

    run: Run
    step: Step
    epoch: int
    attempt: int
    event: str | None
    state: str | None
    joined: bool
    timed_out: bool
    late: bool
    stopping: bool
    expires_at: int | None


def run_key(run_id: UUID, name: str) -> str:
    """Return the key of a user's event to a run."""
    return f"{RUN_KEY}{run_id}:{name}"


def run_of_key(key: str) -> UUID | None:
    """Return the run that an event's key names, or None."""
    if not key.startswith(RUN_KEY):
        return None
    text = key.removeprefix(RUN_KEY).partition(":")[0]
    try:
        return UUID(text)
    except ValueError:
        return None
