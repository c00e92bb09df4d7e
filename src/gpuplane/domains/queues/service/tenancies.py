"""Setting tenants up on a cluster and taking them away: runs whose steps can be done again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ClusterId, ProjectId, TenantId
from gpuplane.core.lifecycle.runs import RunStatus
from gpuplane.core.runs.plans import OnFailure, Retry, RunPlan, StepPlan
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.identity import service as identity
from gpuplane.domains.queues import repository
from gpuplane.domains.queues.errors import BadQueue
from gpuplane.domains.queues.repository import Door
from gpuplane.domains.queues.rules import DEFAULT_QUEUE, choose_common_queue
from gpuplane.domains.queues.rules.seen import SeenKind
from gpuplane.domains.queues.service.declared import (
    load_declared,
)
from gpuplane.domains.queues.service.declaring import (
    ListTenantJobs,
    change_local_queue,
    close_door,
    create_local_queue,
)
from gpuplane.domains.queues.service.refusing import (
    refuse_other_way,
    refuse_others,
    refuse_users,
)
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import Run, RunFilter, RunPolicy, RunView
from gpuplane.kit.pagination import PageRequest
from gpuplane.kube.tenancy import namespace_of

ONBOARD = "tenant.onboard"
OFFBOARD = "tenant.offboard"
ONBOARD_STEPS = (
    ("namespace", "Namespace with Pod Security baseline"),
    ("isolation", "NetworkPolicy: in from the tenant and the platform alone"),
    ("limits", "ServiceAccount, defaults and caps"),
    ("queues", "LocalQueues"),
)
OFFBOARD_STEPS = (
    ("close", "Close the LocalQueues"),
    ("remove", "Delete the namespace and all in it"),
)
_RETRY = Retry(attempts=4, delay_ms=5_000, factor=2.0, max_delay_ms=60_000)
STEP_MS = 120_000
LATEST_RUNS = 1000
"""Runs of one kind and cluster that are looked through for those of one tenant."""
OPEN_STATUSES = (RunStatus.PENDING, RunStatus.RUNNING)
KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Opening:
    """One LocalQueue that a tenant gets."""

    name: str
    cluster_queue: str
    job_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and in whose project the run is kept."""

    name: str
    tenant_id: TenantId
    project_id: ProjectId
    traceparent: str | None = None


def tenancy_handler(step: str) -> str:
    """Return the name under which a step's handler is registered."""
    return f"tenants.{step}"


def start_onboarding(
    session: WriteSession,
    key: UUID | str,
    tenant_id: TenantId,
    openings: Sequence[Opening],
    most: dict[str, int],
    caller: Caller,
    policy: RunPolicy,
    now: int,
) -> Run:
    """Start the run that sets a tenant up on a cluster; doing it again brings it up to date.

    A tenant for which no queue is named gets a door to the ClusterQueue `default`, or to the only
    one that is declared, unless it has a door already.

    Raises:
        BadQueue: If the cluster is none of Kubernetes, or a ClusterQueue is not there.
        QueueExists: If a LocalQueue is there that somebody else made.
        QueueLeadsElsewhere: If a LocalQueue is there that leads elsewhere.
    """
    cluster = _kubernetes(session, key)
    known = {each.name for each in repository.list_cluster_queues(session, cluster.id)}
    seen = repository.list_seen(session, cluster.id, SeenKind.CLUSTER_QUEUE)
    shown = {each.name for each in seen}
    for each in openings:
        if each.cluster_queue in shown - known:
            raise BadQueue(
                f"ClusterQueue {each.cluster_queue!r} is on {cluster.name}, but is not declared "
                "here.",
                field="queues",
                fix=f"Adopt it: gpuplane quotas adopt {each.cluster_queue} --cluster "
                f"{cluster.name}.",
            )
        if each.cluster_queue not in known:
            raise BadQueue(
                f"There is no ClusterQueue {each.cluster_queue!r} on {cluster.name}.",
                field="queues",
                fix=f"There are: {', '.join(sorted(known)) or 'none'}.",
            )
    _refuse_taken_doors(session, cluster, tenant_id, openings)
    if not openings:
        doors = repository.list_local_queues(session, cluster.id)
        if all(each.spec.tenant_id != tenant_id for each in doors):
            meant = choose_common_queue(known)
            openings = () if meant is None else (Opening(DEFAULT_QUEUE, meant),)
    given = {
        "cluster_id": str(cluster.id),
        "tenant_id": str(tenant_id),
        "queues": [[each.name, each.cluster_queue, list(each.job_types)] for each in openings],
        "most": most,
        "actor": caller.name,
    }
    plan = _plan(ONBOARD, ONBOARD_STEPS, given, cluster, caller)
    return runs.start_run(session, plan, now, policy)


def _refuse_taken_doors(
    session: ReadSession, cluster: Cluster, tenant_id: TenantId, openings: Sequence[Opening]
) -> None:
    """Refuse LocalQueues that others made or that lead elsewhere, before a run cannot end well."""
    found = load_declared(session, cluster.id)
    declared = {each.name for each in found.local_queues if each.spec.tenant_id == tenant_id}
    space = namespace_of(tenant_name(session, tenant_id))
    for each in openings:
        if each.name not in declared:
            refuse_others(session, found, SeenKind.LOCAL_QUEUE, each.name, space)
        refuse_other_way(session, found, each.name, tenant_id, each.cluster_queue)


