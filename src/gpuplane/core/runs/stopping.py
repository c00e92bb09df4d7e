"""How steps and runs end: cancelled, stopped, compensated in reverse, and finished."""

from gpuplane.core.lifecycle.runs import (
    SATISFIED,
    RunCondition,
    RunStatus,
    StepCondition,
    StepStatus,
)
from gpuplane.core.runs.boards import Board, Step, Told, new_step
from gpuplane.core.runs.plans import StepPlan

UNDO_PREFIX = "undo:"
"""Begins the key of a compensation; keys of planned steps never hold a colon before a word."""


def get_ready(board: Board, step: Step, now: int) -> None:
    """Make a step due now."""
    board.touch(step).move(StepStatus.PENDING)
    step.condition, step.due_at = StepCondition.NONE, now
    board.fresh.append(step.seq)


def end_step(board: Board, step: Step, status: StepStatus, now: int) -> None:
    """Set a step's last status and give back every place it held."""
    board.touch(step).move(status)
    step.condition, step.limited_by, step.ended_at = StepCondition.NONE, "", now
    step.due_at, step.held_at, step.expires_at, step.owner = None, None, None, None
    step.wait_key, step.wait_until, step.event = None, None, None
    if status in SATISFIED:  # one that is run again may go on with its children
        step.state = None
    board.run.left -= 1
    if step.run_slot:
        step.run_slot = False
        board.run.active -= 1
        board.freed[0] = None
    if step.kin_slot:
        step.kin_slot = False
        parent = board.touch(board.at(step.parent))
        parent.kids_active -= 1
        board.freed[parent.seq] = None
    if step.key_slot:
        step.key_slot = False
        board.released.append(step)


def cancel_step(board: Board, step: Step, word: str, message: str, now: int) -> None:
    """Cancel a step and what it expanded into, if it is not over.

    A handler that began something outside is told first: the step stays until it answered.
    """
    if step.is_over or step.stopping:
        return
    board.touch(step)
    if step.join:
        for child in board.children_of(step.seq):
            cancel_step(board, child, word, message, now)
    if step.status is StepStatus.RUNNING:
        board.revoked.append((step.id, step.epoch))
        step.owner = None
    step.error, step.message = word, message
    if step.kids_left:  # those of its children that are told to stop come first
        step.stopping = 1
        step.move(StepStatus.PENDING)
        step.condition, step.due_at = StepCondition.EXPANDED, None
        return
    _end_cancelled(board, step, now)


def _end_cancelled(board: Board, step: Step, now: int) -> None:
    """Cancel a step whose children are over, or have its handler end what it began first."""
    begun = step.attempt > 0 and step.condition is not StepCondition.BACKING_OFF
    if begun and step.handler in board.rules.on_cancel:
        step.stopping, step.wait_key, step.wait_until, step.event = 1, None, None, None
        get_ready(board, step, now)
        return
    end_step(board, step, StepStatus.CANCELLED, now)
    if step.parent:
        parent = board.touch(board.at(step.parent))
        parent.kids_left -= 1
        go_on_without_children(board, parent, now)


def go_on_without_children(board: Board, parent: Step, now: int) -> None:
    """Let a step go on, or end as cancelled, when the last of its children is over."""
    if parent.kids_left or parent.condition is not StepCondition.EXPANDED:
        return
    if parent.stopping:
        _end_cancelled(board, parent, now)
    else:
        get_ready(board, parent, now)


def stop_run(
    board: Board, verdict: str, word: str, message: str, now: int, *, undoes: bool = False
) -> None:
    """Cancel all that is not over; the run ends once nothing is left.

    Args:
        board: The whole run.
        verdict: `failed` or `cancelled`.
        word: Why, for programs.
        message: Why, for people.
        now: The instant.
        undoes: Whether completed steps are compensated then.
    """
    run = board.run
    board.run_changed = True
    run.verdict, run.undoes, run.error, run.message = verdict, undoes, word, message
    run.condition, run.expires_at = RunCondition.STOPPING, None
    reason = "RunFailed" if verdict == "failed" else "RunCancelled"
    for step in board.whole():
        if step.parent == 0:
            cancel_step(board, step, reason, message, now)
    finish_if_over(board, now)


def finish_if_over(board: Board, now: int) -> None:
    """End the run when no step is left, after its compensations if it has any."""
    run = board.run
    board.run_changed = True
    if run.left > 0 or run.is_over:
        return
    if run.undoes and run.condition is RunCondition.STOPPING and _plan_undo(board, now):
        return
    status = _last_status(board)
    run.move(status)
    run.condition, run.ended_at, run.expires_at = RunCondition.NONE, now, None
    board.told.append(Told(f"run.{status}", 0, run.error, run.message))


def _last_status(board: Board) -> RunStatus:
    run = board.run
    if run.verdict == "cancelled":
        return RunStatus.CANCELLED
    if run.verdict == "failed":
        return RunStatus.FAILED
    if run.failed:
        return RunStatus.PARTIAL if run.completed else RunStatus.FAILED
    return RunStatus.COMPLETED


def _plan_undo(board: Board, now: int) -> bool:
    """Add a compensation for each completed step that has one, last completed first.

    Each waits for the one before. Returns whether there is any.
    """
    run = board.run
    done = [
        step
        for step in board.whole()
        if step.status is StepStatus.COMPLETED and step.spec.undo and not step.undo_of
    ]
    already = {step.undo_of for step in board.whole() if step.undo_of}
    done = [step for step in done if step.seq not in already]
    if not done:
        return False
    done.sort(key=lambda step: -step.done_no)
    first = run.next_seq
    run.next_seq += len(done)
    for place, step in enumerate(done):
        undo = step.spec.undo
        assert undo is not None, "only those were chosen"
        spec = StepPlan(
            key=f"{UNDO_PREFIX}{step.key}",
            handler=undo.handler,
            input=undo.input,
            name=f"Undo {step.spec.name or step.key}",
            scope=step.spec.scope,
            order=place,
            retry=undo.retry,
            timeout_ms=undo.timeout_ms,
        )
        seq = first + place
        added = new_step(run.id, seq, spec, undo_of=step.seq, generation=step.generation)
        added.needs = (seq - 1,) if place else ()
        added.needs_left = len(added.needs)
        added.followers = (seq + 1,) if place + 1 < len(done) else ()
        board.steps[seq] = added
        board.added.append(added)
    run.condition = RunCondition.ROLLING_BACK
    run.left += len(done)
    run.step_count += len(done)
    get_ready(board, board.at(first), now)
    board.told.append(Told("run.rolling_back", 0, run.error, run.message))
    return True
