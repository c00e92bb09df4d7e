"""HTTP of quotas (ClusterQueues), queues (LocalQueues) and cohorts of a cluster."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, cast

from fastapi import APIRouter, Path, Query

from gpuplane.core.quota.specs import (
    CPU,
    GPU,
    MEMORY,
    ClusterQueueSpec,
    CohortSpec,
    FlavorFungibility,
    FlavorResource,
    PreemptionPolicy,
    ResourceGroup,
    ResourceQuota,
)
from gpuplane.core.workloads import PRIORITY_VALUES, Priority
from gpuplane.db import ReadSession
from gpuplane.db.calls import Call, CallDep
from gpuplane.domains.queues import service
from gpuplane.domains.queues.errors import BadQueue
from gpuplane.domains.queues.schemas import (
    CohortChangeIn,
    CohortIn,
    CohortOut,
    CohortsOut,
    QueueChangeIn,
    QueueIn,
    QueueName,
    QueueOut,
    QueuesOut,
    QuotaChangeIn,
    QuotaIn,
    QuotaOut,
    QuotasOut,
    ResourceGroupBody,
)
from gpuplane.domains.queues.service import Declared, DeclaredQueues, Door, quantity_text
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Done

router = APIRouter(tags=["queues"])

MIB = Decimal(2) ** 20
MILLI = Decimal(1000)
ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]
NamePath = Annotated[QueueName, Path()]
TenantKey = Annotated[str, Query(min_length=1, max_length=63, description="Name or id.")]


# -- quotas: ClusterQueues -----------------------------------------------------------------------


@router.get("/clusters/{cluster}/quotas")
@requires(Permission.QUOTA_READ)
async def list_quotas(call: CallDep, cluster: ClusterKey) -> QuotasOut:
    """List the ClusterQueues of a cluster; without any the one that covers everything."""
    found = await call.read(lambda s: service.load_declared(s, cluster))
    if found.cluster_queues:
        return QuotasOut(items=[_quota_body(each) for each in found.cluster_queues])
    default = await call.read(lambda s: service.load_specs(s, found.cluster.id))
    items = [
        _quota_body(Declared(spec.name, spec, 0, 0, 0), is_default=True)
        for spec in default.cluster_queues
    ]
    return QuotasOut(items=items)


@router.post("/clusters/{cluster}/quotas", status_code=201)
@requires(Permission.QUOTA_MANAGE)
async def create_quota(call: CallDep, cluster: ClusterKey, body: QuotaIn) -> QuotaOut:
    """Declare a ClusterQueue; with the first one the default queue of the cluster is gone."""
    spec = _cluster_queue(body.name, body)
    return await call.write(
        "queues.create_cluster_queue",
        lambda s: service.create_cluster_queue(s, cluster, spec, call.principal.name, call.now),
        lambda found: _quota_body(_named(found.cluster_queues, body.name)),
        201,
    )


@router.put("/clusters/{cluster}/quotas/{name}")
@requires(Permission.QUOTA_MANAGE)
async def change_quota(
    call: CallDep, cluster: ClusterKey, name: NamePath, body: QuotaChangeIn
) -> QuotaOut:
    """Replace a ClusterQueue; what runs goes on and counts against the new quotas."""
    spec = _cluster_queue(name, body)
    return await call.write(
        "queues.change_cluster_queue",
        lambda s: service.change_cluster_queue(
            s, cluster, spec, body.resource_version, call.principal.name, call.now
        ),
        lambda found: _quota_body(_named(found.cluster_queues, name)),
    )


@router.delete("/clusters/{cluster}/quotas/{name}")
@requires(Permission.QUOTA_MANAGE)
async def delete_quota(call: CallDep, cluster: ClusterKey, name: NamePath) -> Done:
    """Withdraw a ClusterQueue that nothing leads to and nothing runs through."""
    return await call.write(
        "queues.delete_cluster_queue",
        lambda s: service.delete_cluster_queue(
            s, cluster, name, _count_users(call), call.principal.name, call.now
        ),
        lambda _: Done(),
    )


# -- queues: LocalQueues -------------------------------------------------------------------------


@router.get("/clusters/{cluster}/queues")
@requires(Permission.QUOTA_READ)
async def list_queues(call: CallDep, cluster: ClusterKey) -> QueuesOut:
    """List the LocalQueues of a cluster: those of the tenants that the caller sees."""
    found = await call.read(lambda s: service.load_declared(s, cluster))
    seen = [each for each in found.local_queues if call.principal.sees_tenant(each.spec.tenant_id)]
    return QueuesOut(items=[_queue_body(each, found) for each in seen])


@router.post("/clusters/{cluster}/queues", status_code=201)
@requires(Permission.QUOTA_MANAGE)
async def create_queue(call: CallDep, cluster: ClusterKey, body: QueueIn) -> QueueOut:
    """Open a tenant's door to a ClusterQueue."""
    door = await call.read(lambda s: _door(s, body))
    return await call.write(
        "queues.create_local_queue",
        lambda s: service.create_local_queue(
            s, cluster, body.name, door, call.principal.name, call.now
        ),
        lambda found: _queue_body(_own(found, body.name, door), found),
        201,
    )


