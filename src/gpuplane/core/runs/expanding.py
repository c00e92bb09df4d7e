"""Steps that become several: children are siblings of their own, beside one another."""

import json
from collections.abc import Sequence

from gpuplane.core.lifecycle.runs import SATISFIED, StepStatus
from gpuplane.core.runs.boards import Board, Step, link_steps, new_step
from gpuplane.core.runs.checking import MAX_FAULTS, PlanFault, find_step_faults
from gpuplane.core.runs.plans import Expanding, Failed, Join, StepPlan
from gpuplane.core.runs.reviving import reset_step, settle_step


def apply_expansion(board: Board, step: Step, answer: Expanding, now: int) -> Failed | None:
    """Add a step's children to its run; return why they cannot be, or None.

    A step that begins again goes on with the children it had, if it asks for the same ones:
    those that ended well stay as they are, the others begin again. Only if it asks for others
    are the earlier ones forgotten.
    """
    run, rules = board.run, board.rules
    earlier = board.children_of(step.seq) if step.attempt > 1 or step.generation else []
    room = rules.steps - run.step_count + len(earlier)
    faults = find_step_faults(answer.children, rules, parent=step.key, room=room)
    faults = faults or _limit_faults(board, step, answer.children)
    if faults:
        told = " ".join(f"{fault.place}: {fault.reason} {fault.fix}".strip() for fault in faults)
        return Failed("BadChildren", told, is_final=True)
    count = {Join.ALL: len(answer.children), Join.ANY: min(1, len(answer.children))}.get(
        answer.join, answer.count
    )
    if not 0 <= count <= len(answer.children):
        return Failed(
            "BadChildren",
            f"{answer.count} of {len(answer.children)} children cannot complete.",
            is_final=True,
        )
    if answer.max_parallel is not None and answer.max_parallel < 1:
        return Failed("BadChildren", "max_parallel must be at least 1.", is_final=True)
    board.run_changed = True
    step.join, step.join_count = str(answer.join), count
    step.kids_active, step.kids_parallel = 0, answer.max_parallel
    if earlier and _are_same(earlier, answer.children):
        _go_on_with(board, step, earlier, now)
        return None
    generation = step.generation
    if earlier:  # what they did outside was asked for under their keys and generation
        generation = max(generation, *(child.generation for child in earlier)) + 1
        _forget(board, step)
    first = run.next_seq
    children = [
        new_step(run.id, first + place, spec, parent=step.seq, generation=generation)
        for place, spec in enumerate(answer.children)
    ]
    ready = link_steps(children, now)
    for child in children:
        board.steps[child.seq] = child
    board.added += children
    run.next_seq = first + len(children)
    board.fresh += ready
    run.left += len(children)
    run.step_count += len(children)
    step.kids_left, step.kids_done = len(children), 0
    return None


def _limit_faults(board: Board, step: Step, children: Sequence[StepPlan]) -> list[PlanFault]:
    """Return the children that would wait for a place that is kept until they are over."""
    held = set()
    around: Step | None = step
    while around is not None:
        if around.spec.limit is not None:
            held.add(around.spec.limit.key)
        around = board.at(around.parent) if around.parent else None
    return [
        PlanFault(child.key, f"The step around it holds a place under {child.limit.key!r}.")
        for child in children
        if child.limit is not None and child.limit.key in held
    ][:MAX_FAULTS]


def _are_same(earlier: Sequence[Step], wanted: Sequence[StepPlan]) -> bool:
    return len(earlier) == len(wanted) and all(
        _identity(step.spec) == _identity(plan) for step, plan in zip(earlier, wanted, strict=True)
    )


def _identity(plan: StepPlan) -> tuple[str, str, tuple[str, ...], str]:
    """Return what makes two plans ask for the same; one of them may have been stored as JSON."""
    given = json.dumps([plan.input, dict(plan.scope)], sort_keys=True, default=str)
    return plan.key, plan.handler, tuple(plan.needs), given


def _go_on_with(board: Board, step: Step, children: Sequence[Step], now: int) -> None:
    """Run those children again that did not end well, unless enough of them did."""
    step.kids_done = sum(child.status is StepStatus.COMPLETED for child in children)
    again = [child for child in children if child.status not in SATISFIED]
    if step.join != Join.ALL and step.kids_done >= step.join_count:
        again = []
    for child in again:
        reset_step(board, child)
    step.kids_left = len(again)
    board.run.left += len(again)
    for child in again:
        settle_step(board, child, now)


def _forget(board: Board, step: Step) -> None:
    gone = board.below([step.seq])
    for seq in sorted(gone):
        del board.steps[seq]
        board.changed.pop(seq, None)
    board.run.step_count -= len(gone)
    board.dropped.append(step.seq)
