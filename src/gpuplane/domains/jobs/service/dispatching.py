"""Work that a MultiKueue manager dispatches: which worker has it, and that both sides are told.

An offer stays its manager's until it is bound; the attempt that it becomes is its worker's, where
nodes, GPUs and meters are. Owns who was told what; never how an attempt stands.
"""

from collections.abc import Mapping, Sequence

from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules import Attempt
from gpuplane.domains.jobs.rules.offers import OFFERED, Offer
from gpuplane.domains.jobs.service.telling import job_event


def note_dispatched(
    session: WriteSession,
    attempt_id: AttemptId,
    worker_id: ClusterId,
    worker: str,
    now: int,
    reserved_at: int | None = None,
) -> bool:
    """Record which worker an offer was dispatched to; True if that is news.

    The first one stays: work that may have started there is taken back before it starts elsewhere.
    It is told as of `reserved_at`, when the manager reserved its quota, the last instant known
    before the worker admits: what began there since then follows it.
    """
    found = offers_repository.load_offers(session, [attempt_id]).get(attempt_id)
    if found is None or found.state != OFFERED or found.worker_id is not None:
        return False
    offers_repository.update_offers(session, [attempt_id], {"worker_id": worker_id})
    job = repository.find_job(session, found.job_id)
    if job is not None:
        said = f"{job.name} was dispatched to {worker} by ClusterQueue {found.cluster_queue}."
        data = {"attempt": found.number, "queue": found.local_queue, "worker": worker}
        at = now if reserved_at is None else min(now, max(reserved_at, found.offered_at))
        events.record(
            session,
            job_event(job, "job.dispatched", at, actor="kueue", message=said, data=data),
        )
    session.wake("dispatcher")
    return True


def list_offers_to_take(session: ReadSession, worker_id: ClusterId, limit: int) -> list[Offer]:
    """Return offers dispatched to a worker that keeps no record of them yet, oldest first."""
    return offers_repository.list_to_take(session, worker_id, limit)


def list_offers_to_let_go(session: ReadSession, worker_id: ClusterId, limit: int) -> list[Offer]:
    """Return offers to be taken back that a worker was not told of yet, oldest first."""
    return offers_repository.list_to_let_go(session, worker_id, limit)


def note_offers_taken(session: WriteSession, attempt_ids: Sequence[AttemptId], now: int) -> None:
    """Record that workers keep records of offers: they may start there from now on."""
    offers_repository.update_offers(session, attempt_ids, {"taken_at": now})
    session.wake("kueue")


def note_workers_told(session: WriteSession, attempt_ids: Sequence[AttemptId], now: int) -> None:
    """Record that workers were asked to drop offers."""
    offers_repository.update_offers(session, attempt_ids, {"worker_told_at": now})


def list_to_release(
    session: ReadSession, manager_ids: Sequence[ClusterId], limit: int
) -> list[Attempt]:
    """Return attempts that stop or are over and whose manager was not told yet, oldest first."""
    return attempts_repository.list_to_release(session, manager_ids, limit)


def note_managers_told(session: WriteSession, attempts: Sequence[Attempt], now: int) -> None:
    """Record that managers start nothing of these attempts any more."""
    repository.hold_jobs(session, [attempt.job_id for attempt in attempts])
    attempts_repository.update_attempts(
        session, [{"id": attempt.id, "manager_told_at": now} for attempt in attempts]
    )


def load_managers(
    session: ReadSession, attempt_ids: Sequence[AttemptId]
) -> Mapping[AttemptId, ClusterId]:
    """Return the managers of those among attempts and offers that were dispatched."""
    found: dict[AttemptId, ClusterId] = {}
    for attempt in attempts_repository.load_attempts(session, attempt_ids).values():
        if attempt.manager_id is not None and attempt.state != "ended":
            found[attempt.id] = attempt.manager_id
    for offer in offers_repository.load_offers(session, attempt_ids).values():
        if offer.worker_id is not None:
            found[offer.attempt_id] = offer.cluster_id
    return found
