"""Queries on jobs, their dependencies and their outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any
from uuid import UUID

from sqlalchemy import (
    RowMapping,
    Text,
    bindparam,
    cast,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from gpuplane.core.ids import JobId
from gpuplane.core.lifecycle.jobs import TERMINAL, WAITING, Condition, JobStatus
from gpuplane.core.scheduling.inheritance import Dependent
from gpuplane.core.workloads import DependencyCondition, Priority, ResourceRequest
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import Unreadable, table_of
from gpuplane.domains.jobs.errors import JobUnreadable
from gpuplane.domains.jobs.rules import DependencyState, Job
from gpuplane.domains.jobs.tables import (
    DecisionRow,
    DependencyRow,
    JobRow,
    LabelRow,
    ReplicaRow,
    SealedOutputRow,
)

jobs = table_of(JobRow)
dependencies = table_of(DependencyRow)
outputs = table_of(SealedOutputRow)
labels = table_of(LabelRow)
decisions = table_of(DecisionRow)

CHUNK = 500
"""Ids per IN list: SQLite's oldest limit on variables is 999."""
_NAMES = tuple(each.name for each in fields(Job))


def job_of(row: RowMapping) -> Job:
    """Return the value of a row.

    Raises:
        JobUnreadable: If its specification is damaged.
    """
    if isinstance(row["spec"], Unreadable):
        raise JobUnreadable(
            f"The specification of job {row['id']} cannot be read: {row['spec'].error}",
            fix="`gpuplane db check` names every damaged row; a backup may hold the good one.",
        )
    values = {name: row[name] for name in _NAMES}
    values["status"] = JobStatus(values["status"])
    values["condition"] = Condition(values["condition"])
    values["failures_at"] = tuple(values["failures_at"])
    values["warned"] = tuple(values["warned"])
    return Job(**values)


def _readable(rows: Sequence[RowMapping]) -> list[Job]:
    """Return the values of rows; damaged ones are left out, so that they stop nobody else."""
    return [job_of(row) for row in rows if not isinstance(row["spec"], Unreadable)]


def values_of(job: Job) -> dict[str, Any]:
    """Return the row of a value."""
    spec = job.spec
    values: dict[str, Any] = {name: getattr(job, name) for name in _NAMES}
    values.update(
        status=str(job.status),
        condition=str(job.condition),
        failures_at=list(job.failures_at),
        warned=list(job.warned),
        job_type=str(spec.job_type),
        deployment_type=str(spec.deployment_type),
        priority=str(spec.priority),
        gpu_model=spec.resources.gpu_model,
        gpu_count=spec.resources.gpu_count * spec.replicas.count,
        cost_centre=spec.cost_centre,
        data_classification=spec.data_classification,
    )
    return values


def insert_jobs(session: WriteSession, rows: Sequence[Job]) -> None:
    """Store new jobs and what they come after."""
    session.execute(insert(jobs), [values_of(job) for job in rows])
    session.execute(insert(labels), [row for job in rows for row in _label_rows(job)])
    edges = [
        {"job_id": job.id, "after_id": each.job_id, "condition": str(each.condition)}
        for job in rows
        for each in job.spec.after
    ]
    session.execute(insert(dependencies), edges)


def _label_rows(job: Job) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": value, "created_at": job.created_at, "job_id": job.id}
        for key, value in job.labels.items()
    ]


def find_job(session: ReadSession, job_id: UUID) -> Job | None:
    """Return a job, or None."""
    row = session.row(select(jobs).where(jobs.c.id == job_id))
    return None if row is None else job_of(row)


def find_of_source(session: ReadSession, source_type: str, source_id: str) -> JobId | None:
    """Return the newest job that a source made, or None."""
    found = session.scalar(
        select(jobs.c.id)
        .where(jobs.c.source_id == source_id, jobs.c.source_type == source_type)
        .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
        .limit(1)
    )
    return None if found is None else JobId(found)


