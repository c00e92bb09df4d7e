"""What is declared about the queues of a cluster, read and looked up; changes nothing."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from gpuplane.core.ids import ClusterId, TenantId
from gpuplane.core.quota.specs import (
    ClusterQueueSpec,
    CohortSpec,
    LocalQueueSpec,
)
from gpuplane.core.workloads import PRIORITY_VALUES, Priority
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.identity import service as identity
from gpuplane.domains.queues import repository
from gpuplane.domains.queues.errors import (
    BadQueue,
    QueueNotFound,
)
from gpuplane.domains.queues.repository import Declared, Door
from gpuplane.domains.queues.rules import (
    QueueSpecs,
    default_door,
    default_specs,
    find_door,
    grants,
)
from gpuplane.domains.queues.rules.seen import Seen, SeenKind
from gpuplane.kit.ids import find_id
from gpuplane.kube.tenancy import namespace_of

T = TypeVar("T")
SHOWN_TENANTS = 8
"""Tenants named to whoever wrote one that there is not."""


@dataclass(frozen=True, slots=True)
class DeclaredQueues:
    """Everything declared on a cluster, with the names of the tenants of its doors."""

    cluster: Cluster
    cluster_queues: tuple[Declared[ClusterQueueSpec], ...]
    cohorts: tuple[Declared[CohortSpec], ...]
    local_queues: tuple[Declared[Door], ...]
    tenants: dict[TenantId, str]
    seen: tuple[Seen, ...] = ()
    """What the cluster shows, where it admits by itself."""

    def specs(self) -> QueueSpecs:
        """Return the declarations as the decision core reads them."""
        return QueueSpecs(
            tuple(each.spec for each in self.cluster_queues),
            tuple(each.spec for each in self.cohorts),
            tuple(local_spec(each, self.tenants) for each in self.local_queues),
        )


def load_specs(session: ReadSession, cluster_id: ClusterId) -> QueueSpecs:
    """Return what is declared of the queues of a cluster, its doors as they lead there."""
    queues = repository.list_cluster_queues(session, cluster_id)
    if not queues:
        return default_specs()
    doors = repository.list_local_queues(session, cluster_id)
    tenants = identity.tenants_by_ids(session, {each.spec.tenant_id for each in doors})
    names = {key: each.name for key, each in tenants.items()}
    seen = repository.list_seen(session, cluster_id, SeenKind.LOCAL_QUEUE) if doors else ()
    specs = tuple(each.spec for each in queues)
    return QueueSpecs(
        specs,
        tuple(each.spec for each in repository.list_cohorts(session, cluster_id)),
        lead_as_seen(
            (local_spec(each, names) for each in doors), seen, {each.name for each in specs}
        ),
    )


def lead_as_seen(
    doors: Iterable[LocalQueueSpec], seen: Iterable[Seen], known: Collection[str]
) -> tuple[LocalQueueSpec, ...]:
    """Return doors as they lead on their cluster, where that is elsewhere than declared.

    Its Kueue admits by what it has, which nobody can change once it is there.

    Args:
        doors: As they are declared.
        seen: What the cluster shows.
        known: The ClusterQueues that may be named; a way to another stays as it is declared.
    """
    ways = {
        (each.namespace, each.name): each.spec.get("clusterQueue", "")
        for each in seen
        if each.kind is SeenKind.LOCAL_QUEUE
    }
    found = []
    for door in doors:
        way = ways.get((namespace_of(door.tenant), door.name), "")
        found.append(replace(door, cluster_queue=way) if way in known else door)
    return tuple(found)


def choose_door(
    specs: QueueSpecs, tenant: str, job_type: str, name: str | None, priority: Priority
) -> LocalQueueSpec | None:
    """Return the door a job goes through; tenants without any use a queue that covers all."""
    door = find_door(specs, tenant, job_type, name, priority)
    if door is not None or name not in (None, "default"):
        return door
    door = default_door(specs, tenant)
    return door if door is not None and grants(specs, door, priority) else None


def find_highest_class(
    specs: QueueSpecs, tenant: str, job_type: str, name: str | None
) -> tuple[str, Priority] | None:
    """Return the door of a job that grants the highest class and that class, None without one."""
    for priority in sorted(Priority, key=PRIORITY_VALUES.__getitem__, reverse=True):
        door = choose_door(specs, tenant, job_type, name, priority)
        if door is not None:
            return door.name, priority
    return None


def load_declared(session: ReadSession, key: UUID | str) -> DeclaredQueues:
    """Return everything declared on a cluster."""
    cluster = clusters.get_cluster(session, key)
    doors = repository.list_local_queues(session, cluster.id)
    tenants = identity.tenants_by_ids(session, {each.spec.tenant_id for each in doors})
    return DeclaredQueues(
        cluster,
        repository.list_cluster_queues(session, cluster.id),
        repository.list_cohorts(session, cluster.id),
        doors,
        {key: each.name for key, each in tenants.items()},
        tuple(repository.list_seen(session, cluster.id)),
    )


def find_tenant_id(session: ReadSession, name: str) -> TenantId:
    """Return the id of a tenant by its name or id.

    Raises:
        BadQueue: If there is none.
    """
    key = find_id(name)
    found = (
        identity.find_tenant_by_name(session, name)
        if key is None
        else identity.tenants_by_ids(session, {TenantId(key)}).get(TenantId(key))
    )
    if found is None:
        known = ", ".join(identity.name_tenants(session, SHOWN_TENANTS))
        raise BadQueue(
            f"There is no tenant {name!r}.",
            field="tenant",
            fix=f"Known: {known}. `gpuplane tenants ls` lists them.",
        )
    return found.id


def local_spec(declared: Declared[Door], tenants: dict[TenantId, str]) -> LocalQueueSpec:
    """Return a door as the decision core reads it; tenants are names by their ids."""
    door = declared.spec
    return LocalQueueSpec(
        declared.name,
        tenants.get(door.tenant_id, str(door.tenant_id)),
        door.cluster_queue,
        frozenset(door.job_types),
        door.limits,
        door.highest_priority,
    )


def get_declared(declared: Sequence[Declared[T]], name: str, kind: str) -> Declared[T]:
    """Return the one of that name.

    Raises:
        QueueNotFound: If there is none; says which there are.
    """
    for each in declared:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in declared) or "none"
    raise QueueNotFound(f"There is no {kind} {name!r} on this cluster.", fix=f"There are: {names}.")


def get_door(known: DeclaredQueues, name: str, tenant_id: TenantId) -> Declared[Door]:
    """Return the door of that name of a tenant.

    Raises:
        QueueNotFound: If it has none; says which it has.
    """
    return get_declared(
        [each for each in known.local_queues if each.spec.tenant_id == tenant_id],
        name,
        "LocalQueue",
    )
