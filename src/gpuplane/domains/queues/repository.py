"""Every query on the tables of queues."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from uuid import UUID

from sqlalchemy import RowMapping, Table, delete, insert, select, update

from gpuplane.core.ids import ClusterId, TenantId
from gpuplane.core.quota.specs import ClusterQueueSpec, CohortSpec, FlavorResource
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.queues.rules import (
    cluster_queue_of,
    cohort_of,
    encode_cluster_queue,
    encode_cohort,
    encode_limits,
    limits_of,
)
from gpuplane.domains.queues.rules.seen import Seen, SeenKind, conflict_of
from gpuplane.domains.queues.tables import ClusterQueueRow, CohortRow, LocalQueueRow, SeenRow
from gpuplane.kit.ids import new_id

T = TypeVar("T")

_cluster_queues = table_of(ClusterQueueRow)
_cohorts = table_of(CohortRow)
_local_queues = table_of(LocalQueueRow)
_seen = table_of(SeenRow)


@dataclass(frozen=True, slots=True)
class Declared(Generic[T]):
    """A declared object with its row's version."""

    name: str
    spec: T
    version: int
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class Door:
    """A LocalQueue as it is kept: its tenant by id."""

    tenant_id: TenantId
    cluster_queue: str
    job_types: tuple[str, ...]
    limits: Mapping[FlavorResource, int]
    highest_priority: int | None = None


def list_cluster_queues(
    session: ReadSession, cluster_id: ClusterId
) -> tuple[Declared[ClusterQueueSpec], ...]:
    """Return the ClusterQueues of a cluster by name."""
    return _list(
        session, _cluster_queues, cluster_id, lambda row: cluster_queue_of(row["name"], row["spec"])
    )


def list_cohorts(session: ReadSession, cluster_id: ClusterId) -> tuple[Declared[CohortSpec], ...]:
    """Return the Cohorts of a cluster by name."""
    return _list(session, _cohorts, cluster_id, lambda row: cohort_of(row["name"], row["spec"]))


def list_local_queues(session: ReadSession, cluster_id: ClusterId) -> tuple[Declared[Door], ...]:
    """Return the LocalQueues of a cluster by name."""
    return _list(session, _local_queues, cluster_id, _door)


def insert_cluster_queue(
    session: WriteSession, cluster_id: ClusterId, spec: ClusterQueueSpec, now: int
) -> None:
    """Store a new ClusterQueue."""
    _forget_conflict(session, cluster_id, SeenKind.CLUSTER_QUEUE, spec.name)
    _insert(session, _cluster_queues, cluster_id, spec.name, encode_cluster_queue(spec), now)


def update_cluster_queue(
    session: WriteSession, cluster_id: ClusterId, spec: ClusterQueueSpec, version: int, now: int
) -> bool:
    """Replace a ClusterQueue if it is as it was read; False when it is stale."""
    kept = encode_cluster_queue(spec)
    _forget_conflict(session, cluster_id, SeenKind.CLUSTER_QUEUE, spec.name)
    return _update(session, _cluster_queues, cluster_id, spec.name, version, now, spec=kept)


def delete_cluster_queue(session: WriteSession, cluster_id: ClusterId, name: str) -> None:
    """Forget a ClusterQueue."""
    _delete(session, _cluster_queues, cluster_id, name)


def insert_cohort(session: WriteSession, cluster_id: ClusterId, spec: CohortSpec, now: int) -> None:
    """Store a new Cohort."""
    _forget_conflict(session, cluster_id, SeenKind.COHORT, spec.name)
    _insert(session, _cohorts, cluster_id, spec.name, encode_cohort(spec), now)


def update_cohort(
    session: WriteSession, cluster_id: ClusterId, spec: CohortSpec, version: int, now: int
) -> bool:
    """Replace a Cohort if it is as it was read; False when it is stale."""
    kept = encode_cohort(spec)
    _forget_conflict(session, cluster_id, SeenKind.COHORT, spec.name)
    return _update(session, _cohorts, cluster_id, spec.name, version, now, spec=kept)


def delete_cohort(session: WriteSession, cluster_id: ClusterId, name: str) -> None:
    """Forget a Cohort."""
    _delete(session, _cohorts, cluster_id, name)


def insert_local_queue(
    session: WriteSession, cluster_id: ClusterId, name: str, door: Door, now: int
) -> None:
    """Store a new LocalQueue."""
    kept = _encode_door(door)
    _insert(
        session,
        _local_queues,
        cluster_id,
        name,
        kept,
        now,
        tenant_id=door.tenant_id,
        cluster_queue=door.cluster_queue,
    )  # fmt: skip - the call reads as one line


def update_local_queue(
    session: WriteSession, cluster_id: ClusterId, name: str, door: Door, version: int, now: int
) -> bool:
    """Replace a tenant's LocalQueue if it is as it was read; False when it is stale."""
    kept = _encode_door(door)
    touched = session.execute(
        update(_local_queues)
        .where(
            _local_queues.c.cluster_id == cluster_id,
            _local_queues.c.name == name,
            _local_queues.c.tenant_id == door.tenant_id,
            _local_queues.c.version == version,
        )
        .values(spec=kept, cluster_queue=door.cluster_queue, version=version + 1, updated_at=now)
    )
    return touched == 1


