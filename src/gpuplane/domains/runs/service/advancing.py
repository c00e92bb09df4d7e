"""The one unit that carries runs on: answers in, what follows from them, the next steps out.

Answers and claims share a transaction, so that a step of a chain costs one durable commit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from gpuplane.core.lifecycle.runs import RunCondition, StepStatus
from gpuplane.core.runs.advancing import apply_reply
from gpuplane.core.runs.boards import Board, Reply, Run, Step, earliest, step_id
from gpuplane.core.runs.claiming import expire_run
from gpuplane.core.runs.plans import Awaiting, OnFailure, Sleeping
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.runs.repository import boards as repository
from gpuplane.domains.runs.repository import claims
from gpuplane.domains.runs.rules import Claimed
from gpuplane.domains.runs.service.choosing import Choice, board_on, choose
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
        looks: Whether to look for what is due apart from what follows from the answers.
        now: The instant.
    """

    owner: str
    handlers: frozenset[str]
    replies: Sequence[Reply]
    room: int
    share: int
    busy: dict[UUID, int]
    looks: bool
    now: int


@dataclass(slots=True)
class Advance:
    """What a worker has to do next.

    Attributes:
        claimed: Steps to run.
        revoked: Claims, this worker's or another's, that hold no more.
        next_at: When something is due next, as far as this turn saw; None for never.
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
    if turn.looks:
        _expire(session, boards, turn, policy)
    settle(session, boards.values(), now)
    choice = choose(
        session,
        boards,
        Choice(turn.owner, turn.handlers, turn.room, turn.share, turn.busy, turn.looks, now),
        policy,
    )
    announce(session, boards.values(), now)
    repository.store_boards(session, boards.values())
    result.claimed = choice
    for board in boards.values():
        result.revoked += board.revoked
    if turn.looks and len(choice) < turn.room:
        result.next_at = next_look(session, turn.handlers)
    else:
        result.next_at = _next_on(boards.values())
    return result


def next_look(session: ReadSession, handlers: Iterable[str]) -> int | None:
    """Return when the next step is due or the next run's time is over."""
    return earliest(claims.next_due(session, list(handlers)), claims.next_expiry(session))


def _next_on(boards: Iterable[Board]) -> int | None:
    """Return when the next step or run of those that changed is due."""
    dues = [
        step.due_at
        for board in boards
        for seq in board.changed
        if (step := board.steps.get(seq)) is not None
    ]
    added = [step.due_at for board in boards for step in board.added]
    return earliest(*dues, *added, *(board.run.expires_at for board in boards))


def _load_answered(
    session: WriteSession, turn: Turn, policy: RunPolicy, result: Advance
) -> dict[UUID, Board]:
    """Return the boards of the runs that were answered for, changed by the answers."""
    if not turn.replies:
        return {}
    runs = repository.lock_runs(session, (reply.run_id for reply in turn.replies))
    rows = repository.load_steps(session, _wanted(turn.replies))
    loaded = {step.id: step for step in rows}
    held = [reply for reply in turn.replies if _holds(loaded, reply, turn.owner)]
    result.stale = len(turn.replies) - len(held)
    boards = {
        run_id: board_on(session, runs[run_id], policy)
        for run_id in dict.fromkeys(reply.run_id for reply in held)
    }
    for step in rows:
        if step.run_id in boards:
            boards[step.run_id].steps[step.seq] = step
    for reply in held:
        apply_reply(boards[reply.run_id], loaded[reply.step_id], reply, turn.now)
    return boards


def _holds(loaded: dict[UUID, Step], reply: Reply, owner: str) -> bool:
    step = loaded.get(reply.step_id)
    return (
        step is not None
        and step.status is StepStatus.RUNNING
        and step.owner == owner
        and step.epoch == reply.epoch
    )


def _wanted(replies: Sequence[Reply]) -> list[UUID]:
    """Return the steps that were answered for, their parents and those that wait for them."""
    found: dict[UUID, None] = {}
    for reply in replies:
        found[reply.step_id] = None
        if not isinstance(reply.answer, Sleeping | Awaiting):
            for seq in reply.near:
                found[step_id(reply.run_id, seq)] = None
    return list(found)


def _expire(
    session: WriteSession, boards: dict[UUID, Board], turn: Turn, policy: RunPolicy
) -> None:
    """Stop runs whose time is over."""
    late = claims.list_expired(session, turn.now, EXPIRED_BATCH)
    free = repository.lock_free_runs(session, [each for each in late if each not in boards])
    for run in free.values():
        boards[run.id] = board_on(session, run, policy)
    for run_id in late:
        board = boards.get(run_id)
        if board is None or not _is_late(board.run, turn.now):
            continue
        expire_run(board, turn.now, undoes=board.run.on_failure is OnFailure.ROLLBACK)


def _is_late(run: Run, now: int) -> bool:
    stopping = run.condition in (RunCondition.STOPPING, RunCondition.ROLLING_BACK)
    return run.expires_at is not None and run.expires_at <= now and not (run.is_over or stopping)
