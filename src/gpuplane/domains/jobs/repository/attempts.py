"""Queries on attempts, replicas and checkpoints."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import RowMapping, and_, bindparam, delete, func, insert, or_, select, update

from gpuplane.core.ids import AttemptId, ClusterId, JobId
from gpuplane.core.lifecycle.jobs import StopIntent
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.jobs.repository.jobs import jobs
from gpuplane.domains.jobs.rules import Attempt, Replica
from gpuplane.domains.jobs.tables import AttemptRow, CheckpointRow, DecisionRow, ReplicaRow

attempts = table_of(AttemptRow)
replicas = table_of(ReplicaRow)
checkpoints = table_of(CheckpointRow)
decisions = table_of(DecisionRow)

CHUNK = 500
_ATTEMPT = tuple(each.name for each in fields(Attempt) if each.name != "replicas")
_REPLICA = tuple(each.name for each in fields(Replica))


class Tries(NamedTuple):
    """How many attempts a job has had, and how long they ran together."""

    number: int
    ran_ms: int


def insert_attempts(session: WriteSession, rows: Sequence[Attempt]) -> None:
    """Store new attempts with their replicas."""
    session.execute(insert(attempts), [_attempt_values(attempt) for attempt in rows])
    session.execute(
        insert(replicas),
        [_replica_values(replica) for attempt in rows for replica in attempt.replicas],
    )


def find_attempt(session: ReadSession, attempt_id: UUID) -> Attempt | None:
    """Return an attempt with its replicas, or None."""
    return load_attempts(session, [attempt_id]).get(AttemptId(attempt_id))


def load_attempts(session: ReadSession, ids: Sequence[UUID]) -> dict[AttemptId, Attempt]:
    """Return attempts by id, each with its replicas by rank."""
    found: dict[AttemptId, Attempt] = {}
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        rows = session.rows(select(attempts).where(attempts.c.id.in_(part)))
        for attempt in _with_replicas(session, rows):
            found[attempt.id] = attempt
    return found


def list_attempts(session: ReadSession, job_id: UUID) -> list[Attempt]:
    """Return a job's attempts, first to last."""
    query = select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.number)
    return _with_replicas(session, session.rows(query))


def sum_attempts(session: ReadSession, job_ids: Sequence[UUID], now: int) -> dict[JobId, Tries]:
    """Return what the attempts of each of some jobs come to; offers that became none do not count.

    Args:
        session: The session.
        job_ids: The jobs.
        now: Until when those that are not over ran.
    """
    found = dict.fromkeys((JobId(each) for each in job_ids), Tries(0, 0))
    ran = func.coalesce(attempts.c.ended_at, now) - attempts.c.started_at
    for start in range(0, len(job_ids), CHUNK):
        part = list(job_ids[start : start + CHUNK])
        query = select(
            attempts.c.job_id, func.count().label("count"), func.sum(ran).label("ran_ms")
        ).where(attempts.c.job_id.in_(part))
        for row in session.rows(query.group_by(attempts.c.job_id)):
            found[JobId(row["job_id"])] = Tries(row["count"], int(row["ran_ms"] or 0))
    return found


def load_scaled(session: ReadSession, ids: Sequence[UUID]) -> list[Attempt]:
    """Return those of these attempts whose number of replicas changes."""
    found: list[Attempt] = []
    for start in range(0, len(ids), CHUNK):
        query = select(attempts).where(
            attempts.c.id.in_(ids[start : start + CHUNK]), attempts.c.replicas_wanted.is_not(None)
        )
        found += _with_replicas(session, session.rows(query))
    return found


def list_runs(session: ReadSession, job_id: UUID, now: int) -> list[tuple[int, int]]:
    """Return from when until when each attempt of a job ran, first to last; until now at most."""
    query = (
        select(attempts.c.started_at, attempts.c.ended_at)
        .where(attempts.c.job_id == job_id, attempts.c.started_at.is_not(None))
        .order_by(attempts.c.number)
    )
    return [(row[0], now if row[1] is None else row[1]) for row in session.sql.execute(query)]


