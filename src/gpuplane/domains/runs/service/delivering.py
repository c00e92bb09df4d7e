"""Events for steps that await them; what comes early is kept until its run is over."""

from typing import Any
from uuid import UUID

from gpuplane.core.runs.boards import Board
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.runs.errors import EventRefused, RunInTheWay
from gpuplane.domains.runs.repository import boards as repository
from gpuplane.domains.runs.repository import claims
from gpuplane.domains.runs.rules import run_key, run_of_key
from gpuplane.domains.runs.service.policies import DEFAULT_POLICY, RUNS, RunPolicy
from gpuplane.kit.ids import new_id

MAX_KEY_CHARS = 300


def deliver(
    session: WriteSession, key: str, payload: Any, now: int, policy: RunPolicy = DEFAULT_POLICY
) -> int:
    """Give an event to every step that awaits its key; return how many there are.

    What nobody awaits yet is kept for the first that will, until the run it names is over.

    Raises:
        EventRefused: If the payload is too large, or too many events are kept for the run.
    """
    text = repository.encode(payload)
    if len(text) > policy.event_bytes:
        raise EventRefused(
            f"The payload of an event has {policy.event_bytes} bytes at most.", field="payload"
        )
    if not key or len(key) > MAX_KEY_CHARS or "\x00" in key:
        raise EventRefused(f"The key of an event has 1 to {MAX_KEY_CHARS} characters.")
    named = run_of_key(key)
    wanted = {named} if named is not None else set()
    locked = repository.lock_runs(session, wanted | set(claims.list_awaiting_runs(session, key)))
    claims.lock_keys(session, [key])
    behind = set(claims.list_awaiting_runs(session, key)) - set(locked)
    if behind:  # they began to wait meanwhile; a circle of waiting is broken by the database
        repository.lock_runs(session, behind)
    given = claims.give_event(session, key, text, now)
    if given:
        session.wake(RUNS)
        return given
    if named is not None:
        run = locked.get(named)
        if run is None or run.is_over:
            return 0
        if claims.count_kept(session, named) >= policy.kept_events:
            raise EventRefused(
                f"{policy.kept_events} events are kept for this run already and nobody awaits them."
            )
    claims.insert_event(session, new_id(), key, named, text, now)
    return 0


def deliver_to_run(
    session: WriteSession,
    run_id: UUID,
    name: str,
    payload: Any,
    now: int,
    policy: RunPolicy = DEFAULT_POLICY,
) -> int:
    """Give a user's event to a run.

    Raises:
        RunInTheWay: If the run is over.
    """
    run = repository.lock_runs(session, [run_id]).get(run_id)
    if run is None or run.is_over:
        raise RunInTheWay("The run is over.", fix="Send events while it is under way.")
    return deliver(session, run_key(run_id, name), payload, now, policy)


def board_of(session: WriteSession, run_id: UUID, policy: RunPolicy) -> Board | None:
    """Return the locked working copy of a run with every step, or None."""
    run = repository.lock_runs(session, [run_id]).get(run_id)
    if run is None:
        return None
    return Board(run, repository.load_all_steps(session, run_id), policy.rules)
