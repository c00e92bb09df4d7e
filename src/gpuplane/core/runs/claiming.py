"""Which due steps begin now: places in the run, under a parent and under a key, and time."""

from gpuplane.core.lifecycle.runs import (
    RunCondition,
    RunStatus,
    StepCondition,
    StepStatus,
)
from gpuplane.core.runs.boards import Board, Run, Step, Told, earliest
from gpuplane.core.runs.stopping import stop_run

BY_RUN, BY_PARENT, BY_KEY = "run", "parent", "key"


def stands_still(run: Run) -> bool:
    """Return whether due steps of a run are to be left for later."""
    return run.condition in (RunCondition.PAUSED, RunCondition.LIMITED)


def hold_step(board: Board, step: Step) -> None:
    """Set a due step aside until its run goes on."""
    board.touch(step).held_at, step.due_at = step.due_at, None


def find_limit(board: Board, step: Step) -> str:
    """Return what keeps a due step from a place, apart from its key; empty for nothing."""
    run = board.run
    if step.stopping or step.undo_of:
        return ""
    if run.max_parallel is not None and not step.run_slot and run.active >= run.max_parallel:
        return BY_RUN
    if step.parent and not step.kin_slot:
        parent = board.at(step.parent)
        if parent.kids_parallel is not None and parent.kids_active >= parent.kids_parallel:
            return BY_PARENT
    return ""


def limit_step(board: Board, step: Step, by: str) -> None:
    """Let a due step wait until a place is free."""
    board.touch(step)
    step.condition, step.limited_by, step.due_at = StepCondition.LIMITED, by, None


def claim_step(board: Board, step: Step, owner: str, now: int) -> None:
    """Give a due step to a worker."""
    run = board.run
    board.touch(step).move(StepStatus.RUNNING)
    if step.attempt == 0 or step.condition is StepCondition.BACKING_OFF:
        step.attempt += 1
        if step.spec.timeout_ms is not None:
            step.expires_at = now + step.spec.timeout_ms
    step.condition, step.limited_by, step.owner, step.due_at = (
        StepCondition.NONE, "", owner, None,
    )  # fmt: skip
    step.epoch += 1
    step.started_at = step.started_at or now
    if run.max_parallel is not None and not step.run_slot and not step.stopping:
        step.run_slot = True
        run.active += 1
        board.run_changed = True
    if step.parent and not step.kin_slot and not step.stopping:
        parent = board.at(step.parent)
        if parent.kids_parallel is not None:
            step.kin_slot = True
            board.touch(parent).kids_active += 1
    if run.status is RunStatus.PENDING:
        begin_run(board, now)


def begin_run(board: Board, now: int) -> None:
    """Let a run's time begin with its first step."""
    run = board.run
    run.move(RunStatus.RUNNING)
    run.started_at = run.started_at or now
    if run.timeout_ms is not None:
        run.expires_at = earliest(run.deadline_at, now + run.timeout_ms)
    board.run_changed = True
    board.told.append(Told("run.started"))


def expire_run(board: Board, now: int, *, undoes: bool) -> None:
    """Stop a run that took too long or did not make its deadline."""
    run = board.run
    missed = run.deadline_at is not None and run.deadline_at <= now
    word = "DeadlinePassed" if missed else "TimedOut"
    message = "Its deadline passed." if missed else f"It took longer than {run.timeout_ms} ms."
    stop_run(board, "failed", word, message, now, undoes=undoes)


def park_step(board: Board, step: Step) -> None:
    """Set a step aside whose handler no process knows, until one does."""
    board.touch(step)
    step.condition, step.due_at = StepCondition.PARKED, None
    step.error = "NoHandler"
    step.message = f"No process knows the handler {step.handler!r}; it goes on when one does."
    board.told.append(Told("step.parked", step.seq, "NoHandler", step.message))