def list_by_state(
    session: ReadSession, states: Sequence[str], cluster_id: ClusterId | None, limit: int
) -> list[Attempt]:
    """Return attempts in some states, oldest first; of a cluster also those it dispatched."""
    query = select(attempts).where(attempts.c.state.in_(states))
    if cluster_id is not None:
        query = query.where(
            or_(attempts.c.cluster_id == cluster_id, attempts.c.manager_id == cluster_id)
        )
    query = query.order_by(attempts.c.admitted_at, attempts.c.id).limit(limit)
    return _with_replicas(session, session.rows(query))


def list_open_versions(session: ReadSession) -> list[tuple[AttemptId, int, JobId, int]]:
    """Return (attempt, version, job, version) of every attempt that is not over."""
    query = (
        select(attempts.c.id, attempts.c.version, jobs.c.id, jobs.c.version)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(attempts.c.state.in_(["admitted", "starting", "running", "stopping"]))
    )
    return [(row[0], row[1], row[2], row[3]) for row in session.sql.execute(query)]


@dataclass(frozen=True, slots=True)
class QuotaHold:
    """What one open attempt counts against its queues."""

    job_id: JobId
    cluster_queue: str
    local_queue: str
    quota_usage: tuple[tuple[str, str, int], ...]


def list_uses(session: ReadSession, cluster_id: ClusterId) -> list[QuotaHold]:
    """Return what every attempt that is not over counts against the queues of a cluster.

    What a manager dispatched counts against the manager's queues.
    """
    query = select(
        attempts.c.job_id, attempts.c.cluster_queue, attempts.c.local_queue, attempts.c.quota_usage
    ).where(
        or_(
            and_(attempts.c.cluster_id == cluster_id, attempts.c.manager_id.is_(None)),
            attempts.c.manager_id == cluster_id,
        ),
        attempts.c.state != "ended",
    )
    return [
        QuotaHold(
            row["job_id"],
            row["cluster_queue"],
            row["local_queue"],
            tuple((name, what, n) for name, what, n in row["quota_usage"]),
        )
        for row in session.rows(query)
    ]


def list_in_window(
    session: ReadSession, cluster_id: ClusterId, since: int, until: int, limit: int
) -> list[Attempt]:
    """Return a cluster's attempts that touched a window, by admission."""
    query = (
        select(attempts)
        .where(
            attempts.c.cluster_id == cluster_id,
            attempts.c.admitted_at < until,
            attempts.c.ended_at.is_(None) | (attempts.c.ended_at > since),
        )
        .order_by(attempts.c.admitted_at, attempts.c.id)
        .limit(limit)
    )
    return _with_replicas(session, session.rows(query))


def list_to_ensure(session: ReadSession, cluster_ids: Sequence[UUID], limit: int) -> list[Attempt]:
    """Return admitted attempts that no backend, one of these clusters', was told of yet."""
    query = (
        select(attempts)
        .where(attempts.c.state == "admitted", attempts.c.cluster_id.in_(cluster_ids))
        .order_by(attempts.c.admitted_at, attempts.c.id)
        .limit(limit)
    )
    return _with_replicas(session, session.rows(query))


def list_to_evict(session: ReadSession, cluster_ids: Sequence[UUID], limit: int) -> list[Attempt]:
    """Return stopping attempts whose backend, one of these clusters', was not told yet."""
    query = (
        select(attempts)
        .where(
            attempts.c.state == "stopping",
            attempts.c.evict_sent_at.is_(None),
            attempts.c.cluster_id.in_(cluster_ids),
        )
        .order_by(attempts.c.admitted_at, attempts.c.id)
        .limit(limit)
    )
    return _with_replicas(session, session.rows(query))


def list_to_release(session: ReadSession, manager_ids: Sequence[UUID], limit: int) -> list[Attempt]:
    """Return attempts that stop or are over and whose manager, one of these, was not told yet."""
    query = (
        select(attempts)
        .where(
            attempts.c.manager_id.in_(manager_ids),
            attempts.c.manager_told_at.is_(None),
            attempts.c.state.in_(("stopping", "ended")),
        )
        .order_by(attempts.c.admitted_at, attempts.c.id)
        .limit(limit)
    )
    return _with_replicas(session, session.rows(query))


def list_unforgotten(
    session: ReadSession, cluster_ids: Sequence[UUID], ended_before: int, limit: int
) -> list[Attempt]:
    """Return ended attempts whose backend, one of these clusters', still keeps their output."""
    query = (
        select(attempts)
        .where(
            attempts.c.cluster_id.in_(cluster_ids),
            attempts.c.state == "ended",
            attempts.c.forgotten.is_(False),
            attempts.c.ended_at < ended_before,
        )
        .limit(limit)
    )
    return _with_replicas(session, session.rows(query))