def start_offboarding(
    session: WriteSession,
    key: UUID | str,
    tenant_id: TenantId,
    list_jobs: ListTenantJobs,
    caller: Caller,
    policy: RunPolicy,
    now: int,
) -> Run:
    """Start the run that takes a tenant off a cluster.

    Raises:
        BadQueue: If the cluster is none of Kubernetes.
        QueueInUse: If jobs of the tenant hold devices or wait there.
    """
    cluster = _kubernetes(session, key)
    refuse_users(
        list_jobs(session, cluster.id, tenant_id, None), f"on {cluster.name} for this tenant"
    )
    given = {
        "cluster_id": str(cluster.id),
        "tenant_id": str(tenant_id),
        "actor": caller.name,
    }
    plan = _plan(OFFBOARD, OFFBOARD_STEPS, given, cluster, caller)
    return runs.start_run(session, plan, now, policy)


def open_queues(
    session: WriteSession,
    cluster_id: ClusterId,
    tenant_id: TenantId,
    openings: Sequence[Opening],
    actor: str,
    now: int,
) -> list[str]:
    """Declare the LocalQueues of a tenant as they are asked; again changes nothing."""
    known = {
        each.name: each
        for each in load_declared(session, cluster_id).local_queues
        if each.spec.tenant_id == tenant_id
    }
    for each in openings:
        door = Door(tenant_id, each.cluster_queue, tuple(sorted(each.job_types)), {})
        before = known.get(each.name)
        if before is None:
            create_local_queue(session, cluster_id, each.name, door, actor, now)
        elif before.spec != door:
            change_local_queue(session, cluster_id, each.name, door, None, actor, now)
    return [each.name for each in openings]


def close_queues(
    session: WriteSession, cluster_id: ClusterId, tenant_id: TenantId, actor: str, now: int
) -> list[str]:
    """Withdraw every LocalQueue of a tenant; return their names."""
    known = load_declared(session, cluster_id)
    found = [each.name for each in known.local_queues if each.spec.tenant_id == tenant_id]
    for name in found:
        close_door(session, known.cluster, name, tenant_id, actor, now)
    return found


def find_use(
    session: ReadSession, tenant_id: TenantId, project_id: ProjectId | None
) -> tuple[str, str] | None:
    """Return what of a tenant lies on the first cluster that has any of it, and the fix.

    That is LocalQueues, the namespace, or a run that sets it up there or takes it off. Of a
    namespace without a LocalQueue it is known while the run that made it is kept. A project has
    none of these.
    """
    if project_id is not None:
        return None
    tenant = tenant_name(session, tenant_id)
    for cluster in clusters.list_clusters(session):
        doors = repository.list_local_queues(session, cluster.id)
        names = [each.name for each in doors if each.spec.tenant_id == tenant_id]
        lies = [f"LocalQueue {name}" for name in names]
        offboard = f"Take it off there: gpuplane clusters offboard {cluster.name} {tenant}"
        if cluster.kind == KUBERNETES:
            last = _find_last_run(session, cluster.id, tenant_id)
            if last is not None and last.status in OPEN_STATUSES:
                said = f"A run is at work on this tenant on {cluster.name}: {last.name}."
                return said, f"Wait for its end, or cancel it: gpuplane pipelines cancel {last.id}"
            if names or (last is not None and last.kind == ONBOARD and last.completed):
                lies.append(f"namespace {namespace_of(tenant)}")
                return f"There is {' and '.join(lies)} of it on {cluster.name}.", offboard
        elif names:
            closing = f"gpuplane queues rm {names[0]} --cluster {cluster.name} --tenant {tenant}"
            return f"There is {' and '.join(lies)} of it on {cluster.name}.", f"Close it: {closing}"
    return None


def _find_last_run(
    session: ReadSession, cluster_id: ClusterId, tenant_id: TenantId
) -> RunView | None:
    """Return the newest run that set a tenant up on a cluster or took it off there."""
    found = [
        each
        for kind in (ONBOARD, OFFBOARD)
        for each in runs.list_runs(
            session, None, RunFilter(kind=kind, source_id=cluster_id), PageRequest(LATEST_RUNS)
        ).items
        if each.context.get("tenant_id") == str(tenant_id)
    ]
    return max(found, key=lambda each: (each.created_at, each.id), default=None)


def tenant_name(session: ReadSession, tenant_id: TenantId) -> str:
    """Return the name of a tenant.

    Raises:
        BadQueue: If there is none.
    """
    found = identity.tenants_by_ids(session, {tenant_id}).get(tenant_id)
    if found is None:
        raise BadQueue("The tenant is gone.", field="tenant", fix="List the tenants.")
    return found.name


def _kubernetes(session: ReadSession, key: UUID | str) -> Cluster:
    cluster = clusters.get_cluster(session, key)
    if cluster.kind != KUBERNETES:
        raise BadQueue(
            f"{cluster.name} is {cluster.kind}: tenants need no setting up there.",
            field="cluster",
            fix="Name a cluster of Kubernetes.",
        )
    return cluster


def _plan(
    kind: str,
    steps: Sequence[tuple[str, str]],
    given: dict[str, Any],
    cluster: Cluster,
    caller: Caller,
) -> RunPlan:
    made: list[StepPlan] = []
    for order, (key, name) in enumerate(steps):
        made.append(
            StepPlan(
                key=key,
                handler=tenancy_handler(key),
                input=given,
                name=name,
                needs=(made[-1].key,) if made else (),
                order=order,
                retry=_RETRY,
                timeout_ms=STEP_MS,
            )
        )
    return RunPlan(
        kind=kind,
        name=f"{kind.partition('.')[2]} a tenant on {cluster.name}",
        tenant_id=caller.tenant_id,
        project_id=caller.project_id,
        steps=tuple(made),
        source_id=cluster.id,
        context={"tenant_id": given["tenant_id"]},
        on_failure=OnFailure.FAIL_FAST,
        traceparent=caller.traceparent,
        created_by=caller.name,
    )
