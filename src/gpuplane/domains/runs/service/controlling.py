"""What people do to runs: cancel, pause, resume, retry, rerun, fork."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from gpuplane.core.lifecycle.runs import RunCondition
from gpuplane.core.runs.boards import MAX_SEQ, Board, Told, link_steps, new_step, step_id
from gpuplane.core.runs.checking import find_plan_faults
from gpuplane.core.runs.plans import OnFailure, RunPlan
from gpuplane.core.runs.reviving import (
    AGAIN,
    failed_needs,
    failed_steps,
    goes_on_without,
    lies_in_satisfied,
    plan_fork,
    revival_refusal,
    revive,
    taken_over,
)
from gpuplane.core.runs.stopping import stop_run
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.runs.errors import RunInTheWay, RunNotFound, StepNotFound
from gpuplane.domains.runs.repository import boards as repository
from gpuplane.domains.runs.repository import claims, listing
from gpuplane.domains.runs.rules import RunView
from gpuplane.domains.runs.service.delivering import board_of
from gpuplane.domains.runs.service.policies import DEFAULT_POLICY, RUNS, RunPolicy
from gpuplane.domains.runs.service.settling import settle
from gpuplane.domains.runs.service.starting import (
    LIMITED_MESSAGE,
    count_room,
    hold_if_limited,
    new_run,
    refuse_faults,
    refuse_too_many,
    take_places,
    view_of,
)
from gpuplane.domains.runs.service.telling import announce

STANDING = (RunCondition.STOPPING, RunCondition.ROLLING_BACK)


def cancel_run(
    session: WriteSession,
    run_id: UUID,
    now: int,
    *,
    actor: str = "runs",
    policy: RunPolicy = DEFAULT_POLICY,
) -> RunView:
    """Cancel what is not over of a run; doing it again changes nothing.

    Completed steps stay as they are: only a failure rolls back.
    """
    board = _board(session, run_id, policy)
    run = board.run
    if not run.is_over and run.condition not in STANDING:
        stop_run(board, "cancelled", "Cancelled", f"{actor} cancelled it.", now)
        _store(session, board, now, actor)
        claims.release_held(session, run_id, step_id(run_id, 0), step_id(run_id, MAX_SEQ))
    return _view(session, run_id)


def pause_run(
    session: WriteSession,
    run_id: UUID,
    now: int,
    *,
    actor: str = "runs",
    policy: RunPolicy = DEFAULT_POLICY,
) -> RunView:
    """Begin no more steps of a run; what is running goes on to its answer.

    A pause has no end of its own: the run's time-out and deadline hold on.
    """
    board = _board(session, run_id, policy)
    run = board.run
    if run.is_over or run.condition in (*STANDING, RunCondition.LIMITED):
        raise RunInTheWay(_state_of(board), fix="Only a run that is under way can be paused.")
    if run.condition is not RunCondition.PAUSED:
        run.condition, board.run_changed = RunCondition.PAUSED, True
        run.message = f"{actor} paused it."
        _tell(board, "run.paused")
        _store(session, board, now, actor)
    return _view(session, run_id)


def resume_run(
    session: WriteSession,
    run_id: UUID,
    now: int,
    *,
    actor: str = "runs",
    policy: RunPolicy = DEFAULT_POLICY,
) -> RunView:
    """Let a paused run go on; doing it again changes nothing."""
    board = _board(session, run_id, policy)
    run = board.run
    if run.is_over:
        raise RunInTheWay(_state_of(board), fix="Rerun it from its failure, or start it anew.")
    if run.condition is RunCondition.PAUSED:
        run.condition, run.message, board.run_changed = RunCondition.NONE, "", True
        _tell(board, "run.resumed")
        _store(session, board, now, actor)
        claims.release_held(session, run_id, step_id(run_id, 0), step_id(run_id, MAX_SEQ))
    return _view(session, run_id)


def retry_step(
    session: WriteSession,
    run_id: UUID,
    wanted: str,
    now: int,
    *,
    actor: str = "runs",
    policy: RunPolicy = DEFAULT_POLICY,
) -> RunView:
    """Run a failed or cancelled step again, with what was cancelled because of it.

    Args:
        session: The transaction.
        run_id: Its run; opened again if it is over.
        wanted: Id or key of the step.
        now: The instant.
        actor: Who asks.
        policy: The limits.
    """
    board = _board(session, run_id, policy)
    step = next((each for each in board.whole() if wanted in (each.key, str(each.id))), None)
    if step is None:
        raise StepNotFound("The run has no such step.", fix="List the steps of the run.")
    if step.status not in AGAIN or step.undo_of:
        raise RunInTheWay(
            f"The step {step.key} is {step.status}.",
            fix="Only a failed or cancelled step is run again; fork the run to repeat others.",
        )
    if lies_in_satisfied(board, step):
        raise RunInTheWay(
            "The step that it is part of ended well without it.", fix="Fork the run to repeat it."
        )
    return _revive(session, board, [step.seq], now, actor, policy)


def rerun_from_failure(
    session: WriteSession,
    run_id: UUID,
    now: int,
    *,
    actor: str = "runs",
    policy: RunPolicy = DEFAULT_POLICY,
) -> RunView:
    """Run everything again that failed or was cancelled, and keep what completed."""
    board = _board(session, run_id, policy)
    roots = failed_steps(board)
    if not board.run.is_over:
        raise RunInTheWay(_state_of(board), fix="Wait for its end, or retry one step.")
    if not roots:
        raise RunInTheWay(_state_of(board), fix="Nothing in it failed.")
    return _revive(session, board, roots, now, actor, policy)


def _revive(
    session: WriteSession, board: Board, roots: list[int], now: int, actor: str, policy: RunPolicy
) -> RunView:
    run = board.run
    refusal = revival_refusal(run)
    if refusal:
        raise RunInTheWay(refusal, fix="Fork the run, or start it anew.")
    if run.deadline_at is not None and run.deadline_at <= now:
        raise RunInTheWay("Its deadline has passed.", fix="Start it anew with another deadline.")
    for seq in roots:
        if goes_on_without(board, seq):
            raise RunInTheWay(
                "The step that it is part of goes on already.", fix="Wait for the run's end."
            )
        lacking = failed_needs(board, seq, roots)
        if lacking:
            raise RunInTheWay(
                f"{board.steps[seq].key} needs {', '.join(lacking)}, which did not complete.",
                fix="Retry that one, or rerun the run from its failure.",
            )
    was_over = run.is_over
    if was_over:
        refuse_too_many(count_room(session, run.project_id, policy), policy)
    revive(board, roots, now)
    if was_over:
        _tell(board, "run.reopened")
        limits = _view(session, run.id).limits
        if limits and not take_places(session, run, limits):
            run.condition, run.message = RunCondition.LIMITED, LIMITED_MESSAGE
    _store(session, board, now, actor)
    return _view(session, run.id)


def fork_run(
    session: WriteSession,
    run_id: UUID,
    wanted: str,
    now: int,
    *,
    actor: str = "runs",
    params: Mapping[str, Any] | None = None,
    policy: RunPolicy = DEFAULT_POLICY,
) -> RunView:
    """Start a new run that begins at a step and takes over the outputs of what lies before.

    Taken over is every completed or skipped step of the top that does not need the chosen one.

    Args:
        session: The transaction.
        run_id: The run that is forked.
        wanted: Id or key of the step, one of the top.
        now: The instant.
        actor: Who asks.
        params: In place of the run's own.
        policy: The limits.
    """
    board = _board(session, run_id, policy)
    start = next((each for each in board.whole() if wanted in (each.key, str(each.id))), None)
    if start is None:
        raise StepNotFound("The run has no such step.", fix="List the steps of the run.")
    if start.parent or start.undo_of:
        raise RunInTheWay(
            f"{start.key} is part of another step.", fix="Fork from the step it belongs to."
        )
    old = _view(session, run_id)
    top = [each for each in board.whole() if not each.parent and not each.undo_of]
    plan = RunPlan(
        kind=old.kind,
        name=old.name,
        tenant_id=old.tenant_id,
        project_id=old.project_id,
        steps=[each.spec for each in top],
        params=old.params if params is None else params,
        context=old.context,
        source_id=old.source_id,
        source_version=old.source_version,
        trigger="fork",
        on_failure=OnFailure(old.on_failure),
        timeout_ms=old.timeout_ms,
        deadline_at=None if (old.deadline_at or 0) <= now else old.deadline_at,
        limits=old.limits,
        max_parallel=old.max_parallel,
        traceparent=old.traceparent,
        created_by=actor,
    )
    refuse_faults(find_plan_faults(plan, policy.rules))
    refuse_too_many(count_room(session, plan.project_id, policy), policy)
    run = new_run(plan, now)
    steps = [new_step(run.id, place, spec) for place, spec in enumerate(plan.steps, 1)]
    link_steps(steps, now)
    kept = {each.key: each for each in taken_over(board, start.seq)}
    by_key = {each.key: each for each in steps}
    plan_fork(by_key, kept, now)
    for key in kept:  # what another run did is not undone by this one
        by_key[key].spec = replace(by_key[key].spec, undo=None)
    outputs = _outputs_of(
        session, run_id, {each.seq: by_key[each.key].seq for each in kept.values()}
    )
    run.left -= len(kept)
    run.completed = max((each.done_no for each in kept.values()), default=0)
    run.output_bytes = sum(len(each) for each in outputs.values())
    hold_if_limited(session, plan, run, steps)
    repository.insert_runs(session, [(run, plan)], run_id)
    repository.insert_steps(session, steps, outputs)
    session.wake(RUNS)
    return view_of(run, plan, run_id)


def _outputs_of(session: WriteSession, run_id: UUID, numbers: Mapping[int, int]) -> dict[int, str]:
    found = claims.load_outputs(session, [step_id(run_id, seq) for seq in numbers])
    return {numbers[seq]: text for seq, (_, text) in found.items() if text is not None}


def _board(session: WriteSession, run_id: UUID, policy: RunPolicy) -> Board:
    board = board_of(session, run_id, policy)
    if board is None:
        raise RunNotFound("There is no run of that id.", fix="List the runs.")
    return board


def _store(session: WriteSession, board: Board, now: int, actor: str) -> None:
    settle(session, [board], now)
    announce(session, [board], now, actor)
    repository.store_boards(session, [board])
    session.wake(RUNS)


def _view(session: WriteSession, run_id: UUID) -> RunView:
    run = listing.find_run(session, run_id)
    assert run is not None, "its row is locked"
    return run


def _state_of(board: Board) -> str:
    run = board.run
    return f"The run is {run.status}{f' ({run.condition})' if run.condition else ''}."


def _tell(board: Board, kind: str) -> None:
    board.told.append(Told(kind))
