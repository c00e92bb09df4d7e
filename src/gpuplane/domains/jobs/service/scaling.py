"""Services that grow and shrink while they run: what is wanted, what is added, what is taken away.

Each change of an attempt's replicas is one unit of work: the replica's row, what it holds, what its
attempt counts against its queue, and its interval of the ledger. The attempt's version guards it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from uuid import UUID

from gpuplane.backends.interface import AUTOSCALER, OURSELVES, AttemptPlan, ScaleObservation
from gpuplane.core.ids import AttemptId, ClusterId, JobId, NodeId, ReplicaId
from gpuplane.core.lifecycle.jobs import HOLDING, Condition, StopIntent
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.decisions import Placed, Waiting
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.errors import BadScale, JobChanged, NotScalable, WrongStatus
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Attempt, Job, Replica
from gpuplane.domains.jobs.rules.attempts import AttemptVerdict, Standing, judge_attempt
from gpuplane.domains.jobs.rules.scaling import (
    GROWING,
    Usage,
    choose_leaving,
    count_missing,
    find_bounds,
    growth_id,
    growth_of,
    list_staying,
    number_next,
    sum_usage,
)
from gpuplane.domains.jobs.service.admitting import AdmissionReport, Doors, blank_replica, order_of
from gpuplane.domains.jobs.service.evicting import describe_eviction, find_winner, note_deleted
from gpuplane.domains.jobs.service.planning import Surroundings, load_plans_of
from gpuplane.domains.jobs.service.rights import get_job, get_job_to_change, require_change
from gpuplane.domains.jobs.service.stopping import request_stop
from gpuplane.domains.jobs.service.telling import grown_event, job_event
from gpuplane.domains.placements import service as placements
from gpuplane.kit.access import Principal
from gpuplane.kit.ids import new_id

_SCALERS = {AUTOSCALER: "autoscaler", OURSELVES: "system"}
"""Whom an event names as the one who moved a number; all others move it on the cluster."""

VANISHED = "Somebody deleted its Deployment on the cluster while it had no replica."


@dataclass(frozen=True, slots=True)
class Growth:
    """A replica that a service wants: the piece that the scheduler decides on, and whose it is."""

    piece: Job
    job_id: JobId
    attempt_id: AttemptId
    cluster_queue: str
    """Against which the other replicas count; it goes through no other."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """A service that may be scaled to what was asked, and its attempt."""

    job: Job
    attempt: Attempt


def find_growth(job: Job, attempt: Attempt) -> Growth | None:
    """Return the next replica that a service wants, None where it has all that it wants."""
    piece = growth_of(job, attempt)
    if piece is None:
        return None
    return Growth(piece, job.id, attempt.id, attempt.cluster_queue)


def get_scaling(session: ReadSession, principal: Principal, job_id: UUID, wanted: int) -> Scaling:
    """Return a service that the caller may scale to so many replicas.

    Raises:
        JobNotFound: If the caller sees no such job.
        Forbidden: If it is somebody else's.
        NotScalable: If its number of replicas is fixed.
        BadScale: If the number lies outside of what was submitted.
        WrongStatus: If it does not run.
    """
    job = get_job(session, principal, job_id)
    require_change(principal, job)
    return _scaling_of(session, job, wanted)


def scale(session: WriteSession, principal: Principal, job_id: UUID, wanted: int, now: int) -> Job:
    """Store how many replicas a service is to have; those beyond are asked to leave.

    Raises:
        As `get_scaling`.
        JobChanged: If its attempt moved on meanwhile.
    """
    job = get_job_to_change(session, principal, job_id)
    found = _scaling_of(session, job, wanted)
    if not _want(session, found.job, found.attempt, wanted, principal.name, now):
        raise JobChanged(f"{job.name} changed while it was being scaled.")
    attempt = attempts_repository.find_attempt(session, found.attempt.id)
    leaving = () if attempt is None else choose_leaving(attempt, wanted)
    if attempt is not None and leaving:
        attempts_repository.update_replicas(
            session, [{"id": each.id, "leaving_at": now} for each in leaving]
        )
        attempts_repository.update_attempt(
            session, attempt, scale_number=number_next(attempt, now)
        )  # fmt: skip - the call reads as one line
        session.wake("dispatcher")
    return found.job


def follow_scale(
    session: WriteSession, principal: Principal, job_id: UUID, wanted: int, now: int
) -> Job:
    """Store how many replicas a service is to have, where its cluster's own object says so.

    Which of them leave is the cluster's to say.

    Raises:
        As `scale`.
    """
    job = get_job_to_change(session, principal, job_id)
    found = _scaling_of(session, job, wanted)
    if not _want(session, found.job, found.attempt, wanted, principal.name, now):
        raise JobChanged(f"{job.name} changed while it was being scaled.")
    return found.job


def note_scales(session: WriteSession, seen: Sequence[ScaleObservation], now: int) -> int:
    """Store how many replicas the scalers of clusters want; return how many that changes."""
    found = attempts_repository.load_attempts(session, [each.ref.attempt_id for each in seen])
    jobs = repository.lock_jobs(session, [each.job_id for each in found.values()])
    if session.dialect == "postgresql":  # others may have moved them before the jobs were locked
        found = attempts_repository.load_attempts(session, list(found))
    changes = 0
    for each in seen:
        attempt = found.get(each.ref.attempt_id)
        job = None if attempt is None else jobs.get(attempt.job_id)
        if attempt is None or job is None or attempt.epoch != each.ref.epoch:
            continue
        if attempt.replicas_wanted is None or attempt.state not in GROWING:
            continue
        if each.is_gone:
            changes += note_deleted(session, attempt.id, message=VANISHED, now=now)
            continue
        actor = _SCALERS.get(each.by, "cluster")
        hand = each.by if actor == "cluster" else ""
        changes += _want(session, job, attempt, each.wanted, actor, now, hand)
    return changes


def _scaling_of(session: ReadSession, job: Job, wanted: int) -> Scaling:
    bounds = find_bounds(job.spec)
    if bounds is None:
        raise NotScalable(
            f"The number of replicas of {job.name} is fixed.",
            fix="Submit a service with replicas.min below replicas.max, or with scale_to_zero.",
        )
    least, most = bounds
    if not least <= wanted <= most:
        raise BadScale(
            f"{wanted} replicas do not lie between {least} and {most}.",
            field="replicas",
            fix=f"Give {least} to {most}.",
        )
    attempt = None
    if job.current_attempt_id is not None and job.status in HOLDING:
        attempt = attempts_repository.find_attempt(session, job.current_attempt_id)
    if attempt is None or attempt.state not in GROWING or job.condition is Condition.STOPPING:
        raise WrongStatus(
            f"{job.name} is {job.status}; only a service that was started can be scaled.",
            fix="Wait until it runs.",
        )
    if attempt.replicas_wanted is None:
        raise NotScalable(
            f"The number of replicas of {job.name} is fixed on its cluster.",
            fix="Run it on a simulated cluster, or on Kubernetes.",
        )
    return Scaling(job, attempt)


def _want(
    session: WriteSession,
    job: Job,
    attempt: Attempt,
    wanted: int,
    actor: str,
    now: int,
    hand: str = "",
) -> bool:
    """Store what is wanted; False when the attempt is not as it was read.

    Args:
        hand: What wrote the number on its cluster, where that is somebody else's.
    """
    before = attempt.replicas_wanted
    if before == wanted:
        return True
    is_more = wanted > len(list_staying(attempt))
    done = attempts_repository.update_attempt(
        session,
        attempt,
        replicas_wanted=wanted,
        wanted_at=now,
        growth_reason="",
        growth_message="",
    )
    if done:
        whose = f": {hand} asked its cluster for it" if hand else ""
        data: dict[str, Any] = {"attempt": attempt.number, "from": before, "wanted": wanted}
        if hand:
            data["by"] = hand
        events.record(
            session,
            job_event(
                job, "job.scaled", now, actor=actor,
                message=f"{job.name} is to have {wanted} replicas instead of {before}{whose}.",
                data=data,
            ),
        )  # fmt: skip
        if is_more:
            session.wake("scheduler")
    return done


def grow(
    session: WriteSession,
    placed: Sequence[Placed],
    growths: Mapping[JobId, Growth],
    doors: Doors,
    now: int,
) -> AdmissionReport:
    """Add a replica with allocations for each placed verdict that is not stale.

    The attempt must be as it was decided on, still run and still want it; the queue must be the
    one that its other replicas count against.
    """
    owners = {each.job_id: growths[each.job_id] for each in placed}
    locked = repository.lock_jobs(session, [each.job_id for each in owners.values()])
    attempts = attempts_repository.load_attempts(
        session, [each.attempt_id for each in owners.values()]
    )
    added: list[JobId] = []
    for verdict in placed:
        owner = owners[verdict.job_id]
        job, attempt = locked.get(owner.job_id), attempts.get(owner.attempt_id)
        if job is None or attempt is None or not _still_wants(job, attempt, verdict, doors):
            continue
        if _add(session, job, attempt, verdict, doors, now):
            added.append(verdict.job_id)
    if added:
        session.wake("dispatcher")
    return AdmissionReport(tuple(added), len(placed) - len(added))


def _still_wants(job: Job, attempt: Attempt, verdict: Placed, doors: Doors) -> bool:
    return (
        attempt.version == verdict.version
        and growth_id(attempt) == verdict.job_id
        and attempt.cluster_id == verdict.cluster_id
        and attempt.cluster_queue in ("", doors.cluster.get(verdict.job_id, ""))
        and job.current_attempt_id == attempt.id
        and job.status in HOLDING
        and job.condition is not Condition.STOPPING
        and count_missing(attempt) > 0
    )


def _add(
    session: WriteSession, job: Job, attempt: Attempt, verdict: Placed, doors: Doors, now: int
) -> bool:
    """Add one replica to an attempt; False when it cannot be placed any more."""
    usage: Usage = tuple((use.flavor, use.resource, use.amount) for use in verdict.usage)
    place = replace(verdict.replicas[0], rank=attempt.next_rank)
    added = replace(
        blank_replica(ReplicaId(new_id()), attempt.id, place), quota_usage=usage
    )  # fmt: skip - the call reads as one line
    order = order_of(job, attempt.id, attempt.cluster_id, [(added, place)])
    if attempt.id not in placements.place(session, [order], now).placed:
        return False
    attempts_repository.insert_replica(session, added)
    moved = attempts_repository.update_attempt(
        session,
        attempt,
        quota_usage=[list(use) for use in sum_usage((*attempt.replicas, added))],
        next_rank=attempt.next_rank + 1,
        scale_number=number_next(attempt, now),
        growth_reason="",
        growth_message="",
        # One that was found on its cluster after a loss has no queue of ours yet.
        cluster_queue=attempt.cluster_queue or doors.cluster.get(verdict.job_id, ""),
        local_queue=attempt.local_queue or doors.local.get(verdict.job_id, ""),
    )
    if not moved:  # nothing may be stored then: what is held would be nobody's
        raise JobChanged(f"{job.name} changed while a replica was being added.")
    told = f"{job.name} was given replica {added.rank} on {added.node_name}."
    grown = grown_event(job, attempt, added, now, actor="scheduler", message=told)
    events.record(session, grown)
    return True


def note_growth_waiting(
    session: WriteSession, waiting: Sequence[Waiting], growths: Mapping[JobId, Growth]
) -> None:
    """Store why wanted replicas wait, for attempts that still are as they were decided on.

    The version is left alone: a reason is told, not decided on.
    """
    for verdict in waiting:
        attempts_repository.note_growth(
            session,
            growths[verdict.job_id].attempt_id,
            verdict.version,
            str(verdict.reason.word),
            verdict.reason.sentence,
        )


def retire(
    session: WriteSession,
    job: Job,
    attempt: Attempt,
    gone: Sequence[Replica],
    now: int,
    winners: Mapping[int, AttemptId] = MappingProxyType({}),
) -> Attempt:
    """Take replicas from an attempt that are over and that it goes on without; return it as it is.

    What each held ends when it ended; the attempt and its job go on.

    Args:
        session: Where to write.
        job: The job.
        attempt: Its attempt.
        gone: The replicas, with how they ended.
        now: The instant.
        winners: Whom those that were preempted made room for, by rank, where that is ours.

    Raises:
        JobChanged: If the attempt is not as it was read; nothing may be stored then.
    """
    for each in gone:
        ended = min(now, each.ended_at or now)
        placements.release_replicas(session, [each.id], ended)
        winner = find_winner(session, winners.get(each.rank))
        _tell_retired(session, job, attempt, each, ended, winner)
    ids = {each.id for each in gone}
    attempts_repository.delete_replicas(session, list(ids))
    left = tuple(each for each in attempt.replicas if each.id not in ids)
    changes: dict[str, Any] = {"scale_number": number_next(attempt, now)}
    if not attempt.by_pod:  # what each counts where Kueue admits it, Kueue tells
        changes["quota_usage"] = [list(use) for use in sum_usage(left)]
    done = attempts_repository.update_attempt(session, attempt, **changes)
    if not done:
        raise JobChanged(f"{job.name} changed while a replica was being taken away.")
    session.wake("dispatcher", "scheduler")
    found = attempts_repository.find_attempt(session, attempt.id)
    assert found is not None
    return found


def send_away(session: WriteSession, attempt: Attempt, node_id: NodeId, now: int) -> int:
    """Ask the replicas of a service on one node to stop; return how many were not asked before.

    Its cluster runs others instead, elsewhere: each of them Kueue admits by itself.

    Raises:
        JobChanged: If the attempt is not as it was read; nothing may be stored then.
    """
    going = [each for each in list_staying(attempt) if each.node_id == node_id]
    if not going:
        return 0
    attempts_repository.update_replicas(
        session, [{"id": each.id, "leaving_at": now} for each in going]
    )
    number = number_next(attempt, now)
    if not attempts_repository.update_attempt(session, attempt, scale_number=number):
        raise JobChanged("A service changed while replicas of it were being sent away.")
    session.wake("dispatcher")
    return len(going)


def _tell_retired(
    session: WriteSession,
    job: Job,
    attempt: Attempt,
    gone: Replica,
    at: int,
    winner: Job | None,
) -> None:
    """Tell that a service does without a replica, or that its cluster runs another instead."""
    data: dict[str, Any] = {
        "attempt": attempt.number,
        "rank": gone.rank,
        "nodes": [gone.node_name],
        "gpu_ids": list(gone.gpu_ids),
        "wanted": attempt.replicas_wanted,
    }
    kind, actor, reason, own = "job.shrunk", "system", "", gone.message
    message = f"{job.name} does without replica {gone.rank} on {gone.node_name}."
    is_preempted = gone.reason == Word.PREEMPTED
    if attempt.by_pod and gone.leaving_at is not None and not is_preempted:
        kind, reason = "job.replica_ended", str(Word.DRAINED)
        message = (
            f"Replica {gone.rank} of {job.name} on {gone.node_name} ended: its node is being "
            "drained, and its cluster runs another in its place."
        )
    elif gone.leaving_at is None and gone.reason != Word.SCALED_DOWN:
        kind = "job.replica_preempted" if is_preempted else "job.replica_ended"
        actor, reason = ("kueue" if is_preempted else "cluster"), gone.reason
        why = describe_eviction(winner, own or reason)
        message = f"Replica {gone.rank} of {job.name} on {gone.node_name} ended: {why}"
        if is_preempted:
            data["for_job"] = None if winner is None else str(winner.id)
    told = job_event(job, kind, at, actor=actor, reason=reason, message=message, data=data)
    events.record(session, told)


def list_to_scale(
    session: ReadSession, cluster_ids: Sequence[ClusterId], limit: int
) -> list[Attempt]:
    """Return attempts whose replicas changed since these clusters were told, oldest first."""
    return attempts_repository.list_to_scale(session, cluster_ids, limit)


def load_scale_plans(
    session: ReadSession, attempts: Sequence[Attempt], around: Surroundings
) -> list[tuple[Job, Attempt, AttemptPlan]]:
    """Return what backends are to make of attempts whose replicas changed, as they stand now."""
    return [
        (job, attempt, _with_scale(attempt, plan))
        for job, attempt, plan in load_plans_of(session, attempts, around)
        if attempt.state in GROWING and attempt.scale_number != attempt.scale_told
    ]


def _with_scale(attempt: Attempt, plan: AttemptPlan) -> AttemptPlan:
    leaving = tuple(each.rank for each in attempt.replicas if each.leaving_at is not None)
    return replace(
        plan, scale_number=attempt.scale_number, leaving=leaving, next_rank=attempt.next_rank
    )


def note_scale_failed(
    session: WriteSession, attempt_id: AttemptId, word: str, message: str, now: int
) -> bool:
    """Stop a service whose backend cannot start a replica that it was given, as one that failed."""
    attempt = attempts_repository.find_attempt(session, attempt_id)
    job = None if attempt is None else repository.lock_jobs(session, [attempt.job_id])
    found = None if attempt is None or job is None else job.get(attempt.job_id)
    if found is None:
        return False
    return request_stop(session, found, StopIntent.FAIL, word, message, now)


def note_scale_told(session: WriteSession, told: Sequence[Attempt]) -> None:
    """Record which replicas backends have taken on, as these attempts were read."""
    attempts_repository.note_scale_told(session, [(each.id, each.scale_number) for each in told])


def judge_unstarted(
    job: Job, attempt: Attempt, known: frozenset[int], now: int
) -> tuple[tuple[Replica, ...], AttemptVerdict]:
    """Return the replicas of a stopping attempt, those that its backend never knew as over."""
    replicas = tuple(
        replace(each, phase="exited", reason=attempt.stop_reason, ended_at=now)
        if each.rank not in known and each.phase == "pending"
        else each
        for each in attempt.replicas
    )
    if not replicas:
        said = AttemptVerdict(Standing.OVER, attempt.stop_reason, attempt.stop_message)
        return (), said
    return replicas, judge_attempt(job, attempt, replicas)
