"""What follows from an answer: the step, those that waited for it, its parent, its run."""

from gpuplane.core.lifecycle.runs import (
    SATISFIED,
    RunCondition,
    StepCondition,
    StepStatus,
)
from gpuplane.core.runs.boards import Board, Reply, Step, Told, earliest, joins
from gpuplane.core.runs.expanding import apply_expansion
from gpuplane.core.runs.plans import (
    Awaiting,
    Completed,
    Expanding,
    Failed,
    Join,
    OnFailure,
    Retry,
    Skipped,
    Sleeping,
)
from gpuplane.core.runs.reviving import forget_join
from gpuplane.core.runs.stopping import (
    cancel_step,
    end_step,
    finish_if_over,
    get_ready,
    go_on_without_children,
    stop_run,
)

STOP_TRIES = 3
"""How often a handler is told to end what it began, before the step is given up as cancelled."""
STOP_DELAY_MS = 1_000


def apply_reply(board: Board, step: Step, reply: Reply, now: int) -> None:
    """Change a board by the answer to a claim that held when the board was loaded.

    What was answered beside it may have cancelled the step meanwhile: then it is not taken.
    """
    if step.status is not StepStatus.RUNNING or step.epoch != reply.epoch:
        return
    board.touch(step)
    step.owner, step.event = None, None
    answer = reply.answer
    if step.stopping:
        _apply_stopped(board, step, answer, now)
        return
    if step.kids_left and not _is_rid_of_children(board, step, now):
        return
    if isinstance(answer, Completed) and _is_too_much(board, reply):
        answer = Failed(
            "OutputsTooLarge",
            f"All outputs of a run are {board.rules.outputs_bytes} bytes at most.",
            is_final=True,
        )
    step.cache_note = reply.cache_note or step.cache_note
    if isinstance(answer, Completed):
        complete_step(board, step, answer, reply, now)
    elif isinstance(answer, Skipped):
        skip_step(board, step, answer.reason, now)
    elif isinstance(answer, Failed):
        fail_step(board, step, answer, reply.chance, now)
    elif isinstance(answer, Sleeping):
        _wait(step, StepCondition.SLEEPING, answer.message, reply.state)
        step.due_at = earliest(max(answer.until, now), step.expires_at)
    elif isinstance(answer, Awaiting):
        _wait(step, StepCondition.AWAITING, answer.message, reply.state)
        step.wait_key, step.wait_until = answer.key, answer.until
        step.due_at = earliest(answer.until, answer.look_at, step.expires_at)
        board.waits.append(step)
    else:
        _expand(board, step, answer, reply, now)


def _is_rid_of_children(board: Board, step: Step, now: int) -> bool:
    """Cancel what an attempt that took too long expanded into; it ends once all of that has.

    Until then it waits, and is found too late again afterwards.
    """
    _cancel_children(board, step, f"{step.key} took too long.", now)
    if step.kids_left == 0:
        return True
    step.move(StepStatus.PENDING)
    step.condition, step.due_at = StepCondition.EXPANDED, None
    return False


def _is_too_much(board: Board, reply: Reply) -> bool:
    size = len(reply.output or "")
    return board.run.output_bytes + size > board.rules.outputs_bytes


def _wait(step: Step, condition: StepCondition, message: str, state: str | None) -> None:
    step.move(StepStatus.PENDING)
    step.condition, step.message, step.state = condition, message, state
    step.wait_key, step.wait_until = None, None


def _apply_stopped(board: Board, step: Step, answer: object, now: int) -> None:
    """Take the answer of a handler that was told to end what it began."""
    if isinstance(answer, Failed) and not answer.is_final and step.stopping < STOP_TRIES:
        step.move(StepStatus.PENDING)
        step.due_at = now + STOP_DELAY_MS * 2 ** (step.stopping - 1)
        step.stopping += 1
        return
    if isinstance(answer, Failed):
        step.message = f"{step.message} What it began could not be ended: {answer.message}".strip()
    end_step(board, step, StepStatus.CANCELLED, now)
    close(board, step, now)


def complete_step(board: Board, step: Step, answer: Completed, reply: Reply, now: int) -> None:
    """End a step well."""
    run = board.run
    run.completed += 1
    step.done_no = run.completed
    step.message, step.error = answer.message, ""
    if reply.output is not None:
        board.outputs[step.seq] = reply.output
        run.output_bytes += len(reply.output)
    if reply.cache_key and not reply.from_cache:
        board.kept[step.seq] = reply
    end_step(board, step, StepStatus.COMPLETED, now)
    if answer.skip:
        named = set(answer.skip)
        for other in board.whole():
            begun = other.attempt > 0 or other.is_over
            if other.key in named and other.parent == step.parent and not begun:
                skip_step(board, other, f"{step.key} left it out.", now)
    close(board, step, now)