def find_by_key(session: ReadSession, tenant_id: UUID, key: str) -> Job | None:
    """Return the job a tenant submitted under an idempotency key, or None."""
    row = session.row(
        select(jobs).where(jobs.c.tenant_id == tenant_id, jobs.c.idempotency_key == key)
    )
    return None if row is None else job_of(row)


def load_jobs(session: ReadSession, job_ids: Sequence[UUID]) -> dict[JobId, Job]:
    """Return jobs by id; ids that are not known, and damaged rows, are left out."""
    found: dict[JobId, Job] = {}
    for start in range(0, len(job_ids), CHUNK):
        query = select(jobs).where(jobs.c.id.in_(job_ids[start : start + CHUNK]))
        for job in _readable(session.rows(query)):
            found[job.id] = job
    return found


def lock_jobs(session: WriteSession, job_ids: Sequence[UUID]) -> dict[JobId, Job]:
    """Return jobs by id and keep others from changing them until the commit.

    On SQLite the writer is alone anyway; on PostgreSQL rows are locked in the order of their ids,
    so that two units never wait for each other in a circle.
    """
    if session.dialect != "postgresql":
        return load_jobs(session, job_ids)
    found: dict[JobId, Job] = {}
    ordered = sorted(job_ids)
    for start in range(0, len(ordered), CHUNK):
        query = (
            select(jobs)
            .where(jobs.c.id.in_(ordered[start : start + CHUNK]))
            .order_by(jobs.c.id)
            .with_for_update()
        )
        for job in _readable(session.rows(query)):
            found[job.id] = job
    return found


def hold_jobs(session: WriteSession, job_ids: Sequence[UUID]) -> None:
    """Keep others from changing jobs and their attempts until the commit; reads nothing of them.

    Whoever changes an attempt holds its job first; what was read before may be old.
    """
    if session.dialect != "postgresql":
        return
    ordered = sorted(job_ids)
    for start in range(0, len(ordered), CHUNK):
        part = jobs.c.id.in_(ordered[start : start + CHUNK])
        session.rows(select(jobs.c.id).where(part).order_by(jobs.c.id).with_for_update())


def list_by_status(
    session: ReadSession, statuses: Sequence[JobStatus], limit: int | None = None
) -> list[Job]:
    """Return jobs in some statuses, oldest first."""
    query = (
        select(jobs)
        .where(jobs.c.status.in_([str(each) for each in statuses]))
        .order_by(jobs.c.created_at, jobs.c.id)
    )
    if limit is not None:
        query = query.limit(limit)
    return _readable(session.rows(query))


def list_versions(session: ReadSession, status: JobStatus) -> list[tuple[JobId, int]]:
    """Return (id, version) of the jobs in a status, oldest first."""
    query = (
        select(jobs.c.id, jobs.c.version)
        .where(jobs.c.status == str(status))
        .order_by(jobs.c.created_at, jobs.c.id)
    )
    return [(row[0], row[1]) for row in session.sql.execute(query)]


def list_held(session: ReadSession) -> list[tuple[str, str, ResourceRequest, int]]:
    """Return (type, status, request, replicas) of every job that holds devices."""
    holding = [str(JobStatus.SCHEDULED), str(JobStatus.RUNNING)]
    replicas = table_of(ReplicaRow)
    there = select(func.count()).where(replicas.c.attempt_id == jobs.c.current_attempt_id)
    query = select(
        jobs.c.job_type, jobs.c.status, jobs.c.spec, there.correlate(jobs).scalar_subquery()
    ).where(jobs.c.status.in_(holding))
    return [
        (row[0], row[1], row[2].resources, row[3])
        for row in session.sql.execute(query)
        if not isinstance(row[2], Unreadable)
    ]