def list_kept_of(session: ReadSession, job_ids: Sequence[UUID]) -> list[Attempt]:
    """Return the attempts of these jobs whose backend still keeps their output."""
    found: list[Attempt] = []
    for start in range(0, len(job_ids), CHUNK):
        query = select(attempts).where(
            attempts.c.job_id.in_(job_ids[start : start + CHUNK]), attempts.c.forgotten.is_(False)
        )
        found += _with_replicas(session, session.rows(query))
    return found


def mark_forgotten(session: WriteSession, ids: Sequence[UUID]) -> None:
    """Remember that backends keep nothing of these attempts any more."""
    for start in range(0, len(ids), CHUNK):
        session.execute(
            update(attempts)
            .where(attempts.c.id.in_(ids[start : start + CHUNK]))
            .values(forgotten=True)
        )


def list_preempted(session: ReadSession, since: int) -> dict[object, list[int]]:
    """Return when attempts were to be over for others since an instant, in order, by cluster.

    What people stop by hand is not among them.
    """
    query = (
        select(attempts.c.cluster_id, attempts.c.stop_deadline)
        .where(
            attempts.c.stop_intent == str(StopIntent.PREEMPT),
            attempts.c.stop_reason != str(Word.PREEMPTED_BY_HAND),
            attempts.c.stop_deadline > since,
        )
        .order_by(attempts.c.stop_deadline)
    )
    found: dict[object, list[int]] = {}
    for row in session.rows(query):
        found.setdefault(row["cluster_id"], []).append(int(row["stop_deadline"]))
    return found


def list_open_on_node(session: ReadSession, node_id: UUID) -> list[Attempt]:
    """Return attempts that are not over with a replica on a node."""
    query = (
        select(attempts)
        .where(
            attempts.c.state != "ended",
            attempts.c.id.in_(select(replicas.c.attempt_id).where(replicas.c.node_id == node_id)),
        )
        .order_by(attempts.c.admitted_at, attempts.c.id)
    )
    return _with_replicas(session, session.rows(query))


def ask_evict_again(session: WriteSession, attempt_id: AttemptId) -> None:
    """Have the dispatcher ask a backend once more, at once and without grace."""
    session.execute(
        update(attempts)
        .where(attempts.c.id == attempt_id, attempts.c.state == "stopping")
        .values(evict_sent_at=None, grace_s=0, version=attempts.c.version + 1)
    )


def update_attempt(session: WriteSession, attempt: Attempt, **changes: Any) -> bool:
    """Change an attempt if it still has the version that was read; False when it is stale."""
    touched = session.execute(
        update(attempts)
        .where(attempts.c.id == attempt.id, attempts.c.version == attempt.version)
        .values(version=attempt.version + 1, **changes)
    )
    return touched == 1


def update_attempts(session: WriteSession, changes: Sequence[Mapping[str, Any]]) -> None:
    """Change many attempts alike: each mapping has `id` and the same other keys."""
    _update_each(session, attempts, changes, {"version": attempts.c.version + 1})


def update_replicas(session: WriteSession, changes: Sequence[Mapping[str, Any]]) -> None:
    """Change many replicas alike: each mapping has `id` and the same other keys."""
    _update_each(session, replicas, changes, {})


def insert_replica(session: WriteSession, replica: Replica) -> None:
    """Store a replica that was added to an attempt."""
    session.execute(insert(replicas), [_replica_values(replica)])


def delete_replicas(session: WriteSession, ids: Sequence[UUID]) -> None:
    """Drop replicas that their service does without: what they held is told by the ledger."""
    session.execute(delete(replicas).where(replicas.c.id.in_(ids)))


def list_to_scale(session: ReadSession, cluster_ids: Sequence[UUID], limit: int) -> list[Attempt]:
    """Return started attempts whose replicas changed since their backend was told, oldest first."""
    query = (
        select(attempts)
        .where(
            attempts.c.scale_number != attempts.c.scale_told,
            attempts.c.state.in_(["starting", "running"]),
            attempts.c.cluster_id.in_(cluster_ids),
        )
        .order_by(attempts.c.admitted_at, attempts.c.id)
        .limit(limit)
    )
    return _with_replicas(session, session.rows(query))