def delete_local_queue(
    session: WriteSession, cluster_id: ClusterId, name: str, tenant_id: TenantId
) -> None:
    """Forget a tenant's LocalQueue."""
    session.execute(
        delete(_local_queues).where(
            _local_queues.c.cluster_id == cluster_id,
            _local_queues.c.name == name,
            _local_queues.c.tenant_id == tenant_id,
        )
    )


def list_seen(
    session: ReadSession, cluster_id: ClusterId, kind: SeenKind | None = None
) -> list[Seen]:
    """Return what was last seen on a cluster, by kind, namespace and name."""
    query = select(_seen).where(_seen.c.cluster_id == cluster_id)
    if kind is not None:
        query = query.where(_seen.c.kind == str(kind))
    return [_seen_of(row) for row in session.rows(query.order_by(*_seen.primary_key.columns))]


def store_seen(session: WriteSession, cluster_id: ClusterId, rows: Iterable[Seen]) -> None:
    """Store what was seen, in place of what was seen of the same objects before."""
    for each in rows:
        forget_seen(session, cluster_id, [each.key])
        session.execute(
            insert(_seen).values(
                cluster_id=cluster_id,
                kind=str(each.kind),
                namespace=each.namespace,
                name=each.name,
                ours=each.ours,
                spec=dict(each.spec),
                state=dict(each.state),
                notes=list(each.notes),
                applied=None if each.applied is None else dict(each.applied),
                conflict=None if each.conflict is None else each.conflict.encode(),
                seen_at=each.seen_at,
            )
        )


def forget_seen(
    session: WriteSession, cluster_id: ClusterId, keys: Iterable[tuple[str, str, str]]
) -> None:
    """Forget objects that are gone."""
    for kind, namespace, name in keys:
        session.execute(
            delete(_seen).where(
                _seen.c.cluster_id == cluster_id,
                _seen.c.kind == kind,
                _seen.c.namespace == namespace,
                _seen.c.name == name,
            )
        )


def _forget_conflict(
    session: WriteSession, cluster_id: ClusterId, kind: SeenKind, name: str
) -> None:
    """Forget what stood against the former declaration: it says nothing of the one made now."""
    found = [each for each in list_seen(session, cluster_id, kind) if each.name == name]
    store_seen(session, cluster_id, [replace(each, conflict=None) for each in found])


def _seen_of(row: RowMapping) -> Seen:
    return Seen(
        kind=SeenKind(row["kind"]),
        namespace=row["namespace"],
        name=row["name"],
        ours=row["ours"],
        spec=row["spec"],
        state=row["state"],
        notes=tuple(row["notes"]),
        applied=row["applied"],
        conflict=conflict_of(row["conflict"]),
        seen_at=row["seen_at"],
    )


def _encode_door(door: Door) -> dict[str, Any]:
    return {
        "jobTypes": list(door.job_types),
        "limits": encode_limits(door.limits),
        "highestPriority": door.highest_priority,
    }


def _list(
    session: ReadSession, table: Table, cluster_id: ClusterId, shape: Callable[[RowMapping], T]
) -> tuple[Declared[T], ...]:
    query = select(table).where(table.c.cluster_id == cluster_id).order_by(table.c.name, table.c.id)
    return tuple(
        Declared(row["name"], shape(row), row["version"], row["created_at"], row["updated_at"])
        for row in session.rows(query)
    )


def _insert(
    session: WriteSession,
    table: Table,
    cluster_id: ClusterId,
    name: str,
    kept: dict[str, Any],
    now: int,
    **more: UUID | str,
) -> None:
    session.execute(
        insert(table).values(
            id=new_id(),
            cluster_id=cluster_id,
            name=name,
            spec=kept,
            created_at=now,
            updated_at=now,
            version=1,
            **more,
        )
    )


def _update(
    session: WriteSession,
    table: Table,
    cluster_id: ClusterId,
    name: str,
    version: int,
    now: int,
    **values: Any,
) -> bool:
    touched = session.execute(
        update(table)
        .where(table.c.cluster_id == cluster_id, table.c.name == name, table.c.version == version)
        .values(version=version + 1, updated_at=now, **values)
    )
    return touched == 1


def _delete(session: WriteSession, table: Table, cluster_id: ClusterId, name: str) -> None:
    session.execute(delete(table).where(table.c.cluster_id == cluster_id, table.c.name == name))


def _door(row: RowMapping) -> Door:
    kept = row["spec"]
    return Door(
        TenantId(row["tenant_id"]),
        row["cluster_queue"],
        tuple(kept.get("jobTypes", ())),
        limits_of(kept.get("limits", ())),
        kept.get("highestPriority"),
    )