def list_due(session: ReadSession, now: int, limit: int) -> list[Job]:
    """Return jobs the monitor must look at now, longest due first."""
    query = (
        select(jobs)
        .where(jobs.c.due_at.is_not(None), jobs.c.due_at <= now)
        .order_by(jobs.c.due_at)
        .limit(limit)
    )
    return _readable(session.rows(query))


def next_due_at(session: ReadSession) -> int | None:
    """Return when the monitor must look at the next job, None for never."""
    waiting = jobs.c.due_at.is_not(None)  # by these words the partial index is found
    at: int | None = session.scalar(
        select(jobs.c.due_at).where(waiting).order_by("due_at").limit(1)
    )
    return at


def list_due_ids(session: ReadSession, now: int, limit: int) -> list[JobId]:
    """Return the ids of jobs the monitor must look at now, longest due first."""
    query = (
        select(jobs.c.id)
        .where(jobs.c.due_at.is_not(None), jobs.c.due_at <= now)
        .order_by(jobs.c.due_at)
        .limit(limit)
    )
    return [row["id"] for row in session.rows(query)]


def list_waiting(
    session: ReadSession,
    priority: str,
    queued: tuple[int, int],
    without_mark: str,
    limit: int,
) -> list[Job]:
    """Return queued jobs of a class, longest wait first.

    Args:
        session: Where to read.
        priority: The class.
        queued: Since when they stand in line: from the first instant to before the second.
        without_mark: A once-only warning that they were not given.
        limit: The most to return.
    """
    query = (
        select(jobs)
        .where(
            jobs.c.status == str(JobStatus.QUEUED),
            jobs.c.priority == priority,
            jobs.c.queued_at >= queued[0],
            jobs.c.queued_at < queued[1],
            cast(jobs.c.warned, Text).not_like(f'%"{without_mark}"%'),
        )
        .order_by(jobs.c.queued_at)
        .limit(limit)
    )
    return _readable(session.rows(query))


def list_queued_on(session: ReadSession, cluster_id: UUID, limit: int) -> list[Job]:
    """Return the queued jobs that a cluster was asked for or given to, oldest first."""
    query = (
        select(jobs)
        .where(jobs.c.cluster_id == cluster_id, jobs.c.status == str(JobStatus.QUEUED))
        .order_by(jobs.c.created_at, jobs.c.id)
        .limit(limit)
    )
    return _readable(session.rows(query))


def list_pinned(session: ReadSession, cluster_id: UUID) -> list[Job]:
    """Return jobs that hold nothing and may run on one cluster alone."""
    waiting = [str(status) for status in WAITING]
    query = select(jobs).where(
        jobs.c.requested_cluster_id == cluster_id, jobs.c.status.in_(waiting)
    )
    return _readable(session.rows(query.order_by(jobs.c.created_at, jobs.c.id)))


def mark_warned(session: WriteSession, job_id: JobId, warned: Sequence[str]) -> None:
    """Store which once-only warnings a job was given, without counting a version."""
    session.execute(update(jobs).where(jobs.c.id == job_id).values(warned=list(warned)))


def update_job(session: WriteSession, job: Job, now: int, **changes: Any) -> bool:
    """Change a job if it still has the version that was read; False when it is stale."""
    touched = session.execute(
        update(jobs)
        .where(jobs.c.id == job.id, jobs.c.version == job.version)
        .values(version=job.version + 1, updated_at=now, **changes)
    )
    return touched == 1


def update_many(session: WriteSession, changes: Sequence[Mapping[str, Any]]) -> None:
    """Change many locked jobs alike: each mapping has `id` and the same other keys."""
    if not changes:
        return
    names = [name for name in changes[0] if name != "id"]
    statement = (
        update(jobs)
        .where(jobs.c.id == bindparam("job_key"))
        .values(version=jobs.c.version + 1, **{name: bindparam(f"new_{name}") for name in names})
    )
    session.execute(
        statement,
        [
            {"job_key": each["id"], **{f"new_{name}": each[name] for name in names}}
            for each in changes
        ],
    )


