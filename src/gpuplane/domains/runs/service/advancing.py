"""The one unit that carries runs on: answers in, what follows from them, the next steps out.

Answers and claims share a transaction, so that a step of a chain costs one durable commit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from gpuplane.core.lifecycle.runs import RunCondition, StepStatus
from gpuplane.core.runs.advancing import apply_reply, needs_whole
from gpuplane.core.runs.boards import Board, Reply, Run, Step, step_id
from gpuplane.core.runs.claiming import expire_run
from gpuplane.core.runs.plans import Awaiting, OnFailure, Sleeping
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.runs.repository import boards as repository
from gpuplane.domains.runs.repository import claims
from gpuplane.domains.runs.rules import Claimed
from gpuplane.domains.runs.service.choosing import Choice, choose
from gpuplane.domains.runs.service.policies import DEFAULT_POLICY, RunPolicy
from gpuplane.domains.runs.service.settling import settle
from gpuplane.domains.runs.service.telling import announce

EXPIRED_BATCH = 50
"""Runs whose time is over that one unit stops: each is loaded whole."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a worker brings and asks for.

    Args:
        owner: Under which name it holds its lease.
        handlers: What it knows.
        replies: Answers that are not stored yet.
        room: Steps it can take.
        share: Steps of one run that it takes at most.
        busy: Steps it runs now, by run.
        now: The instant.
    """

    owner: str
    handlers: frozenset[str]
    replies: Sequence[Reply]
    room: int
    share: int
    busy: dict[UUID, int]
    now: int


@dataclass(slots=True)
class Advance:
    """What a worker has to do next.

    Attributes:
        claimed: Steps to run.
        revoked: Claims, this worker's or another's, that hold no more.
        next_at: When it should look again if nothing wakes it; None for never.
        stale: Answers that came too late: somebody else has the step.
    """

    claimed: list[Claimed] = field(default_factory=list)
    revoked: list[tuple[UUID, int]] = field(default_factory=list)
    next_at: int | None = None
    stale: int = 0


def advance(session: WriteSession, turn: Turn, policy: RunPolicy = DEFAULT_POLICY) -> Advance:
    """Store answers and claim the next steps.

    An answer counts only if its claim still holds: of a worker that lost its lease nothing is
    taken.
    """
    result = Advance()
    now = turn.now
    boards = _load_answered(session, turn, policy, result)
    _expire(session, boards, turn, policy)
    settle(session, boards.values(), now)
    choice = choose(
        session,
        boards,
        Choice(turn.owner, turn.handlers, turn.room, turn.share, turn.busy, now),
        policy,
    )
    announce(session, boards.values(), now)
    repository.store_boards(session, boards.values())
    result.claimed = choice
    for board in boards.values():
        result.revoked += board.revoked
    if len(choice) < turn.room:
        result.next_at = next_look(session, turn.handlers)
    return result


def next_look(session: WriteSession, handlers: Iterable[str]) -> int | None:
    """Return when the next step is due or the next run's time is over."""
    found = (claims.next_due(session, list(handlers)), claims.next_expiry(session))
    return min((at for at in found if at is not None), default=None)


def _load_answered(
    session: WriteSession, turn: Turn, policy: RunPolicy, result: Advance
) -> dict[UUID, Board]:
    """Return the boards of the runs that were answered for, changed by the answers."""
    if not turn.replies:
        return {}
    runs = repository.lock_runs(session, (reply.run_id for reply in turn.replies))
    rows = repository.load_steps(session, (reply.step_id for reply in turn.replies))
    answered = {step.id: step for step in rows}
    held = [reply for reply in turn.replies if _holds(answered, reply, turn.owner)]
    result.stale = len(turn.replies) - len(held)
    boards: dict[UUID, Board] = {}
    for reply in held:
        step = answered[reply.step_id]
        board = boards.get(reply.run_id)
        if board is None:
            board = boards[reply.run_id] = Board(runs[reply.run_id], {}, policy.rules)
        board.steps[step.seq] = step
    load_neighbours(session, boards.values(), [(answered[each.step_id], each) for each in held])
    for board in boards.values():
        _load_whole_if(session, board, held, answered)
    for reply in held:
        board = boards[reply.run_id]
        seq = answered[reply.step_id].seq
        apply_reply(board, board.steps[seq], reply, turn.now)
    return boards


def _holds(answered: dict[UUID, Step], reply: Reply, owner: str) -> bool:
    step = answered.get(reply.step_id)
    return (
        step is not None
        and step.status is StepStatus.RUNNING
        and step.owner == owner
        and step.epoch == reply.epoch
    )


def load_neighbours(
    session: WriteSession, boards: Iterable[Board], answered: Sequence[tuple[Step, Reply]]
) -> None:
    """Load those that wait for the steps that were answered for, and their parents."""
    by_run = {board.run.id: board for board in boards}
    wanted: dict[UUID, None] = {}
    for step, reply in answered:
        known = by_run[step.run_id].steps
        if step.parent and step.parent not in known:
            wanted[step_id(step.run_id, step.parent)] = None
        if isinstance(reply.answer, Sleeping | Awaiting):
            continue
        for seq in step.followers:
            if seq not in known:
                wanted[step_id(step.run_id, seq)] = None
    for step in repository.load_steps(session, wanted):
        by_run[step.run_id].steps.setdefault(step.seq, step)


def _load_whole_if(
    session: WriteSession, board: Board, held: Sequence[Reply], answered: dict[UUID, Step]
) -> None:
    for reply in held:
        if reply.run_id != board.run.id:
            continue
        step = answered[reply.step_id]
        parent = board.steps.get(step.parent)
        if needs_whole(board.run.condition, step, parent, reply):
            board.steps = repository.load_all_steps(session, board.run.id)
            board.is_whole = True
            return


def _expire(
    session: WriteSession, boards: dict[UUID, Board], turn: Turn, policy: RunPolicy
) -> None:
    """Stop runs whose time is over."""
    late = claims.list_expired(session, turn.now, EXPIRED_BATCH)
    free = repository.lock_free_runs(session, [each for each in late if each not in boards])
    for run in free.values():
        boards[run.id] = Board(run, {}, policy.rules)
    for run_id in late:
        board = boards.get(run_id)
        if board is None or not _is_late(board.run, turn.now):
            continue
        if not board.is_whole:
            _complete_board(session, board)
        expire_run(board, turn.now, undoes=board.run.on_failure is OnFailure.ROLLBACK)


def _is_late(run: Run, now: int) -> bool:
    stopping = run.condition in (RunCondition.STOPPING, RunCondition.ROLLING_BACK)
    return run.expires_at is not None and run.expires_at <= now and not (run.is_over or stopping)


def _complete_board(session: WriteSession, board: Board) -> None:
    """Load what a board lacks; what it has was changed already."""
    everything = repository.load_all_steps(session, board.run.id)
    for seq, step in everything.items():
        board.steps.setdefault(seq, step)
    board.is_whole = True