def note_scale_told(session: WriteSession, told: Sequence[tuple[AttemptId, int]]) -> None:
    """Store which change of their replicas backends have taken on; the version is left alone."""
    for attempt_id, number in told:
        session.execute(
            update(attempts)
            .where(attempts.c.id == attempt_id, attempts.c.scale_told < number)
            .values(scale_told=number)
        )


def note_growth(
    session: WriteSession,
    attempt_id: AttemptId,
    version: int,
    reason: str,
    message: str,
    usage: Sequence[Sequence[str | int]] | None = None,
) -> None:
    """Store why the next replica of an attempt waits, if the attempt is as it was read.

    Where its cluster tells what its replicas count, that `usage` too.
    """
    counted = {} if usage is None else {"quota_usage": usage}
    session.execute(
        update(attempts)
        .where(attempts.c.id == attempt_id, attempts.c.version == version)
        .values(growth_reason=reason, growth_message=message, **counted)
    )


def insert_checkpoint(session: WriteSession, values: dict[str, Any]) -> None:
    """Store one reported checkpoint."""
    session.execute(insert(checkpoints).values(**values))


def list_checkpoints(session: ReadSession, job_id: JobId) -> list[dict[str, Any]]:
    """Return a job's checkpoints, newest first."""
    query = select(checkpoints).where(checkpoints.c.job_id == job_id)
    return [dict(row) for row in session.rows(query.order_by(checkpoints.c.at.desc()))]


def delete_checkpoints(session: WriteSession, ids: Sequence[UUID]) -> None:
    """Forget checkpoints beyond what the job keeps."""
    session.execute(delete(checkpoints).where(checkpoints.c.id.in_(ids)))


def insert_decision(session: WriteSession, values: dict[str, Any]) -> None:
    """Store the header of a cycle."""
    session.execute(insert(decisions).values(**values))


def _update_each(
    session: WriteSession, table: Any, changes: Sequence[Mapping[str, Any]], extra: dict[str, Any]
) -> None:
    if not changes:
        return
    names = [name for name in changes[0] if name != "id"]
    statement = (
        update(table)
        .where(table.c.id == bindparam("row_key"))
        .values(**{name: bindparam(f"new_{name}") for name in names}, **extra)
    )
    session.execute(
        statement,
        [
            {"row_key": each["id"], **{f"new_{name}": each[name] for name in names}}
            for each in changes
        ],
    )


def _with_replicas(session: ReadSession, rows: Sequence[RowMapping]) -> list[Attempt]:
    by_attempt: dict[UUID, list[Replica]] = defaultdict(list)
    ids = [row["id"] for row in rows]
    for start in range(0, len(ids), CHUNK):
        query = (
            select(replicas)
            .where(replicas.c.attempt_id.in_(ids[start : start + CHUNK]))
            .order_by(replicas.c.rank)
        )
        for row in session.rows(query):
            values = {name: row[name] for name in _REPLICA}
            values["gpu_ids"] = tuple(values["gpu_ids"])
            if (usage := values["quota_usage"]) is not None:
                values["quota_usage"] = tuple((name, what, n) for name, what, n in usage)
            by_attempt[row["attempt_id"]].append(Replica(**values))
    return [_attempt(row, by_attempt[row["id"]]) for row in rows]


def _attempt(row: RowMapping, ranks: Sequence[Replica]) -> Attempt:
    values = {name: row[name] for name in _ATTEMPT}
    if values["stop_intent"] is not None:
        values["stop_intent"] = StopIntent(values["stop_intent"])
    values["quota_usage"] = tuple((name, what, n) for name, what, n in values["quota_usage"])
    return Attempt(**values, replicas=tuple(ranks))


def _attempt_values(attempt: Attempt) -> dict[str, Any]:
    values = {name: getattr(attempt, name) for name in _ATTEMPT}
    values["stop_intent"] = None if attempt.stop_intent is None else str(attempt.stop_intent)
    values["quota_usage"] = [list(use) for use in attempt.quota_usage]
    return values


def _replica_values(replica: Replica) -> dict[str, Any]:
    values = {name: getattr(replica, name) for name in _REPLICA}
    values["gpu_ids"] = list(replica.gpu_ids)
    if replica.quota_usage is not None:
        values["quota_usage"] = [list(use) for use in replica.quota_usage]
    return values
