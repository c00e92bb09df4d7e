"""What begins again: one step, everything that failed, or a new run from some step on."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpuplane.core.lifecycle.runs import (
    SATISFIED,
    RunCondition,
    RunStatus,
    StepStatus,
)
from gpuplane.core.runs.boards import Board, Run, Step, earliest
from gpuplane.core.runs.stopping import get_ready

AGAIN = frozenset({StepStatus.FAILED, StepStatus.CANCELLED})
"""What may be run again: a completed step has had its effects, a skipped one has none."""


def revival_refusal(run: Run) -> str:
    """Return why steps of a run cannot be run again; empty when they can."""
    if run.condition in (RunCondition.STOPPING, RunCondition.ROLLING_BACK):
        return "The run is being stopped."
    if run.is_over and run.undoes:
        return "Its completed steps were compensated."
    return ""


def failed_steps(board: Board) -> list[int]:
    """Return what a rerun begins with: all that failed or was cancelled and is still missed."""
    return [
        step.seq
        for step in board.whole()
        if step.status in AGAIN and not step.undo_of and not lies_in_satisfied(board, step)
    ]


def lies_in_satisfied(board: Board, step: Step) -> bool:
    """Return whether a step is part of one that ended well without it."""
    while step.parent:
        step = board.steps[step.parent]
        if step.status in SATISFIED:
            return True
    return False


def goes_on_without(board: Board, seq: int) -> bool:
    """Return whether a step under way, of which this one is part, no longer waits for it.

    It has its children's results already, is being stopped, or begins again with them itself.
    """
    step = board.steps[seq]
    while step.parent:
        step = board.steps[step.parent]
        if not step.is_over:
            return bool(step.stopping) or not step.kids_left
    return False


def revive(board: Board, roots: Sequence[int], now: int) -> None:
    """Run steps again, with what was cancelled because of them, and open their run again.

    A step that had expanded expands again and goes on with the children it had: see
    `expanding.apply_expansion`.
    """
    chosen = [board.steps[seq] for seq in sorted(_choose(board, roots))]
    for step in chosen:
        if step.is_over:
            reset_step(board, step)
    _reopen(board, now)
    for step in chosen:
        if step.join:
            _count_children(board, step)
        settle_step(board, step, now)


def _choose(board: Board, roots: Sequence[int]) -> set[int]:
    """Return what begins again, and the steps under way that it is part of.

    What lies in a step that begins again itself is left to that.
    """
    found = set(roots)
    for seq in roots:
        while board.steps[seq].parent:
            seq = board.steps[seq].parent
            found.add(seq)
    after = {seq for seq in board.after(sorted(found)) if board.steps[seq].status in AGAIN}
    after -= found
    while lacking := {seq for seq in after if failed_needs(board, seq, after | found)}:
        after -= lacking  # they would wait for ever for what stays failed
    return {seq for seq in found | after if not _lies_in_over(board, board.steps[seq])}


def failed_needs(board: Board, seq: int, again: Collection[int]) -> list[str]:
    """Return what a step needs that failed or was cancelled and does not begin again with it."""
    needs = (board.steps[need] for need in board.steps[seq].needs)
    return [need.key for need in needs if need.status in AGAIN and need.seq not in again]


def _lies_in_over(board: Board, step: Step) -> bool:
    while step.parent:
        step = board.steps[step.parent]
        if step.is_over:
            return True
    return False


def reset_step(board: Board, step: Step) -> None:
    """Let a step that is over wait as if it had not begun; what it does outside is asked anew."""
    board.touch(step)
    step.generation += 1
    step.attempt, step.stopping, step.error, step.message = 0, 0, "", ""
    step.event, step.ended_at, step.expires_at = None, None, None
    step.limited_by, step.cache_note, step.state = "", "", None
    forget_join(step)
    step.move(StepStatus.WAITING)


def forget_join(step: Step) -> None:
    """Let a step that is to expand again have no children under way; all of them are over."""
    step.join, step.join_count, step.kids_left, step.kids_done = "", 0, 0, 0


def _reopen(board: Board, now: int) -> None:
    """Count anew what is left, and let the run's time begin again."""
    run = board.run
    board.run_changed = True
    steps = list(board.whole())
    run.step_count = len(steps)
    run.left = sum(not step.is_over for step in steps)
    run.failed = sum(
        step.status is StepStatus.FAILED and not step.parent and not step.undo_of for step in steps
    )
    if run.is_over:
        run.move(RunStatus.RUNNING)
        run.condition, run.ended_at, run.verdict = RunCondition.NONE, None, ""
        run.expires_at = earliest(
            run.deadline_at, None if run.timeout_ms is None else now + run.timeout_ms
        )
    if not run.failed:
        run.error, run.message = "", ""


def _count_children(board: Board, step: Step) -> None:
    """Count anew what is left of a step under way; the run has one lock, so nobody else does."""
    children = board.children_of(step.seq)
    board.touch(step).kids_left = sum(not child.is_over for child in children)
    step.kids_done = sum(child.status is StepStatus.COMPLETED for child in children)


def settle_step(board: Board, step: Step, now: int) -> None:
    """Let a step that begins again wait for what is not satisfied, or be due."""
    if step.status is not StepStatus.WAITING:
        return
    step.needs_left = sum(board.at(need).status not in SATISFIED for need in step.needs)
    if step.needs_left == 0:
        get_ready(board, step, now)


def taken_over(board: Board, start: int) -> list[Step]:
    """Return the steps of the top whose results a fork from `start` keeps."""
    fresh = board.after([start]) | {start}
    return [
        step
        for step in board.whole()
        if not step.parent
        and not step.undo_of
        and step.seq not in fresh
        and step.status in SATISFIED
    ]


def plan_fork(steps: Mapping[str, Step], kept: Mapping[str, Step], now: int) -> list[str]:
    """Give new steps the results of old ones of the same key; return the keys that are due.

    Args:
        steps: The new run's steps by key, linked.
        kept: What is taken over, by key.
        now: The instant.
    """
    by_seq = {step.seq: step for step in steps.values()}
    for key, old in kept.items():
        step = steps[key]
        step.status, step.due_at = old.status, None
        step.message = f"Taken over from run {old.run_id}."
        step.started_at, step.ended_at, step.done_no = old.started_at, old.ended_at, old.done_no
        step.needs_left = 0
    due = []
    for step in steps.values():
        if step.key in kept:
            continue
        step.needs_left = sum(by_seq[need].status not in SATISFIED for need in step.needs)
        if step.needs_left == 0:
            step.status, step.due_at = StepStatus.PENDING, now
            due.append(step.key)
    return due


def without_undo(step: Step) -> Step:
    """Return a step whose compensation belongs to the run that did it."""
    step.spec = replace(step.spec, undo=None)
    return step
