"""Applying a decision: each verdict guarded by the versions it was decided on.

Stale verdicts are dropped and counted; the others stand. A gang is one verdict.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuplane.core.fleet.facts import mig_device_of
from gpuplane.core.ids import AttemptId, ClusterId, JobId, ReplicaId
from gpuplane.core.lifecycle.jobs import Condition, JobStatus, StopIntent
from gpuplane.core.prediction.durations import expected_s
from gpuplane.core.prediction.predicting import Prediction
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.decisions import (
    NeedsPreemption,
    NeedsRepartition,
    Placed,
    ReplicaPlacement,
    Waiting,
)
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Attempt, Job, Replica
from gpuplane.domains.jobs.rules.learning import PREDICTION, describe_expected, encode_expected
from gpuplane.domains.jobs.rules.scaling import find_bounds, share_usage
from gpuplane.domains.jobs.service.stopping import request_stop
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.domains.jobs.service.timing import next_due
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import PlacementOrder, ReplicaOrder
from gpuplane.domains.usage import service as usage
from gpuplane.kit.ids import new_id

PROMISE_MARGIN_S = 60
"""How long beyond the victims' grace period the room they leave is kept for whom they left it."""


@dataclass(frozen=True, slots=True)
class Doors:
    """Through which LocalQueue and ClusterQueue each workload goes, as decided on."""

    local: Mapping[JobId, str]
    cluster: Mapping[JobId, str]
    choice: Mapping[JobId, str] = field(default_factory=dict)
    """Why this cluster, for jobs that named none."""
    predictions: Mapping[JobId, Prediction] = field(default_factory=dict)
    """What is expected of each, as decided on."""
    scales: bool = False
    """Whether services grow and shrink on this cluster while they run."""


@dataclass(frozen=True, slots=True)
class AdmissionReport:
    """What became of the placed verdicts of one batch."""

    admitted: tuple[JobId, ...]
    stale: int


def admit(
    session: WriteSession, placed: Sequence[Placed], doors: Doors, now: int
) -> AdmissionReport:
    """Make an attempt with allocations for each placed verdict that is not stale."""
    locked = repository.lock_jobs(session, [verdict.job_id for verdict in placed])
    fresh: list[tuple[Job, Placed, Attempt]] = []
    for verdict in placed:
        job = locked.get(verdict.job_id)
        if job is None or job.version != verdict.version or job.status is not JobStatus.QUEUED:
            continue
        fresh.append((job, verdict, _attempt_of(job, verdict, doors, now)))
    result = placements.place(
        session,
        [
            order_of(
                job,
                attempt.id,
                verdict.cluster_id,
                zip(attempt.replicas, verdict.replicas, strict=True),
            )
            for job, verdict, attempt in fresh
        ],
        now,
    )
    taken = set(result.placed)
    admitted = [each for each in fresh if each[2].id in taken]
    attempts_repository.insert_attempts(session, [attempt for _, _, attempt in admitted])
    repository.update_many(session, [_admission(*each, doors, now) for each in admitted])
    usage.note_queues(session, {job.id: attempt.local_queue for job, _, attempt in admitted})
    events.record_many(session, [_told(*each, now) for each in admitted])
    if admitted:
        session.wake("dispatcher")
    return AdmissionReport(tuple(job.id for job, _, _ in admitted), len(placed) - len(admitted))


def note_waiting(session: WriteSession, waiting: Sequence[Waiting]) -> None:
    """Store why jobs wait, for those that still wait as they were decided on.

    The version is left alone: a reason is told, not decided on.
    """
    repository.note_reasons(
        session,
        [
            {
                "id": verdict.job_id,
                "version": verdict.version,
                "reason": str(verdict.reason.word),
                "status_message": verdict.reason.sentence,
                "reason_counts": {str(each.word): each.nodes for each in verdict.counts},
            }
            for verdict in waiting
        ],
    )


