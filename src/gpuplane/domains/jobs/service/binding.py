"""What a cluster that admits by itself has bound: an offer becomes an attempt with what it has."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuplane.backends.interface import ReplicaObservation
from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules import Attempt, Job
from gpuplane.domains.jobs.rules.offers import Offer
from gpuplane.domains.jobs.rules.scaling import find_bounds
from gpuplane.domains.jobs.service.bound_places import (
    NO_NODE,
    OVER,
    began_at,
    choose_bookable,
    choose_places,
    count_missing_gpus,
    order_for,
    replica_of,
    runs_for_long,
    tell_missing,
)
from gpuplane.domains.jobs.service.observing import Chance, Seal, take_in
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.domains.jobs.service.timing import next_due
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import ReplicaOrder
from gpuplane.domains.usage import service as usage


def has_ended(
    job: Job, by_rank: Mapping[int, ReplicaObservation], *, completed: bool = False
) -> bool:
    """Return whether every rank is over and it is known how: well, if `completed` is asked.

    Where each pod is admitted by itself, another comes for one that is over.
    """
    if is_by_pod(by_rank):
        return False
    ranks = [by_rank.get(rank) for rank in _ranks(job, by_rank)]
    ends = [each for each in ranks if each and each.phase in OVER and not each.forbids]
    if not ends or len(ends) < len(ranks):
        return False
    well = [each.reason == Word.COMPLETED for each in ends]
    return all(well) if completed else any(well) or any(e.exit_code is not None for e in ends)


def end(
    session: WriteSession,
    job: Job,
    found: Offer,
    by_rank: Mapping[int, ReplicaObservation],
    seal: Seal,
    chance: Chance,
    now: int,
) -> None:
    """Make an attempt of an offer that ran to its end, with what it held meanwhile, and end it."""
    known = {node.name: node for node in nodes.list_nodes(session, found.place_id)}
    seen = [by_rank[rank] for rank in _ranks(job, by_rank)]
    places = choose_places(session, job, seen, known)
    attempt = _attempt_of(job, found, places, seen, max(by_rank, default=-1) + 1, now)
    order = order_for(job, attempt.id, attempt.cluster_id, places)
    placements.place_running(session, [order], began_at(seen, found.offered_at, now))
    _become(session, job, found, attempt, now)
    tell_missing(session, job, found.number, count_missing_gpus(job, places), now)
    ended = [  # what has an end had begun, though nothing may say when
        replace(each, started_at=each.started_at or each.ended_at or now)
        for each in by_rank.values()
    ]
    take_in(session, ended, seal, chance, now)


def is_bound(job: Job, by_rank: Mapping[int, ReplicaObservation]) -> bool:
    """Return whether every rank is on a node; the first, where each pod is admitted by itself."""
    if is_by_pod(by_rank):
        return any(each.node_name and each.phase not in OVER for each in by_rank.values())
    ranks = _ranks(job, by_rank)
    return bool(ranks) and all(rank in by_rank and by_rank[rank].node_name for rank in ranks)


def is_by_pod(by_rank: Mapping[int, ReplicaObservation]) -> bool:
    """Return whether a cluster admits each pod of what it shows by itself."""
    return any(each.by_pod for each in by_rank.values())


def _ranks(job: Job, by_rank: Mapping[int, ReplicaObservation]) -> Sequence[int]:
    """Return the ranks that a job must have: of a service that scales those that are there."""
    if find_bounds(job.spec) is None:
        return range(job.spec.replicas.count)
    return sorted(r for r, each in by_rank.items() if each.reason != Word.SCALED_DOWN)


def settle(
    session: WriteSession,
    job: Job,
    found: Offer,
    by_rank: Mapping[int, ReplicaObservation],
    now: int,
) -> bool:
    """Record what a bound offer holds and make it an attempt; False to look again soon.

    It runs whatever the books say of its node. Only the inventory of a new node is waited for, and
    GPUs that others hold, which work that is being stopped gives back; what is still missing after
    a while is told.
    """
    if is_by_pod(by_rank):
        return _settle_pods(session, job, found, by_rank, now)
    known = {node.name: node for node in nodes.list_nodes(session, found.place_id)}
    seen = [by_rank[rank] for rank in _ranks(job, by_rank)]
    places = choose_places(session, job, seen, known)
    missing = count_missing_gpus(job, places)
    if any(each.node_id == NO_NODE for each in places):
        return False
    if missing and not runs_for_long(seen, now):
        return False
    attempt = _attempt_of(job, found, places, seen, max(by_rank, default=-1) + 1, now)
    order = order_for(job, attempt.id, attempt.cluster_id, places)
    at = began_at(seen, found.offered_at, now)
    if attempt.id not in placements.place_running(session, [order], at).placed:
        return False
    _become(session, job, found, attempt, now)
    tell_missing(session, job, found.number, missing, now)
    return True


def _settle_pods(
    session: WriteSession,
    job: Job,
    found: Offer,
    by_rank: Mapping[int, ReplicaObservation],
    now: int,
) -> bool:
    """Make an attempt of what is bound of a service whose pods are admitted one by one.

    Those that were bound and are over already are among its replicas, and end with the next look;
    what cannot be recorded yet joins later.
    """
    known = {node.name: node for node in nodes.list_nodes(session, found.place_id)}
    bound = [each for _, each in sorted(by_rank.items()) if each.node_name]
    places = choose_bookable(session, job, bound, known, now)
    seen = bound[: len(places)]
    if all(each.phase in OVER for each in seen):
        return False
    attempt = _attempt_of(job, found, places, seen, seen[-1].rank + 1, now)
    for each, place in zip(seen, places, strict=True):
        order = order_for(job, attempt.id, attempt.cluster_id, [place])
        placements.place_running(session, [order], began_at([each], found.offered_at, now))
    _become(session, job, found, attempt, now)
    tell_missing(session, job, found.number, count_missing_gpus(job, places), now)
    return True


def _become(session: WriteSession, job: Job, found: Offer, attempt: Attempt, now: int) -> None:
    """Store the attempt that an offer has become."""
    attempts_repository.insert_attempts(session, [attempt])
    offers_repository.delete_offers(session, [found.attempt_id])
    scheduled = replace(job, status=JobStatus.SCHEDULED, admitted_at=attempt.admitted_at)
    changes: dict[str, Any] = {
        "status": str(JobStatus.SCHEDULED),
        "condition": str(Condition.STARTING),
        "condition_at": now,
        "reason": "",
        "status_message": found.message,
        "reason_counts": None,
        "cluster_id": attempt.cluster_id,
        "queue": found.local_queue,
        "admitted_at": attempt.admitted_at,
        "current_attempt_id": attempt.id,
        "estimated_start": now,
        "due_at": next_due(scheduled, now),
    }
    repository.update_job(session, job, now, **changes)
    usage.note_queues(session, {job.id: found.local_queue})
    events.record(session, _told(job, attempt, now))


def _attempt_of(
    job: Job,
    found: Offer,
    places: Sequence[ReplicaOrder],
    seen: Sequence[ReplicaObservation],
    next_rank: int,
    now: int,
) -> Attempt:
    began = began_at(seen, found.offered_at, now)
    admitted_at = min(began, max(found.offered_at, found.admitted_at or began))
    by_pod = any(each.by_pod for each in seen)
    # Of one that was found after a loss and has no queue yet, the scheduler here adds replicas.
    scales = not by_pod and not found.local_queue and find_bounds(job.spec) is not None
    wanted = job.spec.replicas.count if by_pod else len(seen) if scales else None
    usage = () if scales else None
    replicas = tuple(
        replica_of(found.attempt_id, place, each.node_name, usage)
        for each, place in zip(seen, places, strict=True)
    )
    return Attempt(
        id=found.attempt_id,
        job_id=job.id,
        number=found.number,
        epoch=found.number,
        cluster_id=found.place_id,
        state="starting",
        stop_intent=None,
        stop_reason="",
        stop_message="",
        stop_deadline=None,
        evict_sent_at=None,
        grace_s=job.spec.execution.grace_s,
        admitted_at=admitted_at,
        ensured_at=found.taken_at or found.ensured_at or now,
        started_at=None,
        ended_at=None,
        exit_code=None,
        signal=None,
        exit_reason="",
        exit_message="",
        lost_gpu_ms=None,
        cluster_queue=found.cluster_queue,
        local_queue=found.local_queue,
        quota_usage=found.usage,
        explanation=_explained(found),
        forgotten=False,
        version=1,
        replicas_wanted=wanted,
        next_rank=next_rank,
        replicas=replicas,
        by_pod=by_pod,
        manager_id=None if found.worker_id is None else found.cluster_id,
    )


def _explained(found: Offer) -> dict[str, Any] | None:
    """Return why it runs there: whose choice it was, and what its Kueue said of it."""
    if found.explanation is None or found.admitted_at is None or not found.message:
        return found.explanation
    sentences = [*found.explanation.get("sentences", ()), found.message]
    return {**found.explanation, "sentences": sentences}


def _told(job: Job, attempt: Attempt, now: int) -> events.NewEvent:
    names = sorted({each.node_name for each in attempt.replicas})
    where = names[0] if len(names) == 1 else f"{len(names)} nodes"
    return job_event(
        replace(job, cluster_id=attempt.cluster_id),
        "job.scheduled",
        attempt.admitted_at,  # not when it was looked at: what began since then follows it
        actor="kueue",
        message=f"{job.name} was admitted by {attempt.cluster_queue} and bound to {where}.",
        data={
            "attempt": attempt.number,
            "from_status": str(job.status),
            "nodes": names,
            "gpu_ids": [gpu for each in attempt.replicas for gpu in each.gpu_ids],
            "mig_devices": [each.mig_device for each in attempt.replicas if each.mig_device],
            "queue": attempt.local_queue,
            "cluster_queue": attempt.cluster_queue,
            "wait_ms": now - (job.queued_at or now),
        },
    )
