"""Dispatched work whose worker could not be reached for long: offered elsewhere, or told why not.

What the worker keeps no record of cannot start there, whatever comes back: its Kueue waits for our
word. So it is taken back from its manager alone. What may have started there is started nowhere
else before the worker answers or is deleted. Owns that choice and the reason `WorkerLost`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules import Job
from gpuplane.domains.jobs.rules.offers import Offer
from gpuplane.domains.jobs.service.offering import withdraw_offers

MOST = 100_000
MOVED = "The cluster it was dispatched to cannot be reached, and could not have started it."


@dataclass(frozen=True, slots=True)
class LostWork:
    """What is to be stored of a manager's work on workers that are lost.

    Attributes:
        to_move: Offers that can start on their worker no more.
        words: (reason, sentence) of jobs that wait for their worker, or do so no more.
    """

    to_move: tuple[AttemptId, ...] = ()
    words: tuple[tuple[Job, str, str], ...] = ()


def find_lost_work(
    session: ReadSession, manager_id: ClusterId, lost: Mapping[ClusterId, str]
) -> LostWork:
    """Return what is not stored yet of the work that a manager dispatched.

    Args:
        session: Where to read.
        manager_id: The manager.
        lost: By worker that is lost, why nothing that may run there is started elsewhere.
    """
    listed = offers_repository.list_offers(session, manager_id)
    offers = [each for each in listed if each.cluster_id == manager_id and each.worker_id]
    to_move = tuple(
        each.attempt_id for each in offers if each.worker_id in lost and each.taken_at is None
    )
    jobs = repository.load_jobs(session, [each.job_id for each in offers])
    words = []
    for offer in offers:
        job = jobs.get(offer.job_id)
        if job is None or job.status is not JobStatus.QUEUED or offer.attempt_id in to_move:
            continue
        words.append((job, *_words_of_offer(job, offer, lost)))
    stopping = attempts_repository.list_by_state(session, ["stopping"], manager_id, MOST)
    away = [each for each in stopping if each.manager_id == manager_id]
    held = repository.load_jobs(session, [each.job_id for each in away])
    for attempt in away:
        told = lost.get(attempt.cluster_id)
        if told is not None and attempt.job_id in held:
            words.append((held[attempt.job_id], str(Word.WORKER_LOST), told))
    return LostWork(
        to_move,
        tuple(each for each in words if (each[0].reason, each[0].status_message) != each[1:]),
    )


def note_lost_work(
    session: WriteSession, manager_id: ClusterId, lost: Mapping[ClusterId, str], now: int
) -> int:
    """Take back what can start on a lost worker no more, and say of the rest what it waits for.

    Returns:
        How much was news.
    """
    found = find_lost_work(session, manager_id, lost)
    withdraw_offers(session, found.to_move, MOVED)
    offers_repository.update_offers(session, found.to_move, {"worker_id": None})
    queued = [each for each in found.words if each[0].status is JobStatus.QUEUED]
    repository.note_reasons(
        session,
        [
            {
                "id": job.id,
                "version": job.version,
                "reason": word,
                "status_message": sentence,
                "reason_counts": None,
            }
            for job, word, sentence in queued
        ],
    )
    for job, word, sentence in found.words:
        if job.status is not JobStatus.QUEUED:
            repository.update_job(session, job, now, reason=word, status_message=sentence)
    return len(found.to_move) + len(found.words)


def _words_of_offer(job: Job, offer: Offer, lost: Mapping[ClusterId, str]) -> tuple[str, str]:
    told = None if offer.worker_id is None else lost.get(offer.worker_id)
    if told is not None:
        return str(Word.WORKER_LOST), told
    if job.reason != Word.WORKER_LOST:
        return job.reason, job.status_message
    said = f"{offer.reason}: {offer.message}".strip(": ")
    return str(Word.OFFERED), said or f"It was handed to {offer.queue_name}."