@router.put("/clusters/{cluster}/queues/{name}")
@requires(Permission.QUOTA_MANAGE)
async def change_queue(
    call: CallDep, cluster: ClusterKey, name: NamePath, body: QueueChangeIn
) -> QueueOut:
    """Replace a tenant's LocalQueue; what runs goes on."""
    door = await call.read(lambda s: _door(s, body))
    return await call.write(
        "queues.change_local_queue",
        lambda s: service.change_local_queue(
            s, cluster, name, door, body.resource_version, call.principal.name, call.now
        ),
        lambda found: _queue_body(_own(found, name, door), found),
    )


@router.delete("/clusters/{cluster}/queues/{name}")
@requires(Permission.QUOTA_MANAGE)
async def delete_queue(
    call: CallDep, cluster: ClusterKey, name: NamePath, tenant: TenantKey
) -> Done:
    """Close a tenant's door; what runs goes on."""
    tenant_id = await call.read(lambda s: service.find_tenant_id(s, tenant))
    return await call.write(
        "queues.delete_local_queue",
        lambda s: service.delete_local_queue(
            s, cluster, name, tenant_id, call.principal.name, call.now
        ),
        lambda _: Done(),
    )


# -- cohorts -------------------------------------------------------------------------------------


@router.get("/clusters/{cluster}/cohorts")
@requires(Permission.QUOTA_READ)
async def list_cohorts(call: CallDep, cluster: ClusterKey) -> CohortsOut:
    """List the Cohorts of a cluster, those that ClusterQueues merely name among them."""
    found = await call.read(lambda s: service.load_declared(s, cluster))
    declared = {each.name for each in found.cohorts}
    named = {each.spec.cohort for each in found.cluster_queues}
    named |= {each.spec.parent for each in found.cohorts}
    bodies = [_cohort_body(each.name, found) for each in found.cohorts]
    bodies += [_cohort_body(name, found) for name in named if name and name not in declared]
    return CohortsOut(items=sorted(bodies, key=lambda each: each.name))


@router.post("/clusters/{cluster}/cohorts", status_code=201)
@requires(Permission.QUOTA_MANAGE)
async def create_cohort(call: CallDep, cluster: ClusterKey, body: CohortIn) -> CohortOut:
    """Declare a Cohort; members named are in it from now on."""
    spec = _cohort(body.name, body)
    return await call.write(
        "queues.create_cohort",
        lambda s: service.create_cohort(
            s, cluster, spec, body.members, call.principal.name, call.now
        ),
        lambda found: _cohort_body(body.name, found),
        201,
    )


@router.put("/clusters/{cluster}/cohorts/{name}")
@requires(Permission.QUOTA_MANAGE)
async def change_cohort(
    call: CallDep, cluster: ClusterKey, name: NamePath, body: CohortChangeIn
) -> CohortOut:
    """Replace a Cohort; when members are named, exactly these ClusterQueues are in it."""
    spec = _cohort(name, body)
    return await call.write(
        "queues.change_cohort",
        lambda s: service.change_cohort(
            s, cluster, spec, body.members, body.resource_version, call.principal.name, call.now
        ),
        lambda found: _cohort_body(name, found),
    )


