"""PARALLEL, LOOP and WAIT: steps that become others, or that wait.

A branch of one step is that step; a longer one is a container of its own, so that a join counts
branches. Outputs: `results` of a PARALLEL is one object by id over all branches, of a LOOP one
object for each iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuplane.core.lifecycle.runs import StepStatus
from gpuplane.core.runs.plans import (
    Answer,
    Awaiting,
    ChildResult,
    Completed,
    Expanding,
    Failed,
    Join,
    OnFailure,
    Sleeping,
    StepCall,
    StepPlan,
)
from gpuplane.domains.pipelines.documents.compiling import compile_steps
from gpuplane.domains.pipelines.documents.configs import (
    JoinCount,
    LoopConfig,
    ParallelConfig,
    RangePart,
    WaitConfig,
)
from gpuplane.domains.pipelines.documents.fields import MAX_LOOP_ITEMS
from gpuplane.domains.pipelines.documents.models import Step
from gpuplane.domains.pipelines.expressions import ExpressionError, Kind, PlacedError
from gpuplane.domains.pipelines.steps.names import rendered

BRANCH = "pipelines.branch"
"""Handler of a branch of several steps."""


async def parallel(call: StepCall) -> Answer:
    """Answer with a PARALLEL's branches, and once they are over with what they left."""
    config = rendered(call, ParallelConfig)
    branches = config.all_branches()
    never = config.fail == "never"
    if not call.children and call.state is None:
        children = [
            _branch(f"{call.key}/{number}", branch, dict(call.scope), never=never)
            for number, branch in enumerate(branches)
        ]
        return _expanding(children, config.join, config.max_parallel, never=never)
    left, failed = _gathered(call.children, branches)
    merged = {key: value for one in left for key, value in one.items()}
    return _joined(call, config.join, failed, {**merged, "results": merged}, never=never)


async def loop(call: StepCall) -> Answer:
    """Answer with a LOOP's iterations, and once they are over with what they left."""
    config = rendered(call, LoopConfig)
    if not call.children and call.state is None:
        items = _items(config)
        if not items:
            return Completed({"results": [], "count": 0})
        children = [
            _branch(
                f"{call.key}/{index}",
                config.steps,
                {**call.scope, "item": item, config.as_: item, "index": index},
                never=False,
            )
            for index, item in enumerate(items)
        ]
        return _expanding(children, config.join, config.max_parallel, never=False)
    left, failed = _gathered(call.children, [config.steps] * len(call.children))
    output = {"results": left, "count": len(left)}
    return _joined(call, config.join, failed, output, never=False)


async def branch(call: StepCall) -> Answer:
    """Answer with the steps of a branch, and once they are over with what they left."""
    never = bool(call.input.get("never"))
    steps = [Step.model_validate(each) for each in call.input["steps"]]
    if not call.children and call.state is None:
        children = list(compile_steps(steps, f"{call.key}/", call.scope))
        return _expanding(children, "all", None, never=never)
    left = {child.key.rpartition("/")[2]: child.output for child in call.children}
    failed = {
        child.key.rpartition("/")[2]: child.error
        for child in call.children
        if child.status is StepStatus.FAILED
    }
    if failed and not never:
        return _children_failed(failed)
    return Completed({"results": left, "failed": failed})


async def wait(call: StepCall) -> Answer:
    """Sleep for a time, or wait for an event that somebody sends to the run."""
    config = rendered(call, WaitConfig)
    if config.wait_for_event is None:
        if call.state is not None:
            return Completed({"waited_until": call.state["until"]})
        until = call.now + round((config.duration_seconds or 0) * 1000)
        return Sleeping(until, {"until": until}, "It waits for a fixed time.")
    name = config.wait_for_event
    if call.timed_out:
        if config.on_timeout == "continue":
            return Completed({"event": None, "timed_out": True})
        return Failed("EventTimeout", f"The event {name!r} did not come in time.", is_final=True)
    if call.state is not None:  # it came, also where it carries nothing
        given = call.event if isinstance(call.event, dict) else {}
        return Completed({**given, "event": call.event, "timed_out": False})
    until = call.now + round(config.timeout_seconds * 1000)
    return Awaiting(
        f"run:{call.run_id}:{name}", until, None, {"until": until}, f"It waits for {name!r}."
    )


def _branch(key: str, steps: Sequence[Step], scope: Mapping[str, Any], *, never: bool) -> StepPlan:
    if len(steps) == 1:
        return compile_steps(steps, f"{key}/", scope)[0]
    written = [each.model_dump(mode="json", by_alias=True, exclude_unset=True) for each in steps]
    return StepPlan(
        key=key,
        handler=BRANCH,
        input={"type": "branch", "steps": written, "never": never},
        name=key.rpartition("/")[2],
        scope=scope,
    )


def _expanding(
    children: Sequence[StepPlan], join: Any, max_parallel: int | None, *, never: bool
) -> Expanding:
    if never:
        children = [replace(child, on_failure=OnFailure.CONTINUE) for child in children]
    count = join.count if isinstance(join, JoinCount) else 0
    kind = Join.COUNT if isinstance(join, JoinCount) else Join(join)
    return Expanding(tuple(children), kind, count, max_parallel, state={"expanded": len(children)})


def _items(config: LoopConfig) -> list[Any]:
    if isinstance(config.range, RangePart):
        return list(range(config.range.start, config.range.stop, config.range.step))
    over = config.over
    if not isinstance(over, list):
        raise PlacedError(
            "config.over",
            ExpressionError(f"A list is needed, not {type(over).__name__}.", 0, Kind.TYPE),
        )
    if len(over) > MAX_LOOP_ITEMS:
        raise PlacedError(
            "config.over",
            ExpressionError(
                f"A loop has at most {MAX_LOOP_ITEMS} iterations, not {len(over)}.", 0, Kind.BUDGET
            ),
        )
    return over


def _gathered(
    children: Sequence[ChildResult], branches: Sequence[Sequence[Step]]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return what each branch left by id, and the errors of steps that failed."""
    left: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for child, steps in zip(children, branches, strict=True):
        if len(steps) == 1:
            left.append({steps[0].id: child.output})
            if child.status is StepStatus.FAILED:
                failed[steps[0].id] = child.error
            continue
        inside = child.output or {}
        left.append({step.id: (inside.get("results") or {}).get(step.id) for step in steps})
        failed.update(inside.get("failed") or {})
        if child.status is StepStatus.FAILED:
            failed[child.key.rpartition("/")[2]] = child.error
    return left, failed


def _joined(
    call: StepCall, join: Any, failed: Mapping[str, str], output: dict[str, Any], *, never: bool
) -> Answer:
    if never:
        return Completed({**output, "failed": dict(failed)})
    done = sum(
        child.status in (StepStatus.COMPLETED, StepStatus.SKIPPED) for child in call.children
    )
    needed = {"all": len(call.children), "any": 1}.get(join if isinstance(join, str) else "", 0)
    needed = join.count if isinstance(join, JoinCount) else needed
    return Completed(output) if done >= needed else _children_failed(failed)


def _children_failed(failed: Mapping[str, str]) -> Failed:
    first = next(iter(failed.items()), ("", ""))
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    told = f"{first[0]}: {first[1]}{more}" if first[0] else "Too few branches completed."
    return Failed("ChildrenFailed", told, detail={"failed": dict(failed)})
