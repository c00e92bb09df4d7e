"""Empties a cluster that is being deleted: services move, training writes a checkpoint, batch ends.

What runs is asked to stop and queued again. Work that may run nowhere else is cancelled: at once
where it waits, and when it would be moved where it runs.
"""

from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.ids import ClusterId, JobId
from gpuplane.core.lifecycle.jobs import JobStatus, StopIntent
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobType
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules import Attempt, Job
from gpuplane.domains.jobs.rules.due import Deed, judge_move, mark_asked
from gpuplane.domains.jobs.rules.offers import Offer
from gpuplane.domains.jobs.service.offering import withdraw_offers
from gpuplane.domains.jobs.service.stopping import end_without_attempt, request_stop

OPEN = ("admitted", "starting", "running", "stopping")
MOST = 100_000
MOVED = "Its cluster is being deleted; it is moved."
CANCELLED = "Its cluster is being deleted, and it may run nowhere else: it is cancelled."
BOUND = "It was to run on"


class Parting(StrEnum):
    """How work leaves a cluster that is being deleted."""

    MIGRATE = "migrate"
    CHECKPOINT_THEN_MOVE = "checkpoint_then_move"
    WAIT = "wait"


PARTINGS = {
    JobType.SERVICE: Parting.MIGRATE,
    JobType.TRAINING: Parting.CHECKPOINT_THEN_MOVE,
    JobType.BATCH: Parting.WAIT,
}


@dataclass(frozen=True, slots=True)
class Leaving:
    """One job on a cluster that is being deleted.

    Attributes:
        parting: What is done with it.
        lost_s: Seconds of its work that are lost if it is ended now: since its last checkpoint.
        may_move: Whether another cluster may take it; else it is cancelled.
    """

    job_id: JobId
    name: str
    job_type: str
    status: str
    parting: Parting
    lost_s: int
    may_move: bool


@dataclass(frozen=True, slots=True)
class Emptied:
    """What a look at a cluster that is being emptied found.

    Attributes:
        open: Attempts that are not over.
        offers: Offers that the cluster may still start; they are being taken back.
        to_checkpoint: Attempts to be asked for a checkpoint now.
    """

    open: tuple[Attempt, ...] = ()
    offers: tuple[Offer, ...] = ()
    to_checkpoint: tuple[Attempt, ...] = ()


def list_leaving(session: ReadSession, cluster_id: ClusterId, now: int) -> list[Leaving]:
    """Return what runs on a cluster or waits for it alone, and what becomes of it."""
    found = []
    for attempt in attempts_repository.list_by_state(session, OPEN, cluster_id, MOST):
        job = repository.find_job(session, attempt.job_id)
        if job is not None:
            found.append(_leaving(job, attempt, now))
    for job in repository.list_pinned(session, cluster_id):
        found.append(_leaving(job, None, now))
    return found


def empty_cluster(
    session: WriteSession, cluster_id: ClusterId, began: int, until: int, *, force: bool, now: int
) -> Emptied:
    """Take the next step with each job on a cluster; repeat until nothing is open.

    Args:
        session: Where to write.
        cluster_id: The cluster.
        began: When the deletion was asked for.
        until: When batch and training work is moved even unfinished and without a checkpoint.
        force: End everything now, without a checkpoint.
        now: The instant.
    """
    to_checkpoint: list[Attempt] = []
    open_ones = attempts_repository.list_by_state(session, OPEN, cluster_id, MOST)
    for attempt in open_ones:
        job = repository.find_job(session, attempt.job_id)
        if job is None or attempt.state == "stopping":
            continue
        parting = PARTINGS[job.spec.job_type]
        if force or parting is Parting.MIGRATE or now >= until:
            _stop(session, job, now, grace_s=0 if force else None)
        elif parting is Parting.CHECKPOINT_THEN_MOVE:
            step = judge_move(job, began, until, now)
            if step is not None and step.deed is Deed.ASK_CHECKPOINT:
                repository.mark_warned(session, job.id, mark_asked(job.warned, began))
                to_checkpoint.append(attempt)
            elif step is not None:
                _stop(session, job, now, grace_s=None)
    name = clusters.get_cluster(session, cluster_id).name
    ended = _end_pinned(session, cluster_id, f"{BOUND} {name} alone, which is being deleted.", now)
    offers = offers_repository.list_offers(session, cluster_id)
    left = [each for each in offers if not each.is_withdrawing]
    for is_ended, said in ((False, MOVED), (True, CANCELLED)):
        attempts = [each.attempt_id for each in left if (each.job_id in ended) is is_ended]
        withdraw_offers(session, attempts, said)
    return Emptied(tuple(open_ones), tuple(offers), tuple(to_checkpoint))


def drop_offers(session: WriteSession, cluster_id: ClusterId) -> int:
    """Drop what was in the hands of a cluster that is gone, whose jobs are placed elsewhere.

    What was only dispatched to it is taken back by the manager that did.
    """
    found = offers_repository.list_offers(session, cluster_id)
    left = [each.attempt_id for each in found if each.cluster_id == cluster_id]
    offers_repository.delete_offers(session, left)
    away = [each.attempt_id for each in found if each.cluster_id != cluster_id]
    withdraw_offers(session, away, "The cluster it was dispatched to is gone.")
    offers_repository.update_offers(session, away, {"worker_id": None, "taken_at": None})
    session.wake("scheduler")
    return len(left)


def end_pinned(session: WriteSession, cluster_id: ClusterId, name: str, now: int) -> int:
    """Cancel jobs that may run on a cluster alone that is gone; return how many."""
    return len(_end_pinned(session, cluster_id, f"{BOUND} {name} alone, which was deleted.", now))


def _end_pinned(session: WriteSession, cluster_id: ClusterId, said: str, now: int) -> set[JobId]:
    return {
        job.id
        for job in repository.list_pinned(session, cluster_id)
        if end_without_attempt(session, job, JobStatus.CANCELLED, Word.NO_CLUSTER, said, now)
    }


def _stop(session: WriteSession, job: Job, now: int, *, grace_s: int | None) -> None:
    """Stop what runs: it is queued again where another cluster may take it, else cancelled."""
    if job.requested_cluster_id is None:
        intent, word, said = StopIntent.REQUEUE, Word.DRAINED, MOVED
    else:
        intent, word, said = StopIntent.CANCEL, Word.NO_CLUSTER, CANCELLED
    request_stop(session, job, intent, word, said, now, grace_s=grace_s)


def _leaving(job: Job, attempt: Attempt | None, now: int) -> Leaving:
    since = None if attempt is None else attempt.started_at
    if since is not None and job.last_checkpoint_at is not None:
        since = max(since, job.last_checkpoint_at)
    return Leaving(
        job_id=job.id,
        name=job.name,
        job_type=str(job.spec.job_type),
        status=str(job.status),
        parting=PARTINGS[job.spec.job_type],
        lost_s=0 if since is None else max(0, now - since) // 1000,
        may_move=job.requested_cluster_id is None,
    )
