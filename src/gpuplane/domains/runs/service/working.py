"""Leases of workers: one row each, whose end gives every step it runs to others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from gpuplane.core.runs.boards import Board
from gpuplane.core.runs.claiming import park_step
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.runs.repository import boards as repository
from gpuplane.domains.runs.repository import claims, places
from gpuplane.domains.runs.service.policies import DEFAULT_POLICY, RUNS, RunPolicy
from gpuplane.domains.runs.service.settling import wake_waiting
from gpuplane.domains.runs.service.telling import announce

PARK_BATCH = 200
WAITED_BATCH = 200
EVENT_KEPT_MS = 3_600_000
"""How long an event is kept whose key names no run and that nobody awaits."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker learns when it renews its lease.

    Args:
        alive: False when its lease was taken away: nothing it runs is its own any more.
        taken: Steps of dead workers that are due again.
    """

    alive: bool
    taken: int


def register_worker(
    session: WriteSession, owner: str, handlers: Iterable[str], now: int, lease_ms: int
) -> int:
    """Begin a worker's lease; return how many steps of dead workers are due again.

    On SQLite there is one process a home, so that whoever else had steps is dead.
    """
    names = tuple(sorted(handlers))
    if session.dialect == "sqlite":
        claims.delete_workers(session, [each.owner for each in claims.list_workers(session)])
    claims.insert_worker(session, claims.Worker(owner, names, now + lease_ms))
    claims.unpark(session, names, now)
    return _bury(session, now)


def beat(session: WriteSession, owner: str, now: int, lease_ms: int) -> Beat:
    """Renew a worker's lease, take over from dead ones, park what nobody can do."""
    alive = claims.renew_worker(session, owner, now + lease_ms)
    taken = _bury(session, now)
    for key in places.list_waited_for(session, WAITED_BATCH):
        places.lock_places(session, [key])
        wake_waiting(session, key, now)
    return Beat(alive, taken)


def has_upkeep(session: ReadSession, owner: str) -> bool:
    """Return whether a beat would do more than renew this worker's lease.

    Another worker is there whose lease may end, this one's was taken away, somebody's steps are
    nobody's, or a place is waited for.
    """
    workers = [each.owner for each in claims.list_workers(session)]
    if workers != [owner] or places.list_waited_for(session, 1):
        return True
    return any(each != owner for each in claims.list_owners(session))


def _bury(session: WriteSession, now: int) -> int:
    """Forget workers whose lease is over and let others run their steps."""
    workers = claims.list_workers(session)
    gone = [each.owner for each in workers if each.expires_at <= now]
    living = {each.owner for each in workers} - set(gone)
    gone += [owner for owner in claims.list_owners(session) if owner not in living]
    if not gone:
        return 0
    claims.delete_workers(session, gone)
    return claims.take_over(session, gone, now)


def park_unknown(session: WriteSession, now: int, policy: RunPolicy = DEFAULT_POLICY) -> int:
    """Set steps aside whose handler no living worker knows; return how many."""
    known = {name for each in claims.list_workers(session) for name in each.handlers}
    found = claims.list_unknown(session, known, now, PARK_BATCH)
    if not found:
        return 0
    runs = repository.lock_free_runs(session, [run_id for _, run_id in found])
    boards = {run_id: Board(run, {}, policy.rules) for run_id, run in runs.items()}
    rows = repository.load_steps(session, [step for step, run_id in found if run_id in boards])
    count = 0
    for step in rows:
        if step.due_at is not None and step.due_at <= now and step.handler not in known:
            board = boards[step.run_id]
            board.steps[step.seq] = step
            park_step(board, step)
            count += 1
    announce(session, boards.values(), now)
    repository.store_boards(session, boards.values())
    return count


def has_unknown(session: ReadSession, now: int) -> bool:
    """Return whether something is due that no living worker knows how to do."""
    known = {name for each in claims.list_workers(session) for name in each.handlers}
    return bool(claims.list_unknown(session, known, now, 1))


def list_owned(session: ReadSession, owner: str) -> dict[UUID, int]:
    """Return the epoch of every step that a worker runs, to find what was taken from it."""
    return claims.list_owned(session, owner)


def give_back(session: WriteSession, owner: str, lost: Sequence[tuple[UUID, int]], now: int) -> int:
    """Let steps be claimed again that a worker claimed and does not run; return how many."""
    session.wake(RUNS)
    return claims.give_back(session, owner, lost, now)


def retire_worker(session: WriteSession, owner: str, now: int) -> None:
    """End a worker's lease: others take its steps at once."""
    claims.delete_workers(session, [owner])
    claims.take_over(session, [owner], now)
