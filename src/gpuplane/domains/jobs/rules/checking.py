"""What must hold between jobs, attempts, allocations and their history; each fault a sentence."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from gpuplane.core.lifecycle.jobs import HOLDING, JobStatus, find_edge

STATUS_WORDS = frozenset(str(status) for status in JobStatus)
HOLDING_WORDS = frozenset(str(status) for status in HOLDING)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands by its row."""

    id: UUID
    name: str
    status: str
    current_attempt_id: UUID | None


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt that is not over, with what each of its replicas must hold."""

    id: UUID
    job_id: UUID
    cluster_id: UUID
    replicas: Mapping[UUID, tuple[str, ...]]
    """Replica to the GPUs it runs on."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One open allocation; `gpu_id` None is the replica's part of its node."""

    attempt_id: UUID
    replica_id: UUID
    job_id: UUID
    cluster_id: UUID
    gpu_id: str | None


@dataclass(frozen=True, slots=True)
class Told:
    """One event of a job as its history reads it."""

    kind: str
    from_status: str


def attempt_faults(jobs: Sequence[Standing], attempts: Sequence[OpenAttempt]) -> list[str]:
    """Return where holding jobs and open attempts do not belong to each other one by one."""
    faults: list[str] = []
    open_of = Counter(attempt.job_id for attempt in attempts)
    by_id = {attempt.id: attempt for attempt in attempts}
    for job in jobs:
        count = open_of[job.id]
        if job.status in HOLDING_WORDS:
            current = by_id.get(job.current_attempt_id) if job.current_attempt_id else None
            if count != 1:
                faults.append(f"Job {job.name} ({job.id}) is {job.status} with {count} attempts.")
            elif current is None or current.job_id != job.id:
                faults.append(
                    f"Job {job.name} ({job.id}) is {job.status}, and its attempt is not the "
                    "open one."
                )
        elif count or job.current_attempt_id is not None:
            faults.append(
                f"Job {job.name} ({job.id}) is {job.status} and has an attempt that is not over."
            )
    known = {job.id for job in jobs}
    faults.extend(
        f"Attempt {attempt.id} is open, and its job {attempt.job_id} is not there."
        for attempt in attempts
        if attempt.job_id not in known
    )
    return faults


def holding_faults(attempts: Sequence[OpenAttempt], held: Iterable[Holding]) -> list[str]:
    """Return where open attempts and open allocations are not the same thing."""
    faults: list[str] = []
    by_id = {attempt.id: attempt for attempt in attempts}
    found: dict[UUID, Counter[str | None]] = {}
    for row in held:
        attempt = by_id.get(row.attempt_id)
        if attempt is None:
            what = row.gpu_id or "a part of its node"
            faults.append(f"Attempt {row.attempt_id} is over and still holds {what}.")
        elif row.replica_id not in attempt.replicas:
            faults.append(f"Attempt {attempt.id} holds for a replica that it does not have.")
        elif (row.job_id, row.cluster_id) != (attempt.job_id, attempt.cluster_id):
            faults.append(f"Attempt {attempt.id} holds in the name of another job or cluster.")
        else:
            found.setdefault(row.replica_id, Counter())[row.gpu_id] += 1
    for attempt in attempts:
        for replica_id, gpu_ids in attempt.replicas.items():
            wanted: Counter[str | None] = Counter([None, *gpu_ids])
            if found.get(replica_id, Counter()) != wanted:
                faults.append(
                    f"Attempt {attempt.id} does not hold what its replica {replica_id} runs on."
                )
    return faults


def history_faults(job: str, status: str | None, told: Sequence[Told]) -> list[str]:
    """Return where a job's events do not lead by allowed edges to where it stands.

    Args:
        job: How to name it.
        status: Its status now, or None when it is gone and only its history is left.
        told: Its events, oldest first; the first ones may have been pruned.
    """
    faults: list[str] = []
    at = ""
    for event in told:
        target = event.kind.removeprefix("job.")
        if target == "suspended" and event.from_status == JobStatus.QUEUED:
            target = str(JobStatus.PENDING)  # told by its cause
        if target not in STATUS_WORDS:
            continue
        source = event.from_status or at
        if at and source != at:
            faults.append(f"Job {job} was {at} and is told to have left {source}.")
        if source and source != target and find_edge(JobStatus(source), JobStatus(target)) is None:
            faults.append(f"Job {job} went from {source} to {target}, which is no allowed edge.")
        at = target
    if at and status is not None and at != status:
        faults.append(f"Job {job} is {status}, and its history ends with {at}.")
    return faults
