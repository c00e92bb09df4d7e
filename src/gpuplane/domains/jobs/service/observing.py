"""Taking in what backends see of attempts, and what was done to them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuplane.backends.interface import ReplicaObservation
from gpuplane.core.ids import AttemptId, ClusterId, JobId
from gpuplane.core.lifecycle.jobs import Condition, JobStatus, StopIntent
from gpuplane.core.prediction.durations import expected_s
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobType
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import delays
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Attempt, Job, Replica
from gpuplane.domains.jobs.rules.attempts import AttemptVerdict, Standing, judge_attempt
from gpuplane.domains.jobs.rules.learning import learned_of
from gpuplane.domains.jobs.rules.outputs import is_sensitive_output
from gpuplane.domains.jobs.rules.scaling import has_left, is_bare
from gpuplane.domains.jobs.service.evicting import note_all_preempted
from gpuplane.domains.jobs.service.joining import join
from gpuplane.domains.jobs.service.scaling import judge_unstarted, retire
from gpuplane.domains.jobs.service.stopping import finish_attempt, request_stop
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.domains.jobs.service.timing import next_due
from gpuplane.domains.placements import service as placements
from gpuplane.kit.ids import new_id

Seal = Callable[[str], bytes]
Chance = Callable[[], float]

_SEEN = (
    "phase ready started_at ended_at exit_code signal reason message url restart_count "
    "gpu_memory_peak_mib gpu_utilization_permille"
).split()


def list_to_ensure(
    session: ReadSession, cluster_ids: Sequence[ClusterId], limit: int
) -> list[Attempt]:
    """Return admitted attempts that these clusters were not told of yet, oldest first."""
    return attempts_repository.list_to_ensure(session, cluster_ids, limit)


def list_to_evict(
    session: ReadSession, cluster_ids: Sequence[ClusterId], limit: int
) -> list[Attempt]:
    """Return stopping attempts that these clusters were not told of yet, oldest first."""
    return attempts_repository.list_to_evict(session, cluster_ids, limit)


def list_open(session: ReadSession, limit: int = 1_000_000) -> list[Attempt]:
    """Return every attempt that is not over."""
    return attempts_repository.list_by_state(
        session, ["admitted", "starting", "running", "stopping"], None, limit
    )


def load_jobs(session: ReadSession, job_ids: Sequence[JobId]) -> dict[JobId, Job]:
    """Return jobs by id."""
    return repository.load_jobs(session, job_ids)


def note_ensured(session: WriteSession, attempts: Sequence[Attempt], now: int) -> None:
    """Record that backends took attempts on; those asked to stop meanwhile stay stopping."""
    repository.hold_jobs(session, [attempt.job_id for attempt in attempts])
    current = attempts_repository.load_attempts(session, [attempt.id for attempt in attempts])
    attempts_repository.update_attempts(
        session,
        [
            {
                "id": attempt.id,
                "ensured_at": now,
                "state": "starting" if attempt.state == "admitted" else attempt.state,
            }
            for attempt in current.values()
            if attempt.state != "ended"
        ],
    )
    delays.end_delays(session, [attempt.job_id for attempt in attempts])


def note_starts_delayed(session: WriteSession, why: Mapping[JobId, str]) -> None:
    """Store why jobs that were admitted were not taken on by their clusters yet."""
    repository.hold_jobs(session, list(why))
    delays.note_delays(session, why)


def note_evict_sent(session: WriteSession, attempts: Sequence[Attempt], now: int) -> None:
    """Record that backends were asked to stop attempts."""
    repository.hold_jobs(session, [attempt.job_id for attempt in attempts])
    attempts_repository.update_attempts(
        session, [{"id": attempt.id, "evict_sent_at": now} for attempt in attempts]
    )


def note_start_failed(
    session: WriteSession, attempt: Attempt, word: str, message: str, chance: Chance, now: int
) -> None:
    """Record that a backend could not start an attempt; nothing of it runs."""
    job = repository.lock_jobs(session, [attempt.job_id]).get(JobId(attempt.job_id))
    current = attempts_repository.find_attempt(session, attempt.id)
    if current is None or job is None or current.state == "ended":
        return
    verdict = AttemptVerdict(Standing.OVER, word, message)
    finish_attempt(session, job, current, verdict, chance(), now)


def end_never_started(
    session: WriteSession, attempt_id: AttemptId, chance: Chance, now: int
) -> None:
    """End a stopping attempt that its backend never knew and may never start."""
    known = attempts_repository.find_attempt(session, attempt_id)
    if known is None:
        return
    job = repository.lock_jobs(session, [known.job_id]).get(JobId(known.job_id))
    attempt = attempts_repository.find_attempt(session, attempt_id)
    if job is None or attempt is None or attempt.state == "ended":
        return
    verdict = AttemptVerdict(Standing.OVER, attempt.stop_reason, attempt.stop_message)
    finish_attempt(session, job, attempt, verdict, chance(), now)


def end_unstarted(
    session: WriteSession, attempt_id: AttemptId, known: frozenset[int], chance: Chance, now: int
) -> bool:
    """End replicas that were to go before their backend knew them; True if that ended the attempt.

    They were added and not told yet when it was stopped or scaled down, or it has none at all: what
    its backend took on since forbids that they start.

    Args:
        known: The ranks that its backend knows.
    """
    read = attempts_repository.find_attempt(session, attempt_id)
    job = None if read is None else repository.lock_jobs(session, [read.job_id]).get(read.job_id)
    attempt = attempts_repository.find_attempt(session, attempt_id)
    if job is None or attempt is None or attempt.state == "ended":
        return False
    if attempt.state != "stopping":
        gone = [r for r in attempt.replicas if r.leaving_at and r.phase == "pending"]
        if unknown := [each for each in gone if each.rank not in known]:
            retire(session, job, attempt, unknown, now)
        return False
    replicas, verdict = judge_unstarted(job, attempt, known, now)
    moved = [each for each, old in zip(replicas, attempt.replicas, strict=True) if each != old]
    attempts_repository.update_replicas(
        session, [{"id": r.id, **{name: getattr(r, name) for name in _SEEN}} for r in moved]
    )
    if verdict.standing is not Standing.OVER:
        return False
    finish_attempt(session, job, attempt, verdict, chance(), now)
    return True


def take_in(
    session: WriteSession,
    seen: Sequence[ReplicaObservation],
    seal: Seal,
    chance: Chance,
    now: int,
    cluster_id: ClusterId | None = None,
) -> int:
    """Compare observations with what is stored and move attempts and jobs on; return changes.

    Args:
        seen: What was seen; attempts and epochs that are not current are passed over.
        cluster_id: Who saw it, None where that is sure: a manager that dispatched an attempt shows
            it too, and only the cluster that runs it tells how it is.
        seal: Seals a sensitive output.
        chance: Gives a number in [-1, 1] for the jitter of retries.
        now: The instant; ends are dated by what was seen, not later than this.
    """
    by_attempt: dict[AttemptId, list[ReplicaObservation]] = {}
    for observation in seen:
        by_attempt.setdefault(observation.ref.attempt_id, []).append(observation)
    stored = attempts_repository.load_attempts(session, list(by_attempt))
    current = {
        key: each
        for key, each in stored.items()
        if each.state != "ended" and cluster_id in (None, each.cluster_id)
    }
    jobs = repository.lock_jobs(session, [attempt.job_id for attempt in current.values()])
    if session.dialect == "postgresql":  # others may have moved them before the jobs were locked
        stored = attempts_repository.load_attempts(session, list(current))
        current = {key: each for key, each in stored.items() if each.state != "ended"}
    changes = 0
    for attempt_id, attempt in current.items():
        job = jobs.get(attempt.job_id)
        observations = [o for o in by_attempt[attempt_id] if o.ref.epoch == attempt.epoch]
        if job is not None and observations:
            changes += _take_in_attempt(session, job, attempt, observations, seal, chance, now)
    return changes


def _take_in_attempt(
    session: WriteSession,
    job: Job,
    attempt: Attempt,
    observations: Sequence[ReplicaObservation],
    seal: Seal,
    chance: Chance,
    now: int,
) -> int:
    attempt = join(session, job, attempt, observations, now)
    by_rank = {observation.rank: observation for observation in observations}
    of_all = next((each for each in observations if each.forbids), None)
    replicas, changed = [], []
    for replica in attempt.replicas:
        observation = by_rank.get(replica.rank, of_all)
        moved = replica if observation is None else _seen(replica, observation)
        replicas.append(moved)
        if moved != replica:
            changed.append({"id": replica.id, **{name: getattr(moved, name) for name in _SEEN}})
    attempts_repository.update_replicas(session, changed)
    reported = _reports(session, job, attempt, observations, seal, now)
    winners = {each.rank: each.for_attempt for each in observations if each.for_attempt}
    attempt, replicas = _follow_scale(session, reported, attempt, replicas, winners, now)
    verdict = judge_attempt(job, attempt, replicas)
    moved_on = _move_on(session, reported, attempt, replicas, verdict, chance, now)
    return len(changed) + moved_on


def _follow_scale(
    session: WriteSession,
    job: Job,
    attempt: Attempt,
    replicas: list[Replica],
    winners: Mapping[int, AttemptId],
    now: int,
) -> tuple[Attempt, list[Replica]]:
    """Take replicas away that left, and meter those that were added as working once they run.

    An attempt that is being stopped ends as a whole, with all that it has.
    """
    if attempt.replicas_wanted is None or attempt.state == "stopping":
        return attempt, replicas
    before = {each.id: each for each in attempt.replicas}
    begun = [
        each.id
        for each in replicas
        if each.phase == "running" and before[each.id].phase != "running"
    ]
    if begun and job.status is JobStatus.RUNNING:
        placements.mark_replicas_busy(session, begun, now)
    gone = [each for each in replicas if has_left(attempt, each)]
    if not gone:
        return attempt, replicas
    stored = attempts_repository.find_attempt(session, attempt.id) or attempt
    moved = retire(session, job, stored, gone, now, winners)
    if is_bare(moved) and any(each.reason == Word.PREEMPTED for each in gone):
        note_all_preempted(session, job, moved, gone, winners, now)
        moved = attempts_repository.find_attempt(session, moved.id) or moved
    return moved, [each for each in replicas if each not in gone]


def _seen(replica: Replica, observation: ReplicaObservation) -> Replica:
    return replace(
        replica,
        phase=str(observation.phase),
        ready=observation.ready,
        started_at=observation.started_at or replica.started_at,
        ended_at=observation.ended_at,
        exit_code=observation.exit_code,
        signal=observation.signal,
        reason=observation.reason,
        message=observation.message,
        url=observation.url,
        restart_count=observation.restart_count,
        gpu_memory_peak_mib=_higher(observation.gpu_memory_peak_mib, replica.gpu_memory_peak_mib),
        gpu_utilization_permille=_last(
            observation.gpu_utilization_permille, replica.gpu_utilization_permille
        ),
    )


def _higher(seen: int | None, stored: int | None) -> int | None:
    """Return the higher of two peaks: a backend that started again measures from then on."""
    known = [each for each in (seen, stored) if each is not None]
    return max(known, default=None)


def _last(seen: int | None, stored: int | None) -> int | None:
    """Return what is seen now, else what was: an end need not repeat what was measured."""
    return stored if seen is None else seen


def _reports(
    session: WriteSession,
    job: Job,
    attempt: Attempt,
    observations: Sequence[ReplicaObservation],
    seal: Seal,
    now: int,
) -> Job:
    """Store progress, checkpoints, outputs and the URL that replicas reported."""
    changes: dict[str, Any] = {}
    progress = [o.progress_ratio for o in observations if o.progress_ratio is not None]
    if progress and min(progress) != job.progress_ratio:
        changes["progress_ratio"] = min(progress)
    for observation in observations:
        if observation.checkpoint and observation.checkpoint != job.last_checkpoint:
            at = observation.checkpoint_at or now
            changes["last_checkpoint"], changes["last_checkpoint_at"] = observation.checkpoint, at
            store_checkpoint(session, job, attempt, observation.checkpoint, at, progress)
    outputs = dict(job.outputs)
    first = min((each.rank for each in attempt.replicas), default=0)
    for observation in observations:
        outputs.update(_public_outputs(session, job, observation.outputs or {}, seal, now))
        if observation.url and observation.rank == first:
            outputs.update(url=observation.url, port=observation.port)
    if outputs != job.outputs:
        changes["outputs"] = outputs
    if not changes or not repository.update_job(session, job, now, **changes):
        return job
    return replace(job, version=job.version + 1, **changes)


def _public_outputs(
    session: WriteSession, job: Job, outputs: Mapping[str, Any], seal: Seal, now: int
) -> dict[str, Any]:
    public: dict[str, Any] = {}
    sealed = repository.list_sealed_outputs(session, job.id) if outputs else {}
    for name, value in outputs.items():
        if not is_sensitive_output(name):
            public[name] = value
        elif name not in sealed:
            text = value if isinstance(value, str) else json.dumps(value)
            repository.store_sealed_output(session, job.id, name, seal(text), now)
    return public


def store_checkpoint(
    session: WriteSession,
    job: Job,
    attempt: Attempt | None,
    path: str,
    at: int,
    progress: Sequence[float],
) -> None:
    """Keep one reported checkpoint and forget those beyond what the job keeps."""
    attempts_repository.insert_checkpoint(
        session,
        {
            "id": new_id(),
            "job_id": job.id,
            "attempt_id": attempt.id if attempt else None,
            "at": at,
            "path": path,
            "progress_ratio": min(progress, default=None),
        },
    )
    config = job.spec.checkpoint
    keep = config.max_checkpoints if config is not None else 3
    old = attempts_repository.list_checkpoints(session, job.id)[keep:]
    attempts_repository.delete_checkpoints(session, [row["id"] for row in old])
    events.record(
        session,
        job_event(job, "job.checkpointed", at, message="It wrote a checkpoint.",
                  data={"path": path}),
    )  # fmt: skip


def _move_on(
    session: WriteSession,
    job: Job,
    attempt: Attempt,
    replicas: Sequence[Replica],
    verdict: AttemptVerdict,
    chance: Chance,
    now: int,
) -> int:
    if verdict.standing is Standing.OVER:
        ends = [replica.ended_at for replica in replicas if replica.ended_at is not None]
        ended = min(now, max(ends, default=now))
        if _has_run_unseen(job, attempt, replicas):
            job, attempt = _note_running(session, job, attempt, replicas, now, tell=False)
        finish_attempt(session, job, attempt, verdict, chance(), ended)
        return 1
    if verdict.standing is Standing.FAILING:
        return int(
            request_stop(
                session, job, StopIntent.FAIL, verdict.word, verdict.message, now, grace_s=5
            )
        )
    if attempt.state == "stopping":
        return 0
    if verdict.standing is Standing.UNREACHABLE:
        return _note_unreachable(session, job, attempt, now)
    if verdict.standing is Standing.RUNNING and (
        job.status is not JobStatus.RUNNING or job.condition is Condition.UNREACHABLE
    ):
        _note_running(session, job, attempt, replicas, now, tell=True)
        return 1
    return 0


def _has_run_unseen(job: Job, attempt: Attempt, replicas: Sequence[Replica]) -> bool:
    """Return whether what is over has run between two looks.

    A service runs once it is ready: one that was stopped before it was never ran, whatever its
    processes did.
    """
    if job.actual_start is not None or not any(each.started_at for each in replicas):
        return False
    return job.job_type is not JobType.SERVICE or attempt.state != "stopping"


def _note_running(
    session: WriteSession,
    job: Job,
    attempt: Attempt,
    replicas: Sequence[Replica],
    now: int,
    *,
    tell: bool,
) -> tuple[Job, Attempt]:
    """Record that an attempt runs; return it and its job as they are stored now."""
    started = max((r.started_at for r in replicas if r.started_at is not None), default=now)
    started = min(max(started, attempt.admitted_at), now)
    duration_s = expected_s(
        job.spec.estimated_duration_s, learned_of(attempt), job.spec.max_duration_s
    )
    changes: dict[str, Any] = {
        "status": str(JobStatus.RUNNING),
        "condition": "",
        "condition_at": None,
        "reason": "",
        "status_message": "",
        "actual_start": started,
        "actual_end": None,
        "estimated_end": None if duration_s is None else started + duration_s * 1000,
        "due_at": next_due(replace(job, status=JobStatus.RUNNING, actual_start=started), now),
    }
    repository.update_job(session, job, now, **changes)
    if attempt.state != "stopping":
        attempts_repository.update_attempts(
            session, [{"id": attempt.id, "state": "running", "started_at": started}]
        )
        if attempt.by_pod:  # others may join and start much later
            works = [each.id for each in replicas if each.phase == "running"]
            placements.mark_replicas_busy(session, works, started)
        else:
            placements.mark_busy(session, [attempt.id], started)
    events.record(
        session,
        job_event(
            job, "job.running", started, message=f"{job.name} runs.",
            data={
                "attempt": attempt.number,
                "from_status": str(job.status),
                "start_ms": started - attempt.admitted_at,
            },
        ),
    )  # fmt: skip
    if tell:
        session.wake("monitor")
    moved = repository.find_job(session, job.id)
    now_running = attempts_repository.find_attempt(session, attempt.id)
    return moved or job, now_running or attempt


def _note_unreachable(session: WriteSession, job: Job, attempt: Attempt, now: int) -> int:
    if job.condition is Condition.UNREACHABLE:
        return 0
    repository.update_job(
        session, job, now, condition=str(Condition.UNREACHABLE), condition_at=now,
        reason=str(Word.NODE_LOST), status_message="Its node cannot be reached just now.",
    )  # fmt: skip
    placements.mark_idle(session, [attempt.id], now)
    events.record(
        session,
        job_event(job, "job.unreachable", now, reason=str(Word.NODE_LOST),
                  message="Its node cannot be reached; it keeps its devices and its meter."),
    )  # fmt: skip
    return 1
