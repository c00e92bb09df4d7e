"""What others hear of runs: events in the transaction of the change."""

from collections.abc import Iterable

from gpuplane.core.runs.boards import Board, Told
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events.service import NewEvent, record_many


def announce(session: WriteSession, boards: Iterable[Board], now: int, actor: str = "runs") -> None:
    """Record what boards tell, and that a run went on, the latter no more often than its rules.

    A step that ends well is told by the run's `run.progressed` alone: a row for each of them
    would cost more than the step.
    """
    found: list[NewEvent] = []
    for board in boards:
        found += [_event(board, told, now, actor) for told in board.told]
        run = board.run
        if board.changed and not run.is_over and now - run.told_at >= board.rules.told_every_ms:
            if run.told_at:
                found.append(_event(board, Told("run.progressed"), now, actor))
            run.told_at, board.run_changed = now, True
    record_many(session, found)


def _event(board: Board, told: Told, now: int, actor: str) -> NewEvent:
    run = board.run
    data: dict[str, object] = {
        "run_kind": run.kind,
        "name": run.name,
        "status": run.status.value,
        "condition": run.condition.value,
        "left": run.left,
        "steps": run.step_count,
    }
    if run.source_id is not None:
        data["source_id"] = str(run.source_id)
    if run.ended_at is not None and run.started_at is not None:
        data["ran_ms"] = run.ended_at - run.started_at
    if told.seq:
        step = board.steps[told.seq]
        data |= {"step": step.key, "handler": step.handler, "attempt": step.attempt}
    return NewEvent(
        kind=told.kind,
        at=now,
        subject_kind="run",
        subject_id=run.id,
        tenant_id=run.tenant_id,
        project_id=run.project_id,
        actor=run.created_by if told.kind == "run.started" and run.created_by else actor,
        reason=told.reason[:50],
        message=told.message,
        data=data,
    )