def skip_step(board: Board, step: Step, reason: str, now: int) -> None:
    """End a step that is not to be run; it counts as satisfied."""
    step.message = reason
    end_step(board, step, StepStatus.SKIPPED, now)
    close(board, step, now)


def fail_step(board: Board, step: Step, answer: Failed, chance: float, now: int) -> None:
    """Try a step again after a while, or let it fail for good."""
    step.error, step.message = answer.word, answer.message
    retry = step.spec.retry
    if not answer.is_final and step.attempt < retry.attempts:
        delay = compute_delay(retry, step.attempt, chance, answer.retry_after_ms)
        _wait(step, StepCondition.BACKING_OFF, answer.message, None)
        step.error, step.due_at, step.expires_at = answer.word, now + delay, None
        forget_join(step)  # it expands again, and goes on with the children it had
        board.told.append(Told("step.retried", step.seq, answer.word, answer.message))
        return
    end_step(board, step, StepStatus.FAILED, now)
    board.told.append(Told("step.failed", step.seq, answer.word, answer.message))
    if not step.undo_of and not step.parent:
        board.run.failed += 1
        _fail_run_by(board, step, now)
    close(board, step, now)


def _fail_run_by(board: Board, step: Step, now: int) -> None:
    """Do to the run what its rule, or the step's own, says about a failed step."""
    run = board.run
    rule = step.spec.on_failure or run.on_failure
    if run.condition in (RunCondition.STOPPING, RunCondition.ROLLING_BACK):
        return
    if rule is OnFailure.CONTINUE:
        run.error = run.error or step.error
        run.message = run.message or f"{step.key} failed: {step.message}"
        _cancel_after(board, step, now)
        return
    stop_run(
        board,
        "failed",
        step.error,
        f"{step.key} failed: {step.message}",
        now,
        undoes=rule is OnFailure.ROLLBACK,
    )


def _cancel_after(board: Board, step: Step, now: int) -> None:
    """Cancel what can never be run because a step that it needs failed."""
    for seq in sorted(board.after([step.seq])):
        cancel_step(board, board.at(seq), "NeedFailed", f"{step.key} failed.", now)


def compute_delay(retry: Retry, attempt: int, chance: float, asked_ms: int | None) -> int:
    """Return how long to wait after a failed attempt, in milliseconds.

    Args:
        retry: The policy.
        attempt: The one that failed, from 1.
        chance: In [-1, 1]; moves the delay by up to the policy's jitter.
        asked_ms: What the other side asked for, in place of the policy's delay.
    """
    if asked_ms is not None:
        return max(0, asked_ms)
    grown = retry.delay_ms * retry.factor ** min(attempt - 1, 64)
    delay = min(grown, retry.max_delay_ms)
    return max(0, round(delay * (1 + retry.jitter * chance)))


def _expand(board: Board, step: Step, answer: Expanding, reply: Reply, now: int) -> None:
    fault = apply_expansion(board, step, answer, now)
    if fault is not None:
        fail_step(board, step, fault, 0.0, now)
        return
    _wait(step, StepCondition.EXPANDED, answer.message, reply.state)
    step.due_at = step.expires_at
    if step.run_slot:
        step.run_slot = False
        board.run.active -= 1
        board.freed[0] = None
    if step.kids_left == 0:
        get_ready(board, step, now)


def close(board: Board, step: Step, now: int) -> None:
    """Let those go on that waited for a step that is over now: siblings, parent, run."""
    satisfied = step.status in SATISFIED or bool(step.undo_of)
    if satisfied:
        for seq in step.followers:
            follower = board.at(seq)
            if follower.status is not StepStatus.WAITING:
                continue
            board.touch(follower)
            follower.needs_left -= 1
            if follower.needs_left == 0:
                get_ready(board, follower, now)
    if step.parent:
        _tell_parent(board, board.at(step.parent), step, now)
    finish_if_over(board, now)


def _tell_parent(board: Board, parent: Step, child: Step, now: int) -> None:
    board.touch(parent)
    parent.kids_left -= 1
    parent.kids_done += child.status is StepStatus.COMPLETED
    if parent.is_over:
        return
    if child.status is StepStatus.FAILED and not parent.stopping:
        rule = child.spec.on_failure or board.run.on_failure
        if rule is OnFailure.CONTINUE or joins(parent) is not Join.ALL:
            _cancel_after(board, child, now)
        else:
            _cancel_children(board, parent, f"{child.key} failed.", now)
    wanted = parent.join_count
    if joins(parent) is not Join.ALL and parent.kids_left and not parent.stopping:
        if parent.kids_done >= wanted:
            _cancel_children(board, parent, "Enough of its siblings completed.", now)
        elif parent.kids_done + parent.kids_left < wanted:
            _cancel_children(board, parent, "Too few of its siblings can complete.", now)
    go_on_without_children(board, parent, now)


def _cancel_children(board: Board, parent: Step, message: str, now: int) -> None:
    for child in board.children_of(parent.seq):
        cancel_step(board, child, "NotNeeded", message, now)