def preempt(session: WriteSession, verdict: NeedsPreemption, grace_s: int, now: int) -> bool:
    """Ask every victim of a verdict to stop, all or none; False when any verdict is stale."""
    ids = [verdict.job_id, *(receipt.job_id for receipt in verdict.receipts)]
    locked = repository.lock_jobs(session, ids)
    winner = locked.get(verdict.job_id)
    if winner is None or winner.version != verdict.version:
        return False
    victims = []
    for receipt in verdict.receipts:
        job = locked.get(receipt.job_id)
        if job is None or job.version != receipt.version or job.condition is Condition.STOPPING:
            return False
        victims.append((job, receipt))
    for job, receipt in victims:
        request_stop(
            session, job, StopIntent.PREEMPT, Word.PREEMPTED,
            f"{winner.name} ({winner.spec.priority}) needs its devices. {receipt.sentence}",
            now, grace_s=grace_s,
        )  # fmt: skip
        events.record(
            session,
            job_event(
                job, "job.preempting", now, actor="scheduler", reason=str(Word.PREEMPTED),
                message=receipt.sentence,
                data={
                    "for_job": str(winner.id), "lost_gpu_s": receipt.lost_gpu_s,
                    "ran_s": receipt.ran_s, "rule": receipt.rule,
                },
            ),
        )  # fmt: skip
    promised = now + (grace_s + PROMISE_MARGIN_S) * 1000
    repository.update_job(session, winner, now, promised_until=promised)
    return True


def repartition(session: WriteSession, verdict: NeedsRepartition, now: int) -> bool:
    """Order the GPUs of a verdict to be cut, all or none; False when it is stale.

    The job goes before everyone until then, or the new instances would go to whoever comes first.
    """
    job = repository.lock_jobs(session, [verdict.job_id]).get(verdict.job_id)
    if job is None or job.version != verdict.version or job.status is not JobStatus.QUEUED:
        return False
    if not placements.ask_repartition(session, verdict.cluster_id, job.id, verdict.changes, now):
        return False
    events.record(
        session,
        job_event(
            job, "job.repartition_asked", now, actor="scheduler",
            reason=str(Word.MIG_REPARTITION), message=verdict.reason.sentence,
        ),
    )  # fmt: skip
    promised = now + (placements.REPARTITION_S + PROMISE_MARGIN_S) * 1000
    return repository.update_job(session, job, now, promised_until=promised)


def end_promise(session: WriteSession, job_id: JobId, now: int) -> None:
    """Let a job whose GPU could not be cut stand in line like everyone else."""
    job = repository.lock_jobs(session, [job_id]).get(job_id)
    if job is not None and job.status is JobStatus.QUEUED:
        repository.update_job(session, job, now, promised_until=None)


def _attempt_of(job: Job, verdict: Placed, doors: Doors, now: int) -> Attempt:
    attempt_id = AttemptId(new_id())
    number = job.attempt_count + 1
    usage = tuple((use.flavor, use.resource, use.amount) for use in verdict.usage)
    scales = doors.scales and find_bounds(job.spec) is not None
    share = share_usage(usage, len(verdict.replicas)) if scales else None
    replicas = tuple(
        replace(blank_replica(ReplicaId(new_id()), attempt_id, each), quota_usage=share)
        for each in verdict.replicas
    )
    return Attempt(
        id=attempt_id,
        job_id=job.id,
        number=number,
        epoch=number,
        cluster_id=verdict.cluster_id,
        state="admitted",
        stop_intent=None,
        stop_reason="",
        stop_message="",
        stop_deadline=None,
        evict_sent_at=None,
        grace_s=job.spec.execution.grace_s,
        admitted_at=now,
        ensured_at=None,
        started_at=None,
        ended_at=None,
        exit_code=None,
        signal=None,
        exit_reason="",
        exit_message="",
        lost_gpu_ms=None,
        cluster_queue=doors.cluster.get(job.id, ""),
        local_queue=doors.local.get(job.id, ""),
        quota_usage=usage,
        explanation=_explanation(job, verdict, doors),
        forgotten=False,
        version=1,
        replicas_wanted=job.spec.replicas.count if scales else None,
        wanted_at=now if scales else None,
        next_rank=len(replicas),
        replicas=replicas,
    )


