"""Makes a run's plan of a document: each step a handler by name, its input as it was written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gpuplane.core.runs.plans import Cache, Limit, Retry, RunPlan, StepPlan, Undo
from gpuplane.domains.pipelines.documents.models import (
    CompensatePart,
    Pipeline,
    PipelineSpec,
    RetryPart,
    Step,
    StepType,
)
from gpuplane.domains.pipelines.documents.needs import needs_of
from gpuplane.domains.pipelines.expressions import render, render_json

OUTPUTS_KEY = "pipeline-outputs"
"""Key of the last step, which makes the pipeline's own outputs."""
RUN_KIND = "pipeline"


@dataclass(frozen=True, slots=True)
class Starting:
    """What a run is started with beside its document."""

    pipeline_id: UUID
    version: int
    tenant_id: UUID
    project_id: UUID
    params: Mapping[str, Any]
    now: int
    started_by: str
    user_id: UUID | None = None
    trigger: str = "manual"
    trigger_data: Any = None
    dedup_id: str | None = None
    traceparent: str | None = None
    labels: Mapping[str, str] | None = None
    may_critical: bool = False


def handler_of(step_type: StepType) -> str:
    """Return the name under which a step's handler is registered."""
    return f"pipelines.{step_type}"


def compile_pipeline(pipeline: Pipeline) -> tuple[StepPlan, ...]:
    """Return the plans of a checked document's steps, equal for each of its runs."""
    spec = pipeline.spec
    steps = compile_steps(spec.steps)
    return (*steps, _outputs_step(spec.outputs, spec.steps)) if spec.outputs else steps


def plan_run(
    name: str, spec: PipelineSpec, steps: tuple[StepPlan, ...], starting: Starting
) -> RunPlan:
    """Return the plan of a run.

    Args:
        name: The pipeline's.
        spec: Of its document; its steps are not looked at.
        steps: What they were compiled to.
        starting: What this run is started with.
    """
    names = {"params": dict(starting.params), "trigger": starting.trigger_data}
    limits: tuple[Limit, ...] = ()
    if spec.concurrency is not None:
        key = str(render(spec.concurrency.key, names))
        limits = (Limit(f"{starting.pipeline_id}:{key}"[:200], spec.concurrency.limit),)
    return RunPlan(
        kind=RUN_KIND,
        name=name,
        tenant_id=starting.tenant_id,
        project_id=starting.project_id,
        steps=steps,
        params=dict(starting.params),
        context={
            "pipeline_id": str(starting.pipeline_id),
            "pipeline": name,
            "version": starting.version,
            "services": render_json(dict(spec.services), names),
            "components": render_json(dict(spec.components), names),
            "priority": str(spec.priority),
            "started_at": starting.now,
            "started_by": starting.started_by,
            "user_id": None if starting.user_id is None else str(starting.user_id),
            "deadline": spec.deadline,
            "trigger": starting.trigger_data,
            "labels": dict(starting.labels or {}),
            "may_critical": starting.may_critical,
        },
        source_id=starting.pipeline_id,
        source_version=starting.version,
        trigger=starting.trigger,
        dedup_id=starting.dedup_id,
        on_failure=spec.on_failure,
        timeout_ms=_ms(spec.timeout_seconds),
        deadline_at=spec.deadline,
        limits=limits,
        max_parallel=spec.max_parallel,
        traceparent=starting.traceparent,
        created_by=starting.started_by,
    )


def compile_steps(
    steps: Sequence[Step], prefix: str = "", scope: Mapping[str, Any] | None = None
) -> tuple[StepPlan, ...]:
    """Return the plans of sibling steps.

    Args:
        steps: The steps.
        prefix: What their keys begin with: the key of their container, `/`, and the branch.
        scope: What a loop tells them.
    """
    needs = needs_of(steps)
    return tuple(
        _compile(step, tuple(prefix + key for key in needs[step.id]), prefix, scope or {}, place)
        for place, step in enumerate(steps)
    )


def _compile(
    step: Step, needs: tuple[str, ...], prefix: str, scope: Mapping[str, Any], place: int
) -> StepPlan:
    cache = step.cache
    return StepPlan(
        key=prefix + step.id,
        handler=handler_of(step.step_type),
        input=step_input(step.step_type, step.config, step.condition),
        name=step.name or step.id,
        needs=needs,
        scope=scope,
        order=step.order or place + 1,
        retry=_retry(step),
        timeout_ms=_ms(step.timeout_seconds),
        cache=Cache(cache.salt, cache.keep_seconds * 1000) if cache and cache.enabled else None,
        limit=Limit(step.limit.key, step.limit.count) if step.limit else None,
        undo=_undo(step.compensate) if step.compensate else None,
        on_failure=step.on_failure,
    )


def step_input(
    step_type: StepType, config: Mapping[str, Any], condition: Any = None
) -> dict[str, Any]:
    """Return what a step's handler is given: as it was written, expressions and all."""
    given: dict[str, Any] = {"type": str(step_type), "config": dict(config)}
    if condition is not None:
        given["condition"] = condition
    return given


def _undo(part: CompensatePart) -> Undo:
    return Undo(
        handler=handler_of(part.step_type),
        input=step_input(part.step_type, part.config),
        timeout_ms=_ms(part.timeout_seconds),
    )


def _retry(step: Step) -> Retry:
    """Return a step's retries; an API call that says nothing else has those of its config."""
    if step.retry is not None:
        return _retry_of(step.retry)
    if step.step_type is StepType.API_CALL:
        count = step.config.get("retry_count", 3)
        return Retry(attempts=1 + count)
    if step.step_type is StepType.NOTIFICATION:
        return Retry(attempts=3)
    return Retry()


def _retry_of(part: RetryPart) -> Retry:
    return Retry(
        part.attempts,
        round(part.delay_seconds * 1000),
        part.factor,
        round(part.max_delay_seconds * 1000),
        part.jitter,
    )


def _outputs_step(outputs: Mapping[str, Any], steps: Sequence[Step]) -> StepPlan:
    """Return the step that makes a run's own outputs, after every step they read."""
    last = Step(
        id=OUTPUTS_KEY,
        name="Outputs",
        step_type=StepType.TRANSFORM,
        config={"input": dict(outputs), "expression": "input"},
    )
    needs = needs_of([*steps, last])[OUTPUTS_KEY]
    return _compile(last, needs, "", {}, len(steps))


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(round(seconds * 1000), 1)