@router.delete("/clusters/{cluster}/cohorts/{name}")
@requires(Permission.QUOTA_MANAGE)
async def delete_cohort(call: CallDep, cluster: ClusterKey, name: NamePath) -> Done:
    """Withdraw a Cohort without members."""
    return await call.write(
        "queues.delete_cohort",
        lambda s: service.delete_cohort(s, cluster, name, call.principal.name, call.now),
        lambda _: Done(),
    )


# -- from bodies to core values ------------------------------------------------------------------


def _cluster_queue(name: str, body: QuotaChangeIn) -> ClusterQueueSpec:
    groups, quotas = _groups(body.resource_groups)
    policy, fungibility = body.preemption, body.flavor_fungibility
    return ClusterQueueSpec(
        name=name,
        cohort=body.cohort,
        resource_groups=groups,
        quotas=quotas,
        queueing_strategy=body.queueing_strategy,
        fair_weight_milli=round(body.fair_sharing.weight * 1000),
        preemption=PreemptionPolicy(
            policy.within_cluster_queue,
            policy.reclaim_within_cohort,
            policy.borrow_within_cohort.policy,
            policy.borrow_within_cohort.max_priority_threshold,
        ),
        flavor_fungibility=FlavorFungibility(
            fungibility.when_can_borrow, fungibility.when_can_preempt, fungibility.preference
        ),
        covers_everything=body.covers_everything,
        highest_priority=_value(body.highest_priority),
    )


def _cohort(name: str, body: CohortChangeIn) -> CohortSpec:
    _, quotas = _groups(body.resource_groups)
    return CohortSpec(name, body.parent, quotas, round(body.fair_sharing.weight * 1000))


def _groups(
    bodies: Iterable[ResourceGroupBody],
) -> tuple[tuple[ResourceGroup, ...], dict[FlavorResource, ResourceQuota]]:
    groups: list[ResourceGroup] = []
    quotas: dict[FlavorResource, ResourceQuota] = {}
    for index, group in enumerate(bodies):
        names = tuple(each.name for each in group.flavors)
        groups.append(ResourceGroup(tuple(group.covered_resources), names))
        for flavor in group.flavors:
            for each in flavor.resources:
                pair = FlavorResource(flavor.name, each.name)
                where = f"resourceGroups[{index}].flavors"
                if pair in quotas:
                    raise BadQueue(
                        f"{each.name} in flavor {flavor.name} has two quotas.",
                        field=where,
                        fix="Leave one out.",
                    )  # fmt: skip - the refusal reads as one line
                quotas[pair] = ResourceQuota(
                    _units(each.name, each.nominal_quota, where),
                    _units_or_none(each.name, each.borrowing_limit, where),
                    _units_or_none(each.name, each.lending_limit, where),
                )
    return tuple(groups), quotas


def _units_or_none(resource: str, amount: Decimal | None, field: str) -> int | None:
    return None if amount is None else _units(resource, amount, field)


def _units(resource: str, amount: Decimal, field: str) -> int:
    """Return an amount in the exact unit of the core, refused when it is no whole number of it."""
    exact = amount * MILLI if resource in (GPU, CPU) else amount
    if resource == MEMORY:
        exact = amount / MIB
    if exact != exact.to_integral_value():
        unit = {MEMORY: "whole MiB", GPU: "thousandths of a GPU", CPU: "thousandths of a core"}
        raise BadQueue(
            f"{resource} is counted in {unit.get(resource, 'whole pieces')}.",
            field=field,
            fix="Round the quantity, and write memory with a suffix such as Gi.",
        )
    return int(exact)


def _door(session: ReadSession, body: QueueChangeIn) -> Door:
    tenant_id = service.find_tenant_id(session, body.tenant)
    limits = {
        FlavorResource(each.flavor, each.resource): _units(each.resource, each.limit, "limits")
        for each in body.limits
    }
    types = tuple(sorted(set(body.job_types)))
    return Door(tenant_id, body.cluster_queue, types, limits, _value(body.highest_priority))


def _value(priority: Priority | None) -> int | None:
    return None if priority is None else PRIORITY_VALUES[priority]


def _count_users(call: Call) -> service.CountUsers:
    return cast("service.CountUsers", call.ports["count_queue_users"])


# -- from core values to bodies ------------------------------------------------------------------


