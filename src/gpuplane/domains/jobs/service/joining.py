"""Replicas of a running service that its cluster's Kueue admitted by itself, and that are bound.

Each becomes a row with what it holds, booked and metered from when it began, in the transaction
that sees it. Ranks join in their order, so that every rank below an attempt's next was taken in.
"""

from collections.abc import Sequence

from gpuplane.backends.interface import Phase, ReplicaObservation
from gpuplane.core.ids import AttemptId
from gpuplane.core.lifecycle.jobs import StopIntent
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.errors import JobChanged
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.rules import Attempt, Job
from gpuplane.domains.jobs.rules.scaling import Usage, waiting_of
from gpuplane.domains.jobs.service.bound_places import (
    began_at,
    choose_bookable,
    count_missing_gpus,
    order_for,
    replica_of,
    tell_missing,
)
from gpuplane.domains.jobs.service.stopping import request_stop
from gpuplane.domains.jobs.service.telling import grown_event
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import ReplicaOrder

_UNSCHEDULABLE = f"{Word.UNSCHEDULABLE}: "
"""How a backend begins what the scheduler says of a pod that fits nowhere."""


def join(
    session: WriteSession,
    job: Job,
    attempt: Attempt,
    seen: Sequence[ReplicaObservation],
    now: int,
) -> Attempt:
    """Add the replicas that are seen bound to an attempt; return it as it is now.

    What has ended already is added too: it held something, and ends with the same look.

    Raises:
        JobChanged: If the attempt is not as it was read; nothing may be stored then.
    """
    if not attempt.by_pod or attempt.state in ("stopping", "ended"):
        return attempt
    new = _list_new(attempt, seen)
    listed = nodes.list_nodes(session, attempt.cluster_id) if new else ()
    known = {node.name: node for node in listed}
    added: list[ReplicaOrder] = []
    for each, place in zip(new, choose_bookable(session, job, new, known, now), strict=False):
        order = order_for(job, attempt.id, attempt.cluster_id, [place])
        at = began_at([each], attempt.admitted_at, now)
        if attempt.id not in placements.place_running(session, [order], at).placed:
            break
        added.append(place)
        replica = replica_of(attempt.id, place, each.node_name, None)
        attempts_repository.insert_replica(session, replica)
        told = f"{job.name} has replica {each.rank} on {each.node_name}: Kueue admitted it."
        events.record(session, grown_event(job, attempt, replica, at, actor="kueue", message=told))
    if added:
        done = attempts_repository.update_attempt(
            session, attempt, next_rank=added[-1].rank + 1, growth_reason="", growth_message=""
        )
        if not done:
            raise JobChanged(f"{job.name} changed while replicas joined it.")
        missing = count_missing_gpus(job, added)
        tell_missing(session, job, attempt.number, missing, now)
    elif _is_deleted(attempt, seen):
        told = next(each.message for each in seen if each.reason == Word.DELETED)
        request_stop(session, job, StopIntent.FAIL, Word.DELETED, told, now, actor="cluster")
    else:
        _note_waiting(session, attempt, seen)
        return attempt
    return attempts_repository.find_attempt(session, attempt.id) or attempt


def list_unjoined(session: ReadSession, seen: Sequence[ReplicaObservation]) -> set[AttemptId]:
    """Return the attempts of which replicas are seen bound that are not recorded yet."""
    by_attempt: dict[AttemptId, list[ReplicaObservation]] = {}
    for each in seen:
        if each.by_pod and each.node_name:
            by_attempt.setdefault(each.ref.attempt_id, []).append(each)
    found = attempts_repository.load_attempts(session, list(by_attempt))
    return {
        key
        for key, attempt in found.items()
        if attempt.state not in ("stopping", "ended") and _list_new(attempt, by_attempt[key])
    }


def note_replicas_waiting(
    session: WriteSession, attempt_id: AttemptId, *, message: str, usage: Usage
) -> bool:
    """Store what Kueue says of the replicas of a running service; True if it is news.

    Args:
        session: Where to write.
        attempt_id: The attempt.
        message: Why the next replica is not admitted, in Kueue's words; empty where none waits.
        usage: What those count together that are admitted.
    """
    attempt = attempts_repository.find_attempt(session, attempt_id)
    if attempt is None or not attempt.by_pod or attempt.state in ("stopping", "ended"):
        return False
    told = waiting_of(attempt, message)
    if (attempt.growth_reason, attempt.growth_message, attempt.quota_usage) == (*told, usage):
        return False
    attempts_repository.note_growth(
        session, attempt.id, attempt.version, *told, [list(each) for each in usage]
    )
    return True


def _list_new(attempt: Attempt, seen: Sequence[ReplicaObservation]) -> list[ReplicaObservation]:
    new = [each for each in seen if each.by_pod and each.node_name]
    new = [each for each in new if each.rank >= attempt.next_rank]
    return sorted(new, key=lambda each: each.rank)


def _is_deleted(attempt: Attempt, seen: Sequence[ReplicaObservation]) -> bool:
    """Return whether a service without any replica was taken away by somebody else."""
    return not attempt.replicas and any(
        each.by_pod and each.phase is Phase.LOST and each.reason == Word.DELETED for each in seen
    )


def _note_waiting(
    session: WriteSession, attempt: Attempt, seen: Sequence[ReplicaObservation]
) -> None:
    """Store why the next replica is admitted and not bound; why it is not, Kueue tells."""
    waiting = [each for each in seen if each.by_pod and each.phase is Phase.STARTING]
    waiting = [each for each in waiting if each.rank >= attempt.next_rank]
    if not waiting or attempt.growth_reason == Word.OFFERED:
        return
    message = waiting[-1].message
    word = str(Word.START_FAILED) if message else ""
    if message.startswith(_UNSCHEDULABLE):
        word, message = str(Word.UNSCHEDULABLE), message.removeprefix(_UNSCHEDULABLE)
    if (attempt.growth_reason, attempt.growth_message) != (word, message):
        attempts_repository.note_growth(session, attempt.id, attempt.version, word, message)
