"""What a cluster that admits by itself does to jobs that run: it evicts, and they stop here too."""

from uuid import UUID

from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.lifecycle.jobs import HOLDING, Condition, StopIntent
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules import Attempt, Job
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
    winner = None if for_attempt is None else _job_of(session, for_attempt)
    if winner is not None:  # the cluster tells its uid alone
        message = f"{winner.name} ({winner.spec.priority}) needs its quota. {message}"
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
                data={
                    "for_job": None if winner is None else str(winner.id),
                    "lost_gpu_s": _lost_gpu_s(job, attempt, now),
                    "ran_s": _ran_ms(attempt, now) // 1000,
                    "rule": reason,
                },
            ),
        )
    return done


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


def _job_of(session: ReadSession, attempt_id: AttemptId) -> Job | None:
    offer = offers_repository.load_offers(session, [attempt_id]).get(attempt_id)
    if offer is not None:
        return repository.find_job(session, offer.job_id)
    attempt = attempts_repository.find_attempt(session, attempt_id)
    return None if attempt is None else repository.find_job(session, attempt.job_id)


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