def _quota_body(declared: Declared[ClusterQueueSpec], *, is_default: bool = False) -> QuotaOut:
    spec = declared.spec
    policy, fungibility = spec.preemption, spec.flavor_fungibility
    preference = fungibility.preference
    return QuotaOut.model_construct(
        name=spec.name,
        cohort=spec.cohort,
        resource_groups=_groups_body(spec.resource_groups, spec.quotas),
        queueing_strategy=str(spec.queueing_strategy),
        fair_sharing={"weight": spec.fair_weight_milli / 1000},
        preemption={
            "withinClusterQueue": str(policy.within_cluster_queue),
            "reclaimWithinCohort": str(policy.reclaim_within_cohort),
            "borrowWithinCohort": {
                "policy": str(policy.borrow_within_cohort),
                "maxPriorityThreshold": policy.max_priority_threshold,
            },
        },
        flavor_fungibility={
            "whenCanBorrow": str(fungibility.when_can_borrow),
            "whenCanPreempt": str(fungibility.when_can_preempt),
            "preference": None if preference is None else str(preference),
        },
        covers_everything=spec.covers_everything,
        highest_priority=_class_of(spec.highest_priority),
        is_default=is_default,
        resource_version=declared.version,
        created_at=None if is_default else declared.created_at,
        updated_at=None if is_default else declared.updated_at,
    )


def _cohort_body(name: str, found: DeclaredQueues) -> CohortOut:
    declared = next((each for each in found.cohorts if each.name == name), None)
    spec = CohortSpec(name) if declared is None else declared.spec
    by_flavor: dict[str, list[str]] = {}
    for pair in spec.quotas:
        by_flavor.setdefault(pair.flavor, []).append(pair.resource)
    groups = [
        ResourceGroup(tuple(sorted(resources)), (flavor,))
        for flavor, resources in sorted(by_flavor.items())
    ]
    return CohortOut.model_construct(
        name=name,
        parent=spec.parent,
        resource_groups=_groups_body(groups, spec.quotas),
        fair_sharing={"weight": spec.fair_weight_milli / 1000},
        members=[each.name for each in found.cluster_queues if each.spec.cohort == name],
        is_declared=declared is not None,
        resource_version=None if declared is None else declared.version,
    )


def _queue_body(declared: Declared[Door], found: DeclaredQueues) -> QueueOut:
    door = declared.spec
    return QueueOut.model_construct(
        name=declared.name,
        tenant=found.tenants.get(door.tenant_id, ""),
        tenant_id=str(door.tenant_id),
        cluster_queue=door.cluster_queue,
        job_types=list(door.job_types),
        limits=[
            {
                "flavor": pair.flavor,
                "resource": pair.resource,
                "limit": quantity_text(pair.resource, amount),
            }
            for pair, amount in sorted(door.limits.items())
        ],
        highest_priority=_class_of(door.highest_priority),
        resource_version=declared.version,
        created_at=declared.created_at,
        updated_at=declared.updated_at,
    )


def _class_of(value: int | None) -> str | None:
    return next((str(each) for each, own in PRIORITY_VALUES.items() if own == value), None)


def _groups_body(
    groups: Sequence[ResourceGroup], quotas: Mapping[FlavorResource, ResourceQuota]
) -> list[dict[str, Any]]:
    return [
        {
            "coveredResources": list(group.covered_resources),
            "flavors": [
                {
                    "name": flavor,
                    "resources": [
                        _quota_texts(name, quotas[FlavorResource(flavor, name)])
                        for name in group.covered_resources
                        if FlavorResource(flavor, name) in quotas
                    ],
                }
                for flavor in group.flavors
            ],
        }
        for group in groups
    ]


def _quota_texts(resource: str, quota: ResourceQuota) -> dict[str, str | None]:
    borrowing, lending = quota.borrowing_limit, quota.lending_limit
    return {
        "name": resource,
        "nominalQuota": quantity_text(resource, quota.nominal),
        "borrowingLimit": None if borrowing is None else quantity_text(resource, borrowing),
        "lendingLimit": None if lending is None else quantity_text(resource, lending),
    }


def _named(declared: Sequence[Declared[ClusterQueueSpec]], name: str) -> Declared[ClusterQueueSpec]:
    return next(each for each in declared if each.name == name)


def _own(found: DeclaredQueues, name: str, door: Door) -> Declared[Door]:
    return next(
        each
        for each in found.local_queues
        if each.name == name and each.spec.tenant_id == door.tenant_id
    )
