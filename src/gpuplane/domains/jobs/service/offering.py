"""Offers: queued jobs handed to a cluster that admits by itself, and what comes back of them.

A job stays queued while it is offered; when the cluster has bound every replica the offer becomes
an attempt with allocations, in one unit of work, and lives as any other. While an offer is there
its job is offered nowhere else; it goes only once its backend has nothing of it any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuplane.backends.interface import ReplicaObservation
from gpuplane.core.ids import AttemptId, ClusterId, JobId
from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import DeploymentType
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules import Job, decide_after_failure
from gpuplane.domains.jobs.rules.offers import OFFERED, WITHDRAWING, Offer
from gpuplane.domains.jobs.service.binding import end, has_ended, is_bound, settle
from gpuplane.domains.jobs.service.bound_places import OVER
from gpuplane.domains.jobs.service.observing import Chance, Seal
from gpuplane.domains.jobs.service.taking import list_takers
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.kit.ids import new_id


@dataclass(frozen=True, slots=True)
class NewOffer:
    """A job that the scheduler hands to a cluster, at the version it was decided on."""

    job_id: JobId
    version: int
    cluster_id: ClusterId
    local_queue: str
    """`cluster/local queue`."""
    cluster_queue: str
    sentences: tuple[str, ...] = ()
    """Why this cluster."""


def list_offered_jobs(session: ReadSession) -> set[JobId]:
    """Return the jobs that are in the hands of some cluster."""
    return offers_repository.list_offered_jobs(session)


def list_offers(session: ReadSession, cluster_id: ClusterId | None = None) -> list[Offer]:
    """Return the offers of a cluster or of all, oldest first."""
    return offers_repository.list_offers(session, cluster_id)


def list_offers_to_ensure(session: ReadSession, cluster_id: ClusterId, limit: int) -> list[Offer]:
    """Return offers that a cluster was not told of yet, oldest first."""
    return offers_repository.list_to_ensure(session, cluster_id, limit)


def list_offers_to_evict(session: ReadSession, cluster_id: ClusterId, limit: int) -> list[Offer]:
    """Return offers to be taken back that a cluster was not told of yet, oldest first."""
    return offers_repository.list_to_evict(session, cluster_id, limit)


def has_void_offers(session: ReadSession) -> bool:
    """Return whether jobs are offered that do not stand in line any more."""
    return bool(offers_repository.list_void(session, 1))


def offer(session: WriteSession, new: Sequence[NewOffer], now: int) -> int:
    """Hand queued jobs to their clusters; those that moved on meanwhile are passed over.

    So are those whose cluster, since the scheduler looked, admits by itself no more or is frozen:
    nobody there would ever answer.
    """
    takers = list_takers(session, [each.cluster_id for each in new])
    locked = repository.lock_jobs(session, [each.job_id for each in new])
    taken = offers_repository.list_offered_jobs(session)
    fresh: list[tuple[Job, NewOffer, Offer]] = []
    for each in new:
        job = locked.get(each.job_id)
        if job is None or job.version != each.version or job.status is not JobStatus.QUEUED:
            continue
        if job.id not in taken and each.cluster_id in takers:
            fresh.append((job, each, _offer_of(job, each, now)))
    offers_repository.insert_offers(session, [made for _, _, made in fresh])
    repository.update_many(
        session,
        [
            {
                "id": job.id,
                "attempt_count": made.number,
                "cluster_id": made.cluster_id,
                "queue": made.local_queue,
                "reason": str(Word.OFFERED),
                "status_message": f"It was handed to LocalQueue {made.queue_name}.",
                "reason_counts": None,
                "updated_at": now,
            }
            for job, _, made in fresh
        ],
    )
    events.record_many(
        session,
        [
            job_event(
                replace(job, cluster_id=made.cluster_id),
                "job.offered",
                now,
                actor="scheduler",
                message=f"{job.name} was handed to ClusterQueue {made.cluster_queue}.",
                data={"attempt": made.number, "queue": made.local_queue},
            )
            for job, _, made in fresh
        ],
    )
    if fresh:
        session.wake("dispatcher")
    return len(fresh)


def note_offers_ensured(session: WriteSession, attempt_ids: Sequence[AttemptId], now: int) -> None:
    """Record that backends took offers on."""
    offers_repository.update_offers(session, attempt_ids, {"ensured_at": now})


def note_offers_evicted(session: WriteSession, attempt_ids: Sequence[AttemptId], now: int) -> None:
    """Record that backends were asked to drop offers."""
    offers_repository.update_offers(session, attempt_ids, {"evict_sent_at": now})


def withdraw_void_offers(session: WriteSession, limit: int) -> int:
    """Take back offers whose jobs do not stand in line any more; return how many."""
    void = offers_repository.list_void(session, limit)
    offers_repository.update_offers(
        session,
        [each.attempt_id for each in void],
        {
            "state": WITHDRAWING,
            "evict_sent_at": None,
            "worker_told_at": None,
            "reason": "",
            "message": "Its job does not stand in line any more.",
        },
    )
    return len(void)


def withdraw_offers(
    session: WriteSession, attempt_ids: Sequence[AttemptId], message: str = ""
) -> None:
    """Take offers back; a job that stands in line is offered anew once its offer is gone.

    The backend is asked again where it was asked before: what it forbids is seen, and only then
    nothing of an offer can start any more.
    """
    changes = {
        "state": WITHDRAWING,
        "evict_sent_at": None,
        "worker_told_at": None,
        "message": message,
    }
    offers_repository.update_offers(session, attempt_ids, changes)
    if attempt_ids:
        session.wake("dispatcher")


def _forget_offers(session: WriteSession, attempt_ids: Sequence[AttemptId]) -> None:
    """Drop offers that were seen to be over or forbidden."""
    offers_repository.delete_offers(session, attempt_ids)
    if attempt_ids:
        session.wake("scheduler")


def note_offer_failed(
    session: WriteSession, attempt_id: AttemptId, word: str, message: str, chance: Chance, now: int
) -> None:
    """Record that a backend could not take an offer on: another try later, or failed.

    Part of it may be there all the same, so it is taken back and not just dropped.
    """
    found = offers_repository.load_offers(session, [attempt_id]).get(attempt_id)
    if found is None:
        return
    job = repository.lock_jobs(session, [found.job_id]).get(found.job_id)
    withdraw_offers(session, [attempt_id], message)
    if job is None or job.status is not JobStatus.QUEUED:
        return
    after = decide_after_failure(job, word, message, chance(), now)
    changes = after.columns(now)
    if after.status is JobStatus.FAILED:
        changes["actual_end"] = now
    repository.update_job(session, job, now, **changes)
    events.record(
        session,
        job_event(
            job,
            f"job.{after.status}",
            now,
            reason=after.reason,
            message=after.message,
            data={"from_status": str(job.status), "attempt": found.number},
        ),
    )
    session.wake("monitor", "scheduler")


def note_admission(
    session: WriteSession,
    attempt_id: AttemptId,
    *,
    reason: str,
    message: str,
    admitted_at: int | None,
    usage_of: Mapping[FlavorResource, int],
    cluster_queue: str,
) -> bool:
    """Store what its cluster says of an offer, in the cluster's own words; True if it is news."""
    found = offers_repository.load_offers(session, [attempt_id]).get(attempt_id)
    if found is None or found.state != OFFERED:
        return False
    counted = tuple((pair.flavor, pair.resource, n) for pair, n in sorted(usage_of.items()))
    said = (reason, message, admitted_at, counted)
    if (found.reason, found.message, found.admitted_at, found.usage) == said:
        return False
    changes: dict[str, Any] = {
        "reason": reason,
        "message": message,
        "admitted_at": admitted_at,
        "usage": [list(each) for each in counted],
    }
    if cluster_queue:
        changes["cluster_queue"] = cluster_queue
    job = repository.find_job(session, found.job_id)
    is_chart = job is not None and job.spec.deployment_type is DeploymentType.HELM
    if is_chart and admitted_at not in (None, found.admitted_at):
        # A chart is installed once it may run: its backend is asked again.
        changes["ensured_at"] = None
        session.wake("dispatcher")
    offers_repository.update_offers(session, [attempt_id], changes)
    if job is not None:
        is_cut_off = reason == Word.WORKER_NOT_CONNECTED
        said_in_full = f"{reason}: {message}" if message else reason
        repository.note_reasons(
            session,
            [
                {
                    "id": job.id,
                    "version": job.version,
                    "reason": reason if is_cut_off else str(Word.OFFERED),
                    "status_message": message if is_cut_off else said_in_full,
                    "reason_counts": None,
                }
            ],
        )
    return True


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of offers that were looked at."""

    bound: tuple[AttemptId, ...] = ()
    refused: tuple[AttemptId, ...] = ()
    """Bound on the cluster, and not recorded yet: the books say that something is held there."""


def settle_offers(
    session: WriteSession,
    seen: Sequence[ReplicaObservation],
    seal: Seal,
    chance: Chance,
    now: int,
) -> Settled:
    """Make attempts of offers whose every replica is bound, and drop those that are over.

    What ran to its end before it was recorded ends its job by how it ended, and never runs again.

    Args:
        seen: What is seen of offered attempts; every replica of each, or none.
        seal: Seals a sensitive output of what has ended.
        chance: Gives a number in [-1, 1] for the jitter of retries.
        now: The instant; what they hold is held from now on.
    """
    by_attempt: dict[AttemptId, dict[int, ReplicaObservation]] = {}
    for each in seen:
        by_attempt.setdefault(each.ref.attempt_id, {})[each.rank] = each
    offers = offers_repository.load_offers(session, list(by_attempt))
    jobs = repository.lock_jobs(session, [each.job_id for each in offers.values()])
    bound: list[AttemptId] = []
    refused: list[AttemptId] = []
    over: list[AttemptId] = []
    lost: list[AttemptId] = []
    for attempt_id, found in offers.items():
        by_rank = by_attempt[attempt_id]
        job = jobs.get(found.job_id)
        is_over = all(each.phase in OVER or each.forbids for each in by_rank.values())
        binds = job is not None and is_bound(job, by_rank)
        if job is None or job.status is not JobStatus.QUEUED:
            # One that was thought not to have started may have run all the same: it is done.
            waits = job is not None and job.status is JobStatus.PENDING
            if job is not None and waits and has_ended(job, by_rank, completed=True):
                in_line = _stand_in_line(session, job, now)
                end(session, in_line, found, by_rank, seal, chance, now)
            elif is_over and found.may_be_dropped:
                over.append(attempt_id)
        elif found.is_withdrawing:
            if has_ended(job, by_rank, completed=True):
                end(session, job, found, by_rank, seal, chance, now)
            elif is_over and found.may_be_dropped:
                over.append(attempt_id)
        elif has_ended(job, by_rank):
            end(session, job, found, by_rank, seal, chance, now)
        elif binds and settle(session, job, found, by_rank, now):
            bound.append(attempt_id)
        elif found.worker_id is None and any(each.forbids for each in by_rank.values()):
            over.append(attempt_id)
        elif is_over:
            lost.append(attempt_id)
        elif binds:
            refused.append(attempt_id)
    _forget_offers(session, over)
    withdraw_offers(session, lost, "Nothing says how it ended; it is taken back.")
    return Settled(tuple(bound), (*refused, *lost))


def _stand_in_line(session: WriteSession, job: Job, now: int) -> Job:
    """Put a job that waits for another try back in line: from there alone it may have run."""
    repository.update_job(
        session,
        job,
        now,
        status=str(JobStatus.QUEUED),
        condition=str(Condition.NONE),
        condition_at=None,
        due_at=None,
    )
    message = "It was thought not to have started, and has run."
    data = {"from_status": str(job.status)}
    events.record(session, job_event(job, "job.queued", now, message=message, data=data))
    return repository.lock_jobs(session, [job.id])[job.id]


def _offer_of(job: Job, new: NewOffer, now: int) -> Offer:
    return Offer(
        attempt_id=AttemptId(new_id()),
        job_id=job.id,
        number=job.attempt_count + 1,
        cluster_id=new.cluster_id,
        local_queue=new.local_queue,
        cluster_queue=new.cluster_queue,
        state=OFFERED,
        offered_at=now,
        ensured_at=None,
        admitted_at=None,
        evict_sent_at=None,
        usage=(),
        explanation={"score": 0, "sentences": list(new.sentences)},
        reason="",
        message="",
    )