def note_reasons(session: WriteSession, changes: Sequence[Mapping[str, Any]]) -> None:
    """Store why queued jobs of a version wait, without counting a version."""
    if not changes:
        return
    statement = (
        update(jobs)
        .where(
            jobs.c.id == bindparam("job_key"),
            jobs.c.version == bindparam("job_version"),
            jobs.c.status == str(JobStatus.QUEUED),
        )
        .values(
            reason=bindparam("new_reason"),
            status_message=bindparam("new_message"),
            reason_counts=bindparam("new_counts"),
        )
    )
    session.execute(
        statement,
        [
            {
                "job_key": each["id"],
                "job_version": each["version"],
                "new_reason": each["reason"],
                "new_message": each["status_message"],
                "new_counts": each["reason_counts"],
            }
            for each in changes
        ],
    )


def set_manifests(session: WriteSession, manifests: Mapping[JobId, dict[str, Any]]) -> None:
    """Store reproducibility manifests, without counting a version."""
    if manifests:
        session.execute(
            update(jobs)
            .where(jobs.c.id == bindparam("job_key"))
            .values(manifest=bindparam("new_manifest")),
            [{"job_key": key, "new_manifest": value} for key, value in manifests.items()],
        )


def set_due(session: WriteSession, job_ids: Sequence[UUID], at: int | None) -> None:
    """Make the monitor look at these jobs at an instant, without counting a version.

    None: nothing happens to them by time alone.
    """
    for start in range(0, len(job_ids), CHUNK):
        part = job_ids[start : start + CHUNK]
        session.execute(update(jobs).where(jobs.c.id.in_(part)).values(due_at=at))


def list_dependents(session: ReadSession, job_id: UUID) -> list[JobId]:
    """Return waiting jobs that come after a job."""
    query = (
        select(dependencies.c.job_id)
        .join(jobs, jobs.c.id == dependencies.c.job_id)
        .where(dependencies.c.after_id == job_id, jobs.c.status == str(JobStatus.PENDING))
    )
    return [row["job_id"] for row in session.rows(query)]


def list_dependencies(session: ReadSession, job_id: UUID) -> tuple[DependencyState, ...]:
    """Return where the jobs stand that a job comes after."""
    query = (
        select(dependencies.c.after_id, dependencies.c.condition, jobs.c.status)
        .outerjoin(jobs, jobs.c.id == dependencies.c.after_id)
        .where(dependencies.c.job_id == job_id)
        .order_by(dependencies.c.after_id)
    )
    return tuple(
        DependencyState(
            row["after_id"],
            DependencyCondition(row["condition"]),
            None if row["status"] is None else JobStatus(row["status"]),
        )
        for row in session.rows(query)
    )


def list_waiting_dependents(session: ReadSession) -> list[Dependent]:
    """Return each "comes after" of a job that waits for it, and whose other job is not over."""
    earlier = jobs.alias("earlier")
    over = [str(status) for status in TERMINAL]
    query = (
        select(dependencies.c.job_id, dependencies.c.after_id, jobs.c.priority)
        .join(jobs, jobs.c.id == dependencies.c.job_id)
        .join(earlier, earlier.c.id == dependencies.c.after_id)
        .where(
            jobs.c.status == str(JobStatus.PENDING),
            jobs.c.condition != str(Condition.PAUSED),
            earlier.c.status.not_in(over),
        )
    )
    return [
        Dependent(row["job_id"], row["after_id"], Priority(row["priority"]))
        for row in session.rows(query)
    ]


def count_active_in_array(session: ReadSession, array_id: UUID) -> int:
    """Return jobs of an array that are queued, admitted or running."""
    active = [str(s) for s in (JobStatus.QUEUED, JobStatus.SCHEDULED, JobStatus.RUNNING)]
    query = select(func.count()).where(jobs.c.array_id == array_id, jobs.c.status.in_(active))
    return int(session.scalar(query) or 0)


