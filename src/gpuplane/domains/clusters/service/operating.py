"""Clusters in operation: looked up, frozen and thawed, maintained, granted, seen by probes."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ClusterId, TenantId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import repository
from gpuplane.domains.clusters.errors import (
    BadGrant,
    BadPolicy,
    ClusterChanged,
    ClusterNotFound,
    PolicyNotInForce,
    WindowNotFound,
)
from gpuplane.domains.clusters.rules import (
    DEDICATED_LABEL,
    DELETED_MARK,
    POLICY_LIMITS,
    Cluster,
    ClusterState,
    MaintenanceWindow,
    PreemptionPolicy,
    policy_of,
)
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.identity import service as identity
from gpuplane.kit.ids import find_id


def ensure_cluster(
    session: WriteSession,
    cluster_id: ClusterId,
    *,
    name: str,
    kind: str,
    simulated: bool,
    config: dict[str, Any],
    now: int,
) -> Cluster:
    """Return the cluster of that name, made with the given id if there is none yet."""
    found = repository.find_cluster(session, name)
    if found is not None:
        return found
    cluster = Cluster(
        id=cluster_id,
        name=name,
        kind=kind,
        simulated=simulated,
        state=ClusterState.REGISTERING,
        state_reason="",
        labels={},
        notes=(),
        config=config,
        frozen=False,
        frozen_reason="",
        preemption_policy={},
        inventory_generation=0,
        created_at=now,
        updated_at=now,
        version=1,
    )
    repository.insert_cluster(session, cluster)
    announce(session, cluster, "cluster.registered", f"Cluster {name} was registered.", now)
    return cluster


def get_cluster(session: ReadSession, key: UUID | str) -> Cluster:
    """Return a cluster by id or name.

    Raises:
        ClusterNotFound: If there is none.
    """
    cluster = find_cluster(session, key)
    if cluster is None:
        raise _not_found(session, key)
    return cluster


def get_live_cluster(session: ReadSession, key: UUID | str) -> Cluster:
    """Return a cluster that was not deleted, by id or name: one that may be changed.

    Raises:
        ClusterNotFound: If there is none, or it was deleted meanwhile.
    """
    cluster = get_cluster(session, key)
    if cluster.deleted_at is not None:
        raise _not_found(session, key)
    return cluster


def _not_found(session: ReadSession, key: UUID | str) -> ClusterNotFound:
    names = ", ".join(each.name for each in repository.list_clusters(session)) or "none"
    return ClusterNotFound(
        f"There is no cluster {str(key)!r}.", field="cluster", fix=f"Clusters here: {names}."
    )


def find_cluster(session: ReadSession, key: UUID | str) -> Cluster | None:
    """Return a cluster by id or name, or None; a text that is a UUID is taken as an id.

    A text is what somebody asks for, who finds no deleted cluster; rows that tell of one do.
    """
    if not isinstance(key, str):
        return repository.find_cluster(session, key)
    found = repository.find_cluster(session, find_id(key) or key)
    return None if found is None or found.deleted_at is not None else found


def list_clusters(session: ReadSession) -> tuple[Cluster, ...]:
    """Return every cluster, by name."""
    return repository.list_clusters(session)


def list_deleted(session: ReadSession) -> tuple[Cluster, ...]:
    """Return every cluster that was deleted, by name."""
    return repository.list_deleted(session)


def names_of_all(session: ReadSession) -> dict[ClusterId, str]:
    """Return the name of every cluster; one that was deleted has the name that it had, and says so.

    Where several that were deleted had one name, each is told with the end of its id.
    """
    names = {each.id: each.name for each in repository.list_clusters(session)}
    gone = repository.list_deleted(session)
    before = Counter(each.name.rpartition(DELETED_MARK)[0] for each in gone)
    for each in gone:
        name = each.name.rpartition(DELETED_MARK)[0]
        names[each.id] = f"{name if before[name] == 1 else each.name} (deleted)"
    return names


def list_usable(session: ReadSession, tenant_id: TenantId) -> tuple[Cluster, ...]:
    """Return the clusters a tenant may use at all: open ones and those granted to it."""
    return repository.list_usable(session, tenant_id)


def list_grants(session: ReadSession) -> set[tuple[ClusterId, UUID]]:
    """Return every (cluster, tenant) grant."""
    return repository.list_all_grants(session)


def grant(
    session: WriteSession, key: UUID | str, tenant_id: TenantId, actor: str, now: int
) -> Cluster:
    """Let a tenant use a cluster that is not open to all; granting twice changes nothing."""
    cluster = get_cluster(session, key)
    if cluster.id not in repository.list_granted(session, tenant_id):
        repository.insert_grant(session, cluster.id, tenant_id, now)
        announce(
            session, cluster, "cluster.granted", f"{actor} granted it to a tenant.", now, actor,
            {"tenant_id": str(tenant_id)},
        )  # fmt: skip
        session.wake("scheduler")
    return cluster


def grant_known(
    session: WriteSession, key: UUID | str, tenant_id: TenantId, actor: str, now: int
) -> Cluster:
    """Let a tenant that exists use a cluster.

    Raises:
        BadGrant: If there is no such tenant.
    """
    _require_tenant(session, tenant_id)
    return grant(session, key, tenant_id, actor, now)


def revoke(
    session: WriteSession, key: UUID | str, tenant_id: TenantId, actor: str, now: int
) -> Cluster:
    """Take a grant back; what runs goes on, nothing new starts."""
    cluster = get_cluster(session, key)
    if repository.delete_grant(session, cluster.id, tenant_id):
        announce(
            session, cluster, "cluster.grant_revoked", f"{actor} took a grant back.", now, actor,
            {"tenant_id": str(tenant_id)},
        )  # fmt: skip
    return cluster


def dedicate(
    session: WriteSession, key: UUID | str, tenant_id: TenantId | None, actor: str, now: int
) -> Cluster:
    """Let one tenant alone use a cluster, or everyone again; what runs there goes on.

    Raises:
        BadGrant: If there is no such tenant.
    """
    cluster = get_cluster(session, key)
    if cluster.dedicated_to == tenant_id:
        return cluster
    labels = {name: value for name, value in cluster.labels.items() if name != DEDICATED_LABEL}
    if tenant_id is not None:
        _require_tenant(session, tenant_id)
        labels[DEDICATED_LABEL] = str(tenant_id)
    store_changes(session, cluster, now, labels=labels)
    whom = "everyone again" if tenant_id is None else "one tenant alone"
    announce(
        session, cluster, "cluster.dedicated", f"{actor} opened it to {whom}.", now, actor,
        {"tenant_id": None if tenant_id is None else str(tenant_id)},
    )  # fmt: skip
    return get_cluster(session, cluster.id)


def _require_tenant(session: ReadSession, tenant_id: TenantId) -> None:
    if not identity.tenants_by_ids(session, {tenant_id}):
        raise BadGrant(
            f"There is no tenant {tenant_id}.",
            field="tenant_id",
            fix="List the tenants for their ids.",
        )


def note_shapes(session: WriteSession, cluster_id: ClusterId, shapes: dict[str, list[int]]) -> None:
    """Store the cluster's GPU models with the most on one node and the total."""
    repository.set_shapes(session, cluster_id, shapes)


