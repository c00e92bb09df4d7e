"""What a cluster that admits by itself does to jobs that run: it evicts, and they stop here too."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.lifecycle.jobs import HOLDING, Condition, StopIntent
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules import Attempt, Job, Replica
from gpuplane.domains.jobs.rules.scaling import is_bare
from gpuplane.domains.jobs.service.stopping import request_stop
from gpuplane.domains.jobs.service.telling import job_event

PREEMPTED = "Preempted"
"""The reason of Kueue's Evicted condition when others needed the quota."""
_GPU_MILLI = 1000


def list_running_on(session: ReadSession, cluster_id: UUID) -> list[Attempt]:
    """Return the attempts of a cluster that hold devices and are not being stopped."""
    states = ["admitted", "starting", "running"]
    return attempts_repository.list_by_state(session, states, ClusterId(cluster_id), 1_000_000)


def note_evicted(
    session: WriteSession,
    attempt_id: AttemptId,
    *,
    reason: str,
    message: str,
    for_attempt: AttemptId | None,
    now: int,
) -> bool:
    """Stop an attempt that its cluster has evicted; a preemption leaves a receipt.

    Args:
        session: Where to write.
        attempt_id: The attempt.
        reason: The cluster's word.
        message: The cluster's sentence.
        for_attempt: Whom it made room for, where that is one of ours.
        now: The instant.
    """
    attempt = attempts_repository.find_attempt(session, attempt_id)
    if attempt is None or attempt.state == "ended" or attempt.stop_intent is not None:
        return False
    job = repository.lock_jobs(session, [attempt.job_id]).get(attempt.job_id)
    if job is None or job.status not in HOLDING or job.condition is Condition.STOPPING:
        return False
    is_preempted = reason == PREEMPTED
    intent = StopIntent.PREEMPT if is_preempted else StopIntent.REQUEUE
    word = Word.PREEMPTED if is_preempted else Word.EVICTED
    winner = find_winner(session, for_attempt)
    message = describe_eviction(winner, message)
    done = request_stop(session, job, intent, word, message, now, actor="kueue")
    if done and is_preempted:
        events.record(
            session,
            job_event(
                job,
                "job.preempting",
                now,
                actor="kueue",
                reason=str(word),
                message=message,
                data=_receipt(
                    winner, _lost_gpu_s(job, attempt, now), _ran_ms(attempt, now) // 1000, reason
                ),
            ),
        )
    return done


def note_all_preempted(
    session: WriteSession,
    job: Job,
    attempt: Attempt,
    gone: Sequence[Replica],
    winners: Mapping[int, AttemptId],
    now: int,
) -> bool:
    """Stop a service whose last replicas its cluster preempted: it stands in line again, whole.

    Args:
        session: Where to write.
        job: The job as it is stored now.
        attempt: Its attempt, which has no replica any more.
        gone: The replicas that were just taken from it, with how they ended.
        winners: Whom they made room for, by rank, where that is ours.
        now: The instant.
    """
    first = next(each for each in gone if each.reason == Word.PREEMPTED)
    winner = find_winner(session, winners.get(first.rank))
    message = describe_eviction(winner, first.message or "None of its replicas is left.")
    done = request_stop(
        session, job, StopIntent.PREEMPT, Word.PREEMPTED, message, now, actor="kueue"
    )
    if done:
        ran = [(_ran_until(each, now), len(each.gpu_ids) * each.gpu_milli) for each in gone]
        lost_gpu_s = sum(ms * milli for ms, milli in ran) // (_GPU_MILLI * 1000)
        data = _receipt(winner, lost_gpu_s, _ran_ms(attempt, now) // 1000, PREEMPTED)
        events.record(
            session,
            job_event(
                job, "job.preempting", now, actor="kueue", reason=str(Word.PREEMPTED),
                message=message, data=data,
            ),
        )  # fmt: skip
    return done


def note_bare(session: WriteSession, attempt_id: AttemptId, *, message: str, now: int) -> bool:
    """Put a service back in line that has no replica left, and none that could start now.

    Args:
        session: Where to write.
        attempt_id: The attempt, whose replicas ended otherwise than by a preemption.
        message: Why no other starts.
        now: The instant.
    """
    attempt = attempts_repository.find_attempt(session, attempt_id)
    if attempt is None or not is_bare(attempt):
        return False
    job = repository.lock_jobs(session, [attempt.job_id]).get(attempt.job_id)
    if job is None or job.condition is Condition.STOPPING:
        return False
    said = f"None of its replicas is left, and no other can start: {message}"
    return request_stop(
        session, job, StopIntent.REQUEUE, Word.EVICTED, said, now, actor="kueue"
    )  # fmt: skip - the call reads as one line


def note_deleted(session: WriteSession, attempt_id: AttemptId, *, message: str, now: int) -> bool:
    """Stop an attempt that somebody deleted on its cluster; it counts as lost, not as requeued.

    Nothing of it may start again: what the cluster made anew is taken away with the rest.
    """
    attempt = attempts_repository.find_attempt(session, attempt_id)
    if attempt is None or attempt.state == "ended" or attempt.stop_intent is not None:
        return False
    job = repository.lock_jobs(session, [attempt.job_id]).get(attempt.job_id)
    if job is None or job.status not in HOLDING or job.condition is Condition.STOPPING:
        return False
    return request_stop(session, job, StopIntent.FAIL, Word.DELETED, message, now, actor="cluster")


def find_winner(session: ReadSession, attempt_id: AttemptId | None) -> Job | None:
    """Return the job for which others were evicted, None where it is not known or none of ours."""
    if attempt_id is None:
        return None
    offer = offers_repository.load_offers(session, [attempt_id]).get(attempt_id)
    if offer is not None:
        return repository.find_job(session, offer.job_id)
    attempt = attempts_repository.find_attempt(session, attempt_id)
    return None if attempt is None else repository.find_job(session, attempt.job_id)


def describe_eviction(winner: Job | None, message: str) -> str:
    """Return a cluster's sentence with the name of who needed the quota: it tells a uid alone."""
    if winner is None:
        return message
    return f"{winner.name} ({winner.spec.priority}) needs its quota. {message}"


def _receipt(winner: Job | None, lost_gpu_s: int, ran_s: int, rule: str) -> dict[str, object]:
    """Return what the event of a preemption tells beside its sentence."""
    for_job = None if winner is None else str(winner.id)
    return {"for_job": for_job, "lost_gpu_s": lost_gpu_s, "ran_s": ran_s, "rule": rule}


def _ran_until(replica: Replica, now: int) -> int:
    """Return for how long a replica that is over ran, in ms."""
    if replica.started_at is None:
        return 0
    return max(0, (replica.ended_at or now) - replica.started_at)


def _ran_ms(attempt: Attempt, now: int) -> int:
    return max(0, now - attempt.started_at) if attempt.started_at is not None else 0


def _lost_gpu_s(job: Job, attempt: Attempt, now: int) -> int:
    """Return the GPU-seconds of work since the last checkpoint, or since it started."""
    since = attempt.started_at
    if since is None:
        return 0
    if job.last_checkpoint_at is not None:
        since = max(since, job.last_checkpoint_at)
    milli = sum(len(each.gpu_ids) * each.gpu_milli for each in attempt.replicas)
    return max(0, now - since) * milli // (_GPU_MILLI * 1000)