def list_waiting_in_array(session: ReadSession, array_id: UUID, limit: int) -> list[JobId]:
    """Return pending jobs of an array, lowest index first."""
    query = (
        select(jobs.c.id)
        .where(jobs.c.array_id == array_id, jobs.c.status == str(JobStatus.PENDING))
        .order_by(jobs.c.array_index)
        .limit(limit)
    )
    return [row["id"] for row in session.rows(query)]


def list_array(session: ReadSession, array_id: UUID) -> list[Job]:
    """Return the jobs of an array by index."""
    query = select(jobs).where(jobs.c.array_id == array_id).order_by(jobs.c.array_index)
    return _readable(session.rows(query))


def list_unfinished_in_array(
    session: ReadSession, array_id: UUID, below: int | None, limit: int
) -> list[Job]:
    """Return jobs of an array that are not over, from the index under `below` down."""
    open_words = [str(status) for status in JobStatus if status not in TERMINAL]
    query = select(jobs).where(jobs.c.array_id == array_id, jobs.c.status.in_(open_words))
    if below is not None:
        query = query.where(jobs.c.array_index < below)
    query = query.order_by(jobs.c.array_index.desc()).limit(limit)
    return _readable(session.rows(query))


def list_array_ids(session: ReadSession, array_id: UUID) -> list[JobId]:
    """Return the ids of an array's jobs by index."""
    query = select(jobs.c.id).where(jobs.c.array_id == array_id).order_by(jobs.c.array_index)
    return [row["id"] for row in session.rows(query)]


def count_unfinished(session: ReadSession, tenant_id: UUID, project_id: UUID | None = None) -> int:
    """Return the jobs of a tenant, or of one of its projects, that are not over."""
    over = [str(s) for s in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)]
    query = select(func.count()).where(jobs.c.tenant_id == tenant_id, jobs.c.status.not_in(over))
    if project_id is not None:
        query = query.where(jobs.c.project_id == project_id)
    return int(session.scalar(query) or 0)


def store_sealed_output(
    session: WriteSession, job_id: JobId, name: str, sealed: bytes, now: int
) -> None:
    """Keep one sealed output, in place of an earlier one of that name."""
    session.execute(delete(outputs).where(outputs.c.job_id == job_id, outputs.c.name == name))
    session.execute(insert(outputs).values(job_id=job_id, name=name, sealed=sealed, created_at=now))


def list_sealed_outputs(session: ReadSession, job_id: JobId) -> dict[str, bytes]:
    """Return a job's sealed outputs by name."""
    query = select(outputs.c.name, outputs.c.sealed).where(outputs.c.job_id == job_id)
    return {row["name"]: row["sealed"] for row in session.rows(query.order_by(outputs.c.name))}


def list_ended(session: ReadSession, ended_before: int, limit: int) -> list[JobId]:
    """Return jobs that ended before an instant and that no waiting job comes after."""
    over = [str(s) for s in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)]
    follower = jobs.alias("follower")
    is_awaited = exists().where(
        dependencies.c.after_id == jobs.c.id,
        follower.c.id == dependencies.c.job_id,
        follower.c.status.not_in(over),
    )
    query = (
        select(jobs.c.id)
        .where(jobs.c.status.in_(over), jobs.c.updated_at < ended_before, ~is_awaited)
        .limit(limit)
    )
    return [row["id"] for row in session.rows(query)]


def delete_jobs(session: WriteSession, job_ids: Sequence[UUID]) -> None:
    """Forget jobs; their attempts, replicas, checkpoints and outputs go with them."""
    for start in range(0, len(job_ids), CHUNK):
        session.execute(delete(jobs).where(jobs.c.id.in_(job_ids[start : start + CHUNK])))


def prune_decisions(session: WriteSession, before: int) -> int:
    """Forget the headers of cycles before an instant and return how many."""
    return session.execute(delete(decisions).where(decisions.c.at < before))