def note_probe(
    session: WriteSession,
    cluster: Cluster,
    *,
    state: ClusterState,
    reason: str,
    notes: tuple[str, ...],
    now: int,
) -> None:
    """Store what a look at the cluster said; an event only when its state changed."""
    if (cluster.state, cluster.state_reason, cluster.notes) == (state, reason, notes):
        return
    since = None if state is ClusterState.AVAILABLE else (cluster.not_available_since or now)
    stored = repository.update_cluster(
        session,
        cluster.id,
        cluster.version,
        now,
        state=str(state),
        state_reason=reason,
        notes=list(notes),
        not_available_since=since,
    )
    if stored and cluster.state is not state:
        kind = "available" if state is ClusterState.AVAILABLE else "not_available"
        said = f": {reason}" if reason else ""
        announce(session, cluster, f"cluster.{kind}", f"{cluster.name} is {state}{said}.", now)
        session.wake("scheduler")


def bump_generation(session: WriteSession, cluster_id: ClusterId, now: int) -> None:
    """Say that nodes, GPUs or marks changed, so that the scheduler rebuilds its columns."""
    repository.bump_generation(session, cluster_id, now)
    session.wake("scheduler")


def freeze(session: WriteSession, key: UUID | str, reason: str, actor: str, now: int) -> Cluster:
    """Stop new starts on a cluster; what runs goes on."""
    cluster = get_cluster(session, key)
    store_changes(session, cluster, now, frozen=True, frozen_reason=reason)
    announce(session, cluster, "cluster.frozen", f"{actor} froze scheduling: {reason}", now, actor)
    return replace(cluster, frozen=True, frozen_reason=reason, version=cluster.version + 1)


def thaw(session: WriteSession, key: UUID | str, actor: str, now: int) -> Cluster:
    """Let a frozen cluster start work again."""
    cluster = get_cluster(session, key)
    store_changes(session, cluster, now, frozen=False, frozen_reason="")
    announce(session, cluster, "cluster.thawed", f"{actor} let scheduling go on.", now, actor)
    return replace(cluster, frozen=False, frozen_reason="", version=cluster.version + 1)


def get_preemption_policy(session: ReadSession, key: UUID | str) -> tuple[PreemptionPolicy, bool]:
    """Return the policy of a cluster, and whether it is in force: not where Kueue preempts."""
    cluster = get_cluster(session, key)
    return policy_of(cluster.preemption_policy), not cluster.admits_by_kueue


