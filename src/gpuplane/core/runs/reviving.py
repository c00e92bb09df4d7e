"""What begins again: one step, everything that failed, or a new run from some step on."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuplane.core.lifecycle.runs import (
    SATISFIED,
    RunCondition,
    RunStatus,
    StepCondition,
    StepStatus,
)
from gpuplane.core.runs.boards import Board, Run, Step, earliest
from gpuplane.core.runs.plans import Join
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


def revive(board: Board, roots: Sequence[int], now: int) -> None:
    """Run steps again, with what was cancelled because of them, and open their run again.

    A step that had expanded keeps its children that ended well, where all were to complete;
    otherwise it begins anew and forgets them.
    """
    again, kept = _choose(board, roots)
    fresh = [seq for seq in again if board.steps[seq].join and seq not in kept]
    fresh = [seq for seq in fresh if board.steps[seq].is_over]
    for seq in sorted(board.below(fresh)):
        del board.steps[seq]
        again.pop(seq, None)
    board.dropped += fresh
    chosen = [board.steps[seq] for seq in sorted(again)]
    for step in chosen:
        _reset(board, step, keeps=step.seq in kept)
    _reopen(board, now)
    for step in chosen:
        _settle(board, step, now, keeps=step.seq in kept)


def _choose(board: Board, roots: Sequence[int]) -> tuple[dict[int, None], set[int]]:
    """Return what begins again, and which of it keeps its children."""
    again: dict[int, None] = {}
    ahead = [*roots, *(seq for seq in board.after(roots) if board.steps[seq].status in AGAIN)]
    for seq in list(ahead):
        while board.steps[seq].parent:
            seq = board.steps[seq].parent
            ahead.append(seq)
    kept: set[int] = set()
    heapq.heapify(ahead)
    while ahead:  # parents come before their children
        seq = heapq.heappop(ahead)
        if seq in again:
            continue
        again[seq] = None
        step = board.steps[seq]
        children = board.children_of(seq) if step.join else []
        unsatisfied = [child for child in children if child.status not in SATISFIED]
        if step.join == Join.ALL and unsatisfied:
            kept.add(seq)
            if step.is_over:
                for child in unsatisfied:
                    heapq.heappush(ahead, child.seq)
    return again, kept


def _reset(board: Board, step: Step, *, keeps: bool) -> None:
    if not step.is_over:
        return
    board.touch(step)
    step.generation += 1
    step.attempt, step.stopping, step.error, step.message = 0, 0, "", ""
    step.event, step.ended_at, step.expires_at = None, None, None
    step.limited_by, step.cache_note = "", ""
    if keeps:
        step.attempt = 1
    else:
        step.state, step.join, step.join_count, step.kids_left, step.kids_done = None, "", 0, 0, 0
    step.move(StepStatus.WAITING)


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


def _settle(board: Board, step: Step, now: int, *, keeps: bool) -> None:
    """Let a step that begins again wait for what is not satisfied, or be due."""
    step.needs_left = sum(board.steps[need].status not in SATISFIED for need in step.needs)
    if keeps:
        children = board.children_of(step.seq)
        step.kids_left = sum(not child.is_over for child in children)
        step.kids_done = sum(child.status is StepStatus.COMPLETED for child in children)
        board.touch(step)
        if step.status is StepStatus.WAITING:
            step.move(StepStatus.PENDING)
            step.condition, step.due_at = StepCondition.EXPANDED, None
    elif step.status is StepStatus.WAITING and step.needs_left == 0:
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
