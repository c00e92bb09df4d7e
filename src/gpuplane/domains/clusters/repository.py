"""Every query on the tables of clusters."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import RowMapping, and_, delete, insert, or_, select, update

from gpuplane.core.ids import ClusterId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.clusters.rules import (
    LOCAL_KIND,
    AddonStatus,
    Cluster,
    ClusterKey,
    ClusterState,
    Credential,
    HealthCheck,
    MaintenanceWindow,
)
from gpuplane.domains.clusters.tables import (
    AddonRow,
    ClusterRow,
    CredentialRow,
    GrantRow,
    KeyRow,
    WindowRow,
)

_clusters = table_of(ClusterRow)
_windows = table_of(WindowRow)
_grants = table_of(GrantRow)
_credentials = table_of(CredentialRow)
_keys = table_of(KeyRow)
_addons = table_of(AddonRow)


def insert_cluster(session: WriteSession, cluster: Cluster) -> None:
    """Store a new cluster."""
    session.execute(
        insert(_clusters).values(
            id=cluster.id,
            name=cluster.name,
            kind=cluster.kind,
            simulated=cluster.simulated,
            state=str(cluster.state),
            state_reason=cluster.state_reason,
            labels=cluster.labels,
            notes=list(cluster.notes),
            config=cluster.config,
            frozen=cluster.frozen,
            frozen_reason=cluster.frozen_reason,
            preemption_policy=cluster.preemption_policy,
            gpu_shapes=cluster.gpu_shapes,
            inventory_generation=cluster.inventory_generation,
            platform=cluster.platform,
            role=cluster.role,
            server_url=cluster.server_url,
            host=cluster.host,
            ingress_url=cluster.ingress_url,
            enable_master_node=cluster.enable_master_node,
            kubernetes_version=cluster.kubernetes_version,
            distribution=cluster.distribution,
            attributes=cluster.attributes,
            run_id=cluster.run_id,
            created_at=cluster.created_at,
            updated_at=cluster.updated_at,
            version=cluster.version,
        )
    )


def find_cluster(session: ReadSession, key: UUID | str) -> Cluster | None:
    """Return the cluster of an id or a name, or None."""
    column = _clusters.c.id if isinstance(key, UUID) else _clusters.c.name
    row = session.row(select(_clusters).where(column == key))
    return None if row is None else _cluster(row)


def list_clusters(session: ReadSession) -> tuple[Cluster, ...]:
    """Return every cluster by name; an organisation has few enough to need no pages."""
    query = select(_clusters).where(_clusters.c.deleted_at.is_(None)).order_by(_clusters.c.name)
    return tuple(_cluster(row) for row in session.rows(query))


def list_deleted(session: ReadSession) -> tuple[Cluster, ...]:
    """Return every cluster that was deleted, by name."""
    query = select(_clusters).where(_clusters.c.deleted_at.is_not(None)).order_by(_clusters.c.name)
    return tuple(_cluster(row) for row in session.rows(query))


def update_cluster(
    session: WriteSession, cluster_id: ClusterId, version: int, now: int, **values: Any
) -> bool:
    """Change a cluster if its version is still the one read; False when it is stale."""
    touched = session.execute(
        update(_clusters)
        .where(_clusters.c.id == cluster_id, _clusters.c.version == version)
        .values(version=version + 1, updated_at=now, **values)
    )
    return touched == 1


def set_metrics(session: WriteSession, cluster_id: ClusterId, status: str, now: int | None) -> None:
    """Store how metrics came, and when where they did: no change that anybody decides by."""
    values: dict[str, Any] = {"metrics_collection_status": status}
    if now is not None:
        values["last_metrics_collection"] = now
    session.execute(update(_clusters).where(_clusters.c.id == cluster_id).values(**values))


def bump_generation(session: WriteSession, cluster_id: ClusterId, now: int) -> None:
    """Count a change of inventory, so that the scheduler rebuilds its columns."""
    session.execute(
        update(_clusters)
        .where(_clusters.c.id == cluster_id)
        .values(inventory_generation=_clusters.c.inventory_generation + 1, updated_at=now)
    )


def set_shapes(session: WriteSession, cluster_id: ClusterId, shapes: dict[str, list[int]]) -> None:
    """Store which models a cluster has, how many on one node at most, and how many in all."""
    session.execute(update(_clusters).where(_clusters.c.id == cluster_id).values(gpu_shapes=shapes))


def list_usable(session: ReadSession, tenant_id: UUID) -> tuple[Cluster, ...]:
    """Return the clusters that are open to all or granted to a tenant, by name, in one query."""
    is_granted = and_(_grants.c.cluster_id == _clusters.c.id, _grants.c.tenant_id == tenant_id)
    query = (
        select(_clusters)
        .outerjoin(_grants, is_granted)
        .where(or_(_clusters.c.kind != LOCAL_KIND, _grants.c.tenant_id.is_not(None)))
        .where(_clusters.c.deleted_at.is_(None))
        .order_by(_clusters.c.name)
    )
    return tuple(_cluster(row) for row in session.rows(query))


def list_granted(session: ReadSession, tenant_id: UUID) -> set[ClusterId]:
    """Return the clusters a tenant was granted by name."""
    query = select(_grants.c.cluster_id).where(_grants.c.tenant_id == tenant_id)
    return {ClusterId(row["cluster_id"]) for row in session.rows(query)}


def list_all_grants(session: ReadSession) -> set[tuple[ClusterId, UUID]]:
    """Return every (cluster, tenant) grant."""
    return {
        (ClusterId(row["cluster_id"]), row["tenant_id"]) for row in session.rows(select(_grants))
    }


def insert_grant(session: WriteSession, cluster_id: ClusterId, tenant_id: UUID, now: int) -> None:
    """Let a tenant use a cluster."""
    session.execute(
        insert(_grants).values(cluster_id=cluster_id, tenant_id=tenant_id, granted_at=now)
    )


def delete_grant(session: WriteSession, cluster_id: ClusterId, tenant_id: UUID) -> bool:
    """Take a grant back; False when there was none."""
    return (
        session.execute(
            delete(_grants).where(
                _grants.c.cluster_id == cluster_id, _grants.c.tenant_id == tenant_id
            )
        )
        == 1
    )


def insert_window(session: WriteSession, window: MaintenanceWindow) -> None:
    """Store an announced window."""
    session.execute(
        insert(_windows).values(
            id=window.id,
            cluster_id=window.cluster_id,
            node_name=window.node_name,
            start_at=window.start_at,
            end_at=window.end_at,
            reason=window.reason,
            announced_at=window.announced_at,
            announced_by=window.announced_by,
            started=window.started,
        )
    )


def list_windows(
    session: ReadSession, cluster_id: ClusterId | None, ending_after: int
) -> tuple[MaintenanceWindow, ...]:
    """Return windows not over before an instant, earliest first."""
    query = select(_windows).where(_windows.c.end_at > ending_after).order_by(_windows.c.start_at)
    if cluster_id is not None:
        query = query.where(_windows.c.cluster_id == cluster_id)
    return tuple(_window(row) for row in session.rows(query))


def delete_window(session: WriteSession, cluster_id: ClusterId, window_id: UUID) -> bool:
    """Withdraw a window; False when there is none."""
    return (
        session.execute(
            delete(_windows).where(_windows.c.id == window_id, _windows.c.cluster_id == cluster_id)
        )
        == 1
    )


def mark_windows_started(session: WriteSession, window_ids: Sequence[UUID]) -> None:
    """Remember that the start of these windows was announced."""
    session.execute(update(_windows).where(_windows.c.id.in_(window_ids)).values(started=True))


def due_windows(session: ReadSession, now: int) -> tuple[MaintenanceWindow, ...]:
    """Return windows that have begun and were not yet announced as begun."""
    query = select(_windows).where(
        _windows.c.start_at <= now, _windows.c.end_at > now, _windows.c.started.is_(False)
    )
    return tuple(_window(row) for row in session.rows(query))


def store_credential(session: WriteSession, credential: Credential) -> None:
    """Store or replace the sealed kubeconfig of a cluster."""
    delete_credential(session, credential.cluster_id)
    session.execute(insert(_credentials).values(**_fields(credential)))


def delete_credential(session: WriteSession, cluster_id: ClusterId) -> None:
    """Delete the sealed kubeconfig of a cluster."""
    session.execute(delete(_credentials).where(_credentials.c.cluster_id == cluster_id))


def find_credential(session: ReadSession, cluster_id: ClusterId) -> Credential | None:
    """Return the sealed kubeconfig of a cluster, or None."""
    row = session.row(select(_credentials).where(_credentials.c.cluster_id == cluster_id))
    return None if row is None else Credential(**dict(row))


def list_credential_numbers(session: ReadSession) -> dict[ClusterId, int]:
    """Return which kubeconfig each cluster has, by its number."""
    query = select(_credentials.c.cluster_id, _credentials.c.number)
    return {ClusterId(row["cluster_id"]): row["number"] for row in session.rows(query)}


def credentials_after(session: ReadSession, after: UUID | None, limit: int) -> list[Credential]:
    """Return a batch of sealed kubeconfigs by cluster id."""
    query = select(_credentials).order_by(_credentials.c.cluster_id).limit(limit)
    if after is not None:
        query = query.where(_credentials.c.cluster_id > after)
    return [Credential(**dict(row)) for row in session.rows(query)]


def store_rewrapped(session: WriteSession, credential: Credential, sealed: bytes) -> bool:
    """Store a kubeconfig sealed anew if it is still the one that was read."""
    touched = session.execute(
        update(_credentials)
        .where(
            _credentials.c.cluster_id == credential.cluster_id,
            _credentials.c.number == credential.number,
        )
        .values(sealed=sealed)
    )
    return touched == 1


def insert_key(session: WriteSession, key: ClusterKey) -> None:
    """Store a key's hash."""
    session.execute(insert(_keys).values(**_fields(key)))


