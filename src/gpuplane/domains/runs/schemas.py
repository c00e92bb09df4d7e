"""API bodies of runs and their steps."""

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from gpuplane.core.lifecycle.runs import RunCondition, RunStatus, StepCondition, StepStatus
from gpuplane.kit.bodies import Body, InstantOut

StepName = Annotated[str, Field(min_length=1, max_length=300)]
"""A step's id, or its key where that holds no `/`."""


class RunOut(Body):
    """One run."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    kind: str
    """What plans such runs: `pipeline`, `cluster.register`."""
    name: str
    source_id: UUID | None
    """Of what it is a run, if of anything."""
    source_version: int | None
    trigger: str
    dedup_id: str | None
    created_by: str
    status: RunStatus
    condition: RunCondition
    """What goes on inside the status; empty for nothing in particular."""
    on_failure: str
    params: dict[str, Any]
    traceparent: str | None
    forked_from: UUID | None
    max_parallel: int | None
    timeout_ms: int | None
    deadline_at: InstantOut | None
    created_at: InstantOut
    started_at: InstantOut | None
    ended_at: InstantOut | None
    step_count: int
    left: int
    """Steps that are not over."""
    failed: int
    completed: int
    error: str
    """Why it failed or was stopped, for programs."""
    message: str


class StepOut(Body):
    """One step of a run."""

    id: UUID
    run_id: UUID
    seq: int
    """Number in the run."""
    parent: int
    """Number of the step that this one is part of; 0 for none."""
    undo_of: int
    """Number of the step that this one compensates; 0 for none."""
    key: str
    name: str
    handler: str
    needs: list[int]
    """Numbers of the steps that must be satisfied before."""
    status: StepStatus
    condition: StepCondition
    attempt: int
    attempts: int
    """Tries in all."""
    generation: int
    """How often it was run again by hand."""
    due_at: InstantOut | None
    """When it is looked at next; absent while it waits for something else than time."""
    wait_key: str | None
    """The event it awaits."""
    wait_until: InstantOut | None
    limited_by: str
    """What it waits for a place of: `run`, `parent` or `key`."""
    error: str
    message: str
    cache: str
    """Why an earlier output was taken, or why not; empty for steps without a cache."""
    started_at: InstantOut | None
    ended_at: InstantOut | None
    input: Any
    output: Any


class EventIn(Body):
    """An event for a step that waits for it, now or later."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    payload: Any = None


class EventTakenOut(Body):
    """What came of an event."""

    delivered: int
    """Steps that waited for it; 0 if it is kept for one that will."""


class ForkIn(Body):
    """From which step a new run begins."""

    step: StepName
    params: dict[str, Any] | None = None
    """In place of the run's own."""
