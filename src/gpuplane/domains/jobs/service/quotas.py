"""What of the declared quotas is used now, by the attempts that hold devices."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuplane.core.ids import ClusterId, TenantId
from gpuplane.core.quota.specs import FlavorResource, LocalQueueSpec
from gpuplane.core.quota.tree import QuotaRow, QuotaTree
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.queues import service as queues
from gpuplane.kit.access import Principal


@dataclass(frozen=True, slots=True)
class DoorUse:
    """One LocalQueue, its caps and what goes through it now."""

    spec: LocalQueueSpec
    used: Mapping[FlavorResource, int]
    jobs: int


@dataclass(frozen=True, slots=True)
class QueueUse:
    """The account of every queue of a cluster.

    Args:
        cluster_queues: (rows, jobs that hold devices through it) by name.
        cohorts: Rows by name.
        doors: LocalQueues of tenants that the reader sees.
    """

    cluster: Cluster
    cluster_queues: Mapping[str, tuple[tuple[QuotaRow, ...], int]]
    cohorts: Mapping[str, tuple[QuotaRow, ...]]
    doors: tuple[DoorUse, ...]


def load_queue_use(session: ReadSession, principal: Principal, key: str) -> QueueUse:
    """Return what of a cluster's quotas is used now, borrowed, lent and left.

    Where Kueue admits, what it counts is told: work that came past this control plane is in it.
    """
    cluster = clusters.get_cluster(session, key)
    counted = queues.load_seen_usage(session, cluster) if queues.admits_itself(cluster) else None
    specs = (
        queues.load_specs(session, cluster.id)
        if counted is None
        else queues.load_shown_specs(session, cluster)
    )
    open_ones = attempts_repository.list_uses(session, cluster.id)
    jobs = repository.load_jobs(session, [each.job_id for each in open_ones])
    tenants = identity.tenants_by_ids(session, {job.tenant_id for job in jobs.values()})
    names = {key: each.name for key, each in tenants.items()}
    tree = QuotaTree(
        specs.cluster_queues, specs.cohorts, queues.known_doors(specs, sorted(names.values()))
    )
    count: dict[str, int] = {}
    door_use: dict[tuple[str, str], dict[FlavorResource, int]] = {}
    door_jobs: dict[tuple[str, str], int] = {}
    known = set(tree.cluster_queues)
    for name, used in (counted or {}).items():
        if name in known:
            tree.add_usage(name, used)
    for each in open_ones:
        usage = {FlavorResource(flavor, what): n for flavor, what, n in each.quota_usage}
        if each.cluster_queue in known and counted is None:
            tree.add_usage(each.cluster_queue, usage)
        count[each.cluster_queue] = count.get(each.cluster_queue, 0) + 1
        job = jobs.get(each.job_id)
        tenant = "" if job is None else names.get(job.tenant_id, "")
        door = (tenant, each.local_queue.rpartition("/")[2])
        door_jobs[door] = door_jobs.get(door, 0) + 1
        through = door_use.setdefault(door, {})
        for pair, amount in usage.items():
            through[pair] = through.get(pair, 0) + amount
    seen = _seen_tenants(session, principal, [door.tenant for door in specs.local_queues])
    return QueueUse(
        cluster=cluster,
        cluster_queues={
            name: (tuple(tree.explain(name)), count.get(name, 0)) for name in tree.cluster_queues
        },
        cohorts={name: tuple(tree.explain_cohort(name)) for name in tree.cohorts},
        doors=tuple(
            DoorUse(
                spec,
                door_use.get((spec.tenant, spec.name), {}),
                door_jobs.get((spec.tenant, spec.name), 0),
            )
            for spec in specs.local_queues
            if spec.tenant in seen
        ),
    )


def count_queue_users(session: ReadSession, cluster_id: ClusterId, cluster_queue: str) -> int:
    """Return how many jobs hold devices through a ClusterQueue; offered to the queues' domain."""
    uses = attempts_repository.list_uses(session, cluster_id)
    return sum(1 for each in uses if each.cluster_queue == cluster_queue)


def count_offers(session: ReadSession, cluster_id: ClusterId) -> int:
    """Return how many jobs are in the hands of a cluster that admits by itself."""
    return len(offers_repository.list_offers(session, cluster_id))


def list_tenant_jobs(
    session: ReadSession, cluster_id: ClusterId, tenant_id: TenantId, door: str | None = None
) -> list[str]:
    """Return by name the jobs of a tenant that hold devices or are offered on a cluster.

    Args:
        session: The session.
        cluster_id: The cluster.
        tenant_id: The tenant.
        door: Only those through its LocalQueue of this name.
    """
    uses = attempts_repository.list_uses(session, cluster_id)
    offers = offers_repository.list_offers(session, cluster_id)
    ways = [(each.job_id, each.local_queue.rpartition("/")[2]) for each in uses]
    ways += [(each.job_id, each.queue_name) for each in offers]
    jobs = repository.load_jobs(
        session, list({job_id for job_id, name in ways if door in (None, name)})
    )
    return sorted(job.name for job in jobs.values() if job.tenant_id == tenant_id)


def _seen_tenants(session: ReadSession, principal: Principal, names: list[str]) -> set[str]:
    seen = set()
    for name in set(names):
        tenant = identity.find_tenant_by_name(session, name)
        if tenant is not None and principal.sees_tenant(tenant.id):
            seen.add(name)
    return seen
