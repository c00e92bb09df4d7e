"""Taking over what others made on a cluster: from then on it is declared here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ClusterId, TenantId
from gpuplane.core.quota.specs import LocalQueueSpec
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.identity import service as identity
from gpuplane.domains.queues import repository
from gpuplane.domains.queues.errors import BadQueue, QueueExists, QueueNotFound
from gpuplane.domains.queues.repository import Door
from gpuplane.domains.queues.rules import cluster_queue_of, cohort_of
from gpuplane.domains.queues.rules.seen import Seen, SeenKind
from gpuplane.domains.queues.rules.topologies import TopologySpec
from gpuplane.domains.queues.service.declared import (
    DeclaredQueues,
    load_declared,
)
from gpuplane.domains.queues.service.declaring import (
    announce,
    create_cluster_queue,
    create_cohort,
    create_local_queue,
)
from gpuplane.domains.queues.service.refusing import (
    check_specs,
)
from gpuplane.domains.queues.service.topologies import declared_topologies, store_topology
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.kube.kueue.queues import cluster_queue_object, cohort_object, local_queue_object
from gpuplane.kube.tenancy import namespace_of

RETURNED = "registration"
"""Who declares what an earlier registration of the same cluster left there."""


def adopt_cluster_queue(
    session: WriteSession, key: UUID | str, name: str, actor: str, now: int
) -> DeclaredQueues:
    """Declare a ClusterQueue as the cluster has it; what we declared of it before is let go.

    Raises:
        QueueNotFound: If the cluster shows none of that name.
        BadQueue: If it cannot be declared here.
    """
    known = load_declared(session, key)
    seen = _get(session, known, SeenKind.CLUSTER_QUEUE, name)
    spec = cluster_queue_of(name, seen.spec)
    others = tuple(each for each in known.specs().cluster_queues if each.name != name)
    check_specs(known, cluster_queues=(*others, spec))
    declared = next((each for each in known.cluster_queues if each.name == name), None)
    if declared is None:
        repository.insert_cluster_queue(session, known.cluster.id, spec, now)
    else:
        repository.update_cluster_queue(session, known.cluster.id, spec, declared.version, now)
    _take_over(session, known, seen, cluster_queue_object(spec, ApiVersion.V1BETA2))
    announce(session, known.cluster, "queue.adopted", "cluster_queue", name, actor, now)
    return load_declared(session, key)


def adopt_cohort(
    session: WriteSession, key: UUID | str, name: str, actor: str, now: int
) -> DeclaredQueues:
    """Declare a Cohort as the cluster has it; what we declared of it before is let go.

    Raises:
        QueueNotFound: If the cluster shows none of that name.
        BadQueue: If it cannot be declared here.
    """
    known = load_declared(session, key)
    seen = _get(session, known, SeenKind.COHORT, name)
    spec = cohort_of(name, seen.spec)
    others = tuple(each for each in known.specs().cohorts if each.name != name)
    check_specs(known, cohorts=(*others, spec))
    declared = next((each for each in known.cohorts if each.name == name), None)
    if declared is None:
        repository.insert_cohort(session, known.cluster.id, spec, now)
    else:
        repository.update_cohort(session, known.cluster.id, spec, declared.version, now)
    _take_over(session, known, seen, cohort_object(spec, ApiVersion.V1BETA2))
    announce(session, known.cluster, "queue.adopted", "cohort", name, actor, now)
    return load_declared(session, key)


def adopt_local_queue(
    session: WriteSession,
    key: UUID | str,
    name: str,
    tenant_id: TenantId,
    actor: str,
    now: int,
) -> DeclaredQueues:
    """Declare a LocalQueue in the namespace of a tenant as the cluster has it.

    Raises:
        QueueNotFound: If the cluster shows none of that name in it.
        BadQueue: If it cannot be declared here, or the tenant is gone.
    """
    known = load_declared(session, key)
    tenant = identity.tenants_by_ids(session, {tenant_id}).get(tenant_id)
    if tenant is None:
        raise BadQueue("The tenant is gone.", field="tenant", fix="List the tenants.")
    seen = _get(session, known, SeenKind.LOCAL_QUEUE, name, namespace_of(tenant.name))
    door = _door_of(seen.spec, tenant_id)
    spec = LocalQueueSpec(
        name, tenant.name, door.cluster_queue, frozenset(door.job_types), {}, door.highest_priority
    )
    others = tuple(
        each
        for each in known.specs().local_queues
        if (each.name, each.tenant) != (name, tenant.name)
    )
    check_specs(known, local_queues=(*others, spec))
    declared = next(
        (
            each
            for each in known.local_queues
            if (each.name, each.spec.tenant_id) == (name, tenant_id)
        ),
        None,
    )
    if declared is None:
        repository.insert_local_queue(session, known.cluster.id, name, door, now)
    else:
        repository.update_local_queue(session, known.cluster.id, name, door, declared.version, now)
    made = local_queue_object(spec, seen.namespace, ApiVersion.V1BETA2)
    _take_over(session, known, seen, made)
    announce(session, known.cluster, "queue.adopted", "local_queue", name, actor, now, tenant_id)
    return load_declared(session, key)


def take_back(
    session: WriteSession, cluster_id: ClusterId, found: Sequence[Seen], now: int
) -> list[str]:
    """Declare what an earlier registration of the same cluster left there; return its names.

    What is declared already stays as it is. What cannot be declared any more, such as a LocalQueue
    of a tenant that is gone, stays on the cluster as it is and is not declared.
    """
    takers: tuple[tuple[SeenKind, Callable[[Seen], None]], ...] = (
        (SeenKind.TOPOLOGY, lambda seen: _return_topology(session, cluster_id, seen, found, now)),
        (
            SeenKind.COHORT,
            lambda seen: _nothing(
                create_cohort(
                    session, cluster_id, cohort_of(seen.name, seen.spec), None, RETURNED, now
                )
            ),
        ),
        (
            SeenKind.CLUSTER_QUEUE,
            lambda seen: _nothing(
                create_cluster_queue(
                    session, cluster_id, cluster_queue_of(seen.name, seen.spec), RETURNED, now
                )
            ),
        ),
        (SeenKind.LOCAL_QUEUE, lambda seen: _return_door(session, cluster_id, seen, now)),
    )
    done = []
    for kind, take in takers:
        for seen in found:
            if seen.kind is not kind or "raw" in seen.spec:
                continue
            try:
                take(seen)
            except (BadQueue, QueueExists):
                continue
            done.append(f"{kind} {seen.name}")
    return done


def _nothing(_: object) -> None:
    """Drop what a declaration answers: only whether it was refused matters here."""


def _return_door(session: WriteSession, cluster_id: ClusterId, seen: Seen, now: int) -> None:
    name = str(seen.spec.get("tenant", ""))
    tenant = identity.find_tenant_by_name(session, name) if name else None
    if tenant is None or namespace_of(tenant.name) != seen.namespace:
        raise BadQueue("Its tenant is gone.", field="tenant", fix="Onboard a tenant.")
    door = _door_of(seen.spec, tenant.id)
    create_local_queue(session, cluster_id, seen.name, door, RETURNED, now)


def _return_topology(
    session: WriteSession, cluster_id: ClusterId, seen: Seen, found: Sequence[Seen], now: int
) -> None:
    cluster = load_declared(session, cluster_id).cluster
    if any(each.name == seen.name for each in declared_topologies(cluster)):
        raise QueueExists("It is declared already.", field="name", fix="Change it.")
    levels = tuple(each["nodeLabel"] for each in seen.spec.get("levels") or ())
    users = tuple(
        sorted(
            each.name
            for each in found
            if each.kind is SeenKind.FLAVOR and each.spec.get("topologyName") == seen.name
        )
    )
    store_topology(
        session, cluster_id, TopologySpec(seen.name, levels, users), "queue.created", RETURNED, now
    )


def _door_of(spec: Mapping[str, Any], tenant_id: TenantId) -> Door:
    return Door(
        tenant_id,
        spec.get("clusterQueue", ""),
        tuple(spec.get("jobTypes", ())),
        {},
        spec.get("highestPriority"),
    )


def _take_over(
    session: WriteSession, known: DeclaredQueues, seen: Seen, made: dict[str, Any]
) -> None:
    """Keep what the cluster has as what was written last: it may be written over as it is now."""
    bare = {**made, "metadata": {"name": seen.name}}
    row = replace(seen, applied=bare, conflict=None)
    repository.store_seen(session, known.cluster.id, [row])


def _get(
    session: WriteSession, known: DeclaredQueues, kind: SeenKind, name: str, namespace: str = ""
) -> Seen:
    seen = [
        each
        for each in repository.list_seen(session, known.cluster.id, kind)
        if each.namespace == namespace
    ]
    for each in seen:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in seen) or "none"
    raise QueueNotFound(
        f"{known.cluster.name} shows no {kind} {name!r}.", fix=f"It shows: {names}."
    )
