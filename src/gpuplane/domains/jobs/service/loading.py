"""Jobs as the scheduler sees them: pending and running workloads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuplane.core.fleet.facts import Allocation, parse_mig_device
from gpuplane.core.ids import AttemptId, GpuId, JobId
from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.prediction.durations import choose_durations
from gpuplane.core.prediction.hints import hint_of
from gpuplane.core.prediction.predicting import Prediction
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import DeadlineAction, JobType, SourceType
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Attempt, Job

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Door:
    """The LocalQueue and ClusterQueue a workload goes through."""

    local_queue: str | None
    cluster_queue: str


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that holds devices, with its open attempt."""

    job: Job
    attempt: Attempt


def list_queued_versions(session: ReadSession) -> list[tuple[JobId, int]]:
    """Return (job, version) of every job in the queue, oldest first."""
    return repository.list_versions(session, JobStatus.QUEUED)


def list_holding_versions(session: ReadSession) -> list[tuple[AttemptId, int, JobId, int]]:
    """Return (attempt, version, job, version) of every attempt that holds devices."""
    return attempts_repository.list_open_versions(session)


def load_running(session: ReadSession, attempt_ids: Sequence[AttemptId]) -> list[RunningJob]:
    """Return jobs that hold devices with these open attempts."""
    attempts = attempts_repository.load_attempts(session, attempt_ids)
    jobs = repository.load_jobs(session, [attempt.job_id for attempt in attempts.values()])
    return [
        RunningJob(jobs[attempt.job_id], attempt)
        for attempt in attempts.values()
        if attempt.job_id in jobs
    ]


@dataclass(frozen=True, slots=True)
class HeldResources:
    """What jobs of one type hold now, and how much of it is held by running attempts."""

    job_type: str
    gpu_milli: int
    gpu_milli_running: int
    cpu_milli: int
    cpu_milli_running: int
    memory_mib: int
    memory_mib_running: int


def sum_held(session: ReadSession) -> list[HeldResources]:
    """Return what is held by job type; every type is there, so that gauges fall back to 0."""
    sums = {str(kind): [0] * 6 for kind in JobType}
    running = {str(JobStatus.RUNNING)}
    for job_type, status, asked, replicas in repository.list_held(session):
        row = sums[job_type]
        amounts = (
            asked.gpu_count * asked.gpu_milli * replicas,
            asked.cpu_milli * replicas,
            asked.memory_mib * replicas,
        )
        for index, amount in enumerate(amounts):
            row[2 * index] += amount
            row[2 * index + 1] += amount * (status in running)
    return [HeldResources(kind, *row) for kind, row in sums.items()]


def list_recent_preemptions(session: ReadSession, now: int) -> dict[object, tuple[int, ...]]:
    """Return when each preemption of the last hour counts no more, in order, by cluster."""
    found = attempts_repository.list_preempted(session, now - HOUR_MS)
    return {key: tuple(at + HOUR_MS for at in each) for key, each in found.items()}


def workload_of(
    job: Job, tenant: str, project: str, door: Door, prediction: Prediction | None = None
) -> Workload:
    """Return a job as the decision core reads it, with what is predicted of it."""
    spec = job.spec
    learned, hint = None, None
    if prediction is not None:
        learned = prediction.learned
        known = choose_durations(spec.estimated_duration_s, learned, spec.max_duration_s, 0)
        hint = hint_of(prediction, known)
    return Workload(
        job_id=job.id,
        version=job.version,
        tenant=tenant,
        project=project,
        queue=door.cluster_queue,
        local_queue=door.local_queue,
        submitted_at=job.created_at,
        queued_at=job.queued_at or job.created_at,
        priority=spec.priority,
        resources=spec.resources,
        placement=spec.placement,
        replicas=spec.replicas,
        deadline=spec.deadline,
        is_cancelled_at_deadline=spec.deadline_action is DeadlineAction.CANCEL,
        estimated_duration_s=spec.estimated_duration_s,
        max_duration_s=spec.max_duration_s,
        window=spec.window,
        labels=job.labels,
        promised_until=job.promised_until,
        learned=learned,
        hint=hint,
        preemptible=spec.preemptible,
        preempts_others=spec.preempts_others,
        source=SourceType(job.source_type),
    )


def allocations_of(job: Job, attempt: Attempt) -> tuple[Allocation, ...]:
    """Return what an open attempt holds, one value a replica, as the decision core reads it."""
    asked = job.spec.resources
    return tuple(
        Allocation(
            job_id=job.id,
            node_id=replica.node_id,
            rank=replica.rank,
            gpu_ids=tuple(GpuId(gpu) for gpu in replica.gpu_ids),
            gpu_milli=replica.gpu_milli,
            mig=parse_mig_device(replica.mig_device),
            cpu_milli=asked.cpu_milli,
            memory_mib=asked.memory_mib,
            ephemeral_mib=asked.ephemeral_mib,
        )
        for replica in attempt.replicas
    )


def running_of(
    running: RunningJob, tenant: str, project: str, prediction: Prediction | None = None
) -> RunningWorkload:
    """Return a job that holds devices as the decision core reads it."""
    job, attempt = running.job, running.attempt
    name = attempt.local_queue.rpartition("/")[2]  # kept as `cluster/name` for people
    door = Door(f"{tenant}/{name}" if name else None, attempt.cluster_queue)
    workload = workload_of(job, tenant, project, door, prediction)
    if attempt.replicas_wanted is not None:  # it has as many as it was given until now
        has = replace(workload.replicas, count=len(attempt.replicas))
        workload = replace(workload, replicas=has)
    return RunningWorkload(
        workload=workload,
        cluster_id=attempt.cluster_id,
        allocations=allocations_of(job, attempt),
        started_at=attempt.started_at or attempt.admitted_at,
        usage={FlavorResource(flavor, what): n for flavor, what, n in attempt.quota_usage},
        checkpoint_at=job.last_checkpoint_at,
        progress_ratio=job.progress_ratio,
        expected_end=job.estimated_end,
        stopping=attempt.state == "stopping" or job.condition is Condition.STOPPING,
    )
