"""From API bodies of queues to the values of the core, exact or refused."""

from collections.abc import Iterable
from decimal import Decimal

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
from gpuplane.domains.queues import service
from gpuplane.domains.queues.errors import BadQueue
from gpuplane.domains.queues.schemas import (
    CohortChangeIn,
    QueueChangeIn,
    QuotaChangeIn,
    ResourceGroupBody,
)
from gpuplane.domains.queues.service import Door

MIB = Decimal(2) ** 20
MILLI = Decimal(1000)


def parse_cluster_queue(name: str, body: QuotaChangeIn) -> ClusterQueueSpec:
    """Return the ClusterQueue that a body means."""
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


def parse_cohort(name: str, body: CohortChangeIn) -> CohortSpec:
    """Return the Cohort that a body means."""
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
                    units(each.name, each.nominal_quota, where),
                    _units_or_none(each.name, each.borrowing_limit, where),
                    _units_or_none(each.name, each.lending_limit, where),
                )
    return tuple(groups), quotas


def _units_or_none(resource: str, amount: Decimal | None, field: str) -> int | None:
    return None if amount is None else units(resource, amount, field)


def units(resource: str, amount: Decimal, field: str) -> int:
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


def parse_door(session: ReadSession, body: QueueChangeIn) -> Door:
    """Return the LocalQueue that a body means, its tenant looked up."""
    tenant_id = service.find_tenant_id(session, body.tenant)
    limits = {
        FlavorResource(each.flavor, each.resource): units(each.resource, each.limit, "limits")
        for each in body.limits
    }
    types = tuple(sorted(set(body.job_types)))
    return Door(tenant_id, body.cluster_queue, types, limits, _value(body.highest_priority))


def _value(priority: Priority | None) -> int | None:
    return None if priority is None else PRIORITY_VALUES[priority]