def blank_replica(replica_id: ReplicaId, attempt_id: AttemptId, place: ReplicaPlacement) -> Replica:
    """Return a replica of which nothing was seen yet, at the place it was given."""
    mig = place.mig
    return Replica(
        id=replica_id,
        attempt_id=attempt_id,
        rank=place.rank,
        node_id=place.node_id,
        node_name=place.node_name,
        gpu_ids=place.gpu_ids,
        gpu_milli=place.gpu_milli,
        mig_device=None if mig is None else mig_device_of(mig),
    )


def _explanation(job: Job, verdict: Placed, doors: Doors) -> dict[str, Any]:
    """Return why it runs there and what was expected of it, to be compared with what it did."""
    choice, found = doors.choice.get(verdict.job_id), doors.predictions.get(job.id)
    sentences = [*([choice] if choice else []), *verdict.explanation]
    if found is None:
        return {"score": verdict.score, "sentences": sentences}
    told = describe_expected(job.spec, found)
    return {
        "score": verdict.score,
        "sentences": [*sentences, *told],
        PREDICTION: encode_expected(job.spec, found),
    }


def order_of(
    job: Job,
    attempt_id: AttemptId,
    cluster_id: ClusterId,
    replicas: Iterable[tuple[Replica, ReplicaPlacement]],
) -> PlacementOrder:
    """Return what replicas of an attempt are to hold at the places they were given."""
    asked = job.spec.resources
    return PlacementOrder(
        attempt_id=attempt_id,
        job_id=job.id,
        tenant_id=job.tenant_id,
        project_id=job.project_id,
        cluster_id=cluster_id,
        replicas=tuple(
            ReplicaOrder(
                replica_id=replica.id,
                rank=replica.rank,
                node_id=place.node_id,
                gpu_ids=place.gpu_ids,
                gpu_milli=place.gpu_milli,
                mig=place.mig,
                cpu_milli=asked.cpu_milli,
                memory_mib=asked.memory_mib,
                ephemeral_mib=asked.ephemeral_mib,
            )
            for replica, place in replicas
        ),
        reservation_id=None,
    )


def _admission(
    job: Job, verdict: Placed, attempt: Attempt, doors: Doors, now: int
) -> dict[str, Any]:
    spec, found = job.spec, doors.predictions.get(job.id)
    learned = None if found is None else found.learned
    duration_s = expected_s(spec.estimated_duration_s, learned, spec.max_duration_s)
    return {
        "id": job.id,
        "status": str(JobStatus.SCHEDULED),
        "condition": str(Condition.STARTING),
        "condition_at": now,
        "reason": "",
        "status_message": verdict.explanation[-1] if verdict.explanation else "",
        "reason_counts": None,
        "cluster_id": verdict.cluster_id,
        "queue": attempt.local_queue,
        "admitted_at": now,
        "attempt_count": attempt.number,
        "current_attempt_id": attempt.id,
        "estimated_start": now,
        "estimated_end": None if duration_s is None else now + duration_s * 1000,
        "due_at": _next_due_admitted(job, now),
        "updated_at": now,
    }


def _next_due_admitted(job: Job, now: int) -> int | None:
    """Return when an admitted job must be looked at: its start time-out or its deadline."""
    return next_due(replace(job, status=JobStatus.SCHEDULED, admitted_at=now), now)


def _told(job: Job, verdict: Placed, attempt: Attempt, now: int) -> Any:
    nodes = sorted({each.node_name for each in verdict.replicas})
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
    return job_event(
        job,
        "job.scheduled",
        now,
        actor="scheduler",
        message=f"{job.name} was admitted and placed on {where}.",
        data={
            "attempt": attempt.number,
            "from_status": str(job.status),
            "nodes": nodes,
            "gpu_ids": [gpu for each in verdict.replicas for gpu in each.gpu_ids],
            "score": verdict.score,
            "queue": attempt.local_queue,
            "cluster_queue": attempt.cluster_queue,
            "wait_ms": now - (job.queued_at or now),
        },
    )