def patch_preemption_policy(
    session: WriteSession, key: UUID | str, changes: dict[str, Any], actor: str, now: int
) -> tuple[PreemptionPolicy, bool]:
    """Change named values of a cluster's preemption policy and keep the others.

    Returns:
        The policy, and that it is in force.

    Raises:
        BadPolicy: If a value is out of its limits; names the field.
        PolicyNotInForce: If the cluster's own Kueue preempts; names the field.
    """
    for name, value in changes.items():
        low, high = POLICY_LIMITS.get(name, (0, 1))
        if not low <= value <= high:
            raise BadPolicy(
                f"{name} must lie between {low:g} and {high:g}, not {value}.",
                field=name,
                fix=f"Give a value between {low:g} and {high:g}.",
            )
    cluster = get_cluster(session, key)
    if cluster.admits_by_kueue and changes:
        raise PolicyNotInForce(
            f"{cluster.name} admits by Kueue, which preempts as its ClusterQueues say; this policy "
            "is not asked.",
            field=min(changes),
            fix="Change `preemption` of its quotas (withinClusterQueue, reclaimWithinCohort, "
            "borrowWithinCohort), or let the scheduler here admit: admission embedded.",
        )
    stored = {**cluster.preemption_policy, **changes}
    store_changes(session, cluster, now, preemption_policy=stored)
    announce(
        session,
        cluster,
        "cluster.preemption_policy_changed",
        f"{actor} changed the preemption policy: {', '.join(sorted(changes)) or 'nothing'}.",
        now,
        actor,
    )
    return policy_of(stored), not cluster.admits_by_kueue


def announce_maintenance(
    session: WriteSession, key: UUID | str, window: MaintenanceWindow
) -> MaintenanceWindow:
    """Announce a window; work that cannot end before it will not start."""
    cluster = get_cluster(session, key)
    window = replace(window, cluster_id=cluster.id)
    repository.insert_window(session, window)
    where = f"node {window.node_name}" if window.node_name else "the cluster"
    announce(
        session,
        cluster,
        "cluster.maintenance_announced",
        f"Maintenance of {where} was announced: {window.reason}",
        window.announced_at,
        window.announced_by,
        {"window_id": str(window.id), "start_at": window.start_at, "end_at": window.end_at},
    )
    bump_generation(session, cluster.id, window.announced_at)
    return window


def list_maintenance(
    session: ReadSession, key: UUID | str | None, now: int
) -> tuple[MaintenanceWindow, ...]:
    """Return windows that are not over, of one cluster or of all."""
    cluster_id = None if key is None else get_cluster(session, key).id
    return repository.list_windows(session, cluster_id, now)


def withdraw_maintenance(
    session: WriteSession, key: UUID | str, window_id: UUID, actor: str, now: int
) -> None:
    """Withdraw an announced window.

    Raises:
        WindowNotFound: If the cluster has no such window.
    """
    cluster = get_cluster(session, key)
    if not repository.delete_window(session, cluster.id, window_id):
        raise WindowNotFound(
            f"There is no maintenance window {window_id} on {cluster.name}.",
            fix="List the windows of the cluster to see their ids.",
        )
    announce(
        session,
        cluster,
        "cluster.maintenance_withdrawn",
        f"{actor} withdrew a maintenance window.",
        now,
        actor,
        {"window_id": str(window_id)},
    )
    bump_generation(session, cluster.id, now)


def has_due_maintenance(session: ReadSession, now: int) -> bool:
    """Return whether a window has begun that nobody was told of."""
    return bool(repository.due_windows(session, now))


def begin_due_maintenance(session: WriteSession, now: int) -> int:
    """Announce each window that has begun, once, and return how many."""
    due = repository.due_windows(session, now)
    for window in due:
        cluster = repository.find_cluster(session, window.cluster_id)
        if cluster is not None:
            announce(
                session,
                cluster,
                "cluster.maintenance_started",
                f"A maintenance window began: {window.reason}",
                now,
            )
            bump_generation(session, cluster.id, now)
    if due:
        repository.mark_windows_started(session, [window.id for window in due])
    return len(due)


def store_changes(session: WriteSession, cluster: Cluster, now: int, **values: Any) -> None:
    """Change a cluster that is still as it was read.

    Raises:
        ClusterChanged: If it is not.
    """
    if not repository.update_cluster(session, cluster.id, cluster.version, now, **values):
        raise ClusterChanged(
            f"Cluster {cluster.name} was changed by somebody else meanwhile.",
            fix="Read it again and repeat the change.",
        )
    session.wake("scheduler")


def announce(
    session: WriteSession,
    cluster: Cluster,
    kind: str,
    message: str,
    now: int,
    actor: str = "system",
    data: dict[str, Any] | None = None,
) -> None:
    """Record an event about a cluster."""
    events.record(
        session,
        NewEvent(
            kind=kind,
            at=now,
            cluster_id=cluster.id,
            subject_kind="cluster",
            subject_id=str(cluster.id),
            actor=actor,
            message=message,
            data=data or {},
        ),
    )


def remember_former(
    session: WriteSession, cluster_id: ClusterId, former: Collection[str], now: int
) -> None:
    """Note under which other ids objects of a cluster are labelled: it had those before."""
    cluster = get_cluster(session, cluster_id)
    known = set(cluster.config.get("former_ids", ()))
    wanted = sorted((known | set(former)) - {str(cluster.id)})
    if wanted != sorted(known):
        config = {**cluster.config, "former_ids": wanted}
        repository.update_cluster(session, cluster.id, cluster.version, now, config=config)