def list_keys(session: ReadSession, cluster_id: ClusterId) -> tuple[ClusterKey, ...]:
    """Return the keys of a cluster, newest first."""
    query = (
        select(_keys)
        .where(_keys.c.cluster_id == cluster_id)
        .order_by(_keys.c.issued_at.desc(), _keys.c.id)
    )
    return tuple(ClusterKey(**dict(row)) for row in session.rows(query))


def find_key(session: ReadSession, key_hash: str) -> ClusterKey | None:
    """Return the key that holds, of a hash, or None."""
    query = select(_keys).where(_keys.c.key_hash == key_hash, _keys.c.revoked_at.is_(None))
    row = session.row(query)
    return None if row is None else ClusterKey(**dict(row))


def revoke_keys(
    session: WriteSession, cluster_id: ClusterId, now: int, key_id: UUID | None = None
) -> int:
    """Revoke one key of a cluster, or all; return how many held until now."""
    query = update(_keys).where(_keys.c.cluster_id == cluster_id, _keys.c.revoked_at.is_(None))
    if key_id is not None:
        query = query.where(_keys.c.id == key_id)
    return session.execute(query.values(revoked_at=now))


def store_addon(session: WriteSession, status: AddonStatus) -> None:
    """Store what became of an add-on."""
    session.execute(
        delete(_addons).where(
            _addons.c.cluster_id == status.cluster_id, _addons.c.name == status.name
        )
    )
    session.execute(insert(_addons).values(**_fields(status)))


def list_addons(session: ReadSession, cluster_id: ClusterId) -> tuple[AddonStatus, ...]:
    """Return what became of each add-on of a cluster, by name."""
    query = select(_addons).where(_addons.c.cluster_id == cluster_id).order_by(_addons.c.name)
    return tuple(AddonStatus(**dict(row)) for row in session.rows(query))


def delete_addons(session: WriteSession, cluster_id: ClusterId) -> None:
    """Forget the add-ons of a cluster."""
    session.execute(delete(_addons).where(_addons.c.cluster_id == cluster_id))


def _fields(value: Credential | ClusterKey | AddonStatus) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _cluster(row: RowMapping) -> Cluster:
    values = dict(row)
    values["state"] = ClusterState(values["state"])
    values["notes"] = tuple(values["notes"])
    values["failed_at"] = tuple(values["failed_at"])
    values["health"] = tuple(HealthCheck(*check) for check in values["health"])
    return Cluster(**values)


def _window(row: RowMapping) -> MaintenanceWindow:
    return MaintenanceWindow(**dict(row))
