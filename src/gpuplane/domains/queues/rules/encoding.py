"""Declared queues as they are kept: Kueue's field names, amounts in the exact units of the core.

GPUs and cores are thousandths, memory is MiB, other resources are pieces.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuplane.core.quota.nesting import nest_groups
from gpuplane.core.quota.specs import (
    DEFAULT_FAIR_WEIGHT_MILLI,
    BorrowWithinCohortPolicy,
    ClusterQueueSpec,
    CohortSpec,
    FlavorFungibility,
    FlavorFungibilityPolicy,
    FlavorPreference,
    FlavorResource,
    PreemptionPolicy,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
)

Groups = list[dict[str, Any]]


def encode_cluster_queue(spec: ClusterQueueSpec) -> dict[str, Any]:
    """Return a ClusterQueue as it is kept."""
    policy, fungibility = spec.preemption, spec.flavor_fungibility
    return {
        "cohort": spec.cohort,
        "resourceGroups": encode_groups(spec.resource_groups, spec.quotas),
        "queueingStrategy": str(spec.queueing_strategy),
        "fairSharing": {"weight": spec.fair_weight_milli},
        "preemption": {
            "withinClusterQueue": str(policy.within_cluster_queue),
            "reclaimWithinCohort": str(policy.reclaim_within_cohort),
            "borrowWithinCohort": {
                "policy": str(policy.borrow_within_cohort),
                "maxPriorityThreshold": policy.max_priority_threshold,
            },
        },
        "flavorFungibility": {
            "whenCanBorrow": str(fungibility.when_can_borrow),
            "whenCanPreempt": str(fungibility.when_can_preempt),
            "preference": None if fungibility.preference is None else str(fungibility.preference),
        },
        "coversEverything": spec.covers_everything,
        "highestPriority": spec.highest_priority,
    }


def cluster_queue_of(name: str, kept: Mapping[str, Any]) -> ClusterQueueSpec:
    """Return the ClusterQueue that is kept."""
    groups, quotas = groups_of(kept.get("resourceGroups", []))
    policy = kept.get("preemption", {})
    borrow = policy.get("borrowWithinCohort", {})
    fungibility = kept.get("flavorFungibility", {})
    preference = fungibility.get("preference")
    return ClusterQueueSpec(
        name=name,
        cohort=kept.get("cohort"),
        resource_groups=groups,
        quotas=quotas,
        queueing_strategy=QueueingStrategy(
            kept.get("queueingStrategy", QueueingStrategy.BEST_EFFORT_FIFO)
        ),
        fair_weight_milli=kept.get("fairSharing", {}).get("weight", DEFAULT_FAIR_WEIGHT_MILLI),
        preemption=PreemptionPolicy(
            WithinClusterQueue(policy.get("withinClusterQueue", "Never")),
            ReclaimWithinCohort(policy.get("reclaimWithinCohort", "Never")),
            BorrowWithinCohortPolicy(borrow.get("policy", "Never")),
            borrow.get("maxPriorityThreshold"),
        ),
        flavor_fungibility=FlavorFungibility(
            FlavorFungibilityPolicy(fungibility.get("whenCanBorrow", "MayStopSearch")),
            FlavorFungibilityPolicy(fungibility.get("whenCanPreempt", "TryNextFlavor")),
            None if preference is None else FlavorPreference(preference),
        ),
        covers_everything=kept.get("coversEverything", False),
        highest_priority=kept.get("highestPriority"),
    )


def encode_cohort(spec: CohortSpec) -> dict[str, Any]:
    """Return a Cohort as it is kept."""
    return {
        "parent": spec.parent,
        "resourceGroups": encode_groups(_groups_of_quotas(spec.quotas), spec.quotas),
        "fairSharing": {"weight": spec.fair_weight_milli},
    }


def cohort_of(name: str, kept: Mapping[str, Any]) -> CohortSpec:
    """Return the Cohort that is kept."""
    _, quotas = groups_of(kept.get("resourceGroups", []))
    weight = kept.get("fairSharing", {}).get("weight", DEFAULT_FAIR_WEIGHT_MILLI)
    return CohortSpec(name, kept.get("parent"), quotas, weight)


def encode_limits(limits: Mapping[FlavorResource, int]) -> list[dict[str, Any]]:
    """Return the caps of a LocalQueue as they are kept."""
    return [
        {"flavor": pair.flavor, "resource": pair.resource, "limit": amount}
        for pair, amount in sorted(limits.items())
    ]


def limits_of(kept: Iterable[Mapping[str, Any]]) -> dict[FlavorResource, int]:
    """Return the caps of a LocalQueue that are kept."""
    return {FlavorResource(each["flavor"], each["resource"]): each["limit"] for each in kept}


def encode_groups(
    groups: Iterable[ResourceGroup], quotas: Mapping[FlavorResource, ResourceQuota]
) -> Groups:
    """Return resource groups with their quotas in Kueue's nesting."""
    return nest_groups(groups, quotas, _encode_quota)


def groups_of(
    kept: Iterable[Mapping[str, Any]],
) -> tuple[tuple[ResourceGroup, ...], dict[FlavorResource, ResourceQuota]]:
    """Return resource groups and quotas from Kueue's nesting."""
    groups: list[ResourceGroup] = []
    quotas: dict[FlavorResource, ResourceQuota] = {}
    for each in kept:
        flavors = each["flavors"]
        groups.append(
            ResourceGroup(tuple(each["coveredResources"]), tuple(one["name"] for one in flavors))
        )
        for flavor in flavors:
            for quota in flavor["resources"]:
                quotas[FlavorResource(flavor["name"], quota["name"])] = ResourceQuota(
                    quota["nominalQuota"], quota.get("borrowingLimit"), quota.get("lendingLimit")
                )
    return tuple(groups), quotas


def _encode_quota(name: str, quota: ResourceQuota) -> dict[str, Any]:
    return {
        "name": name,
        "nominalQuota": quota.nominal,
        "borrowingLimit": quota.borrowing_limit,
        "lendingLimit": quota.lending_limit,
    }


def _groups_of_quotas(quotas: Mapping[FlavorResource, ResourceQuota]) -> list[ResourceGroup]:
    """Return groups for quotas that were declared without any, one for each set of resources."""
    by_flavor: dict[str, list[str]] = {}
    for pair in quotas:
        by_flavor.setdefault(pair.flavor, []).append(pair.resource)
    by_resources: dict[tuple[str, ...], list[str]] = {}
    for flavor, resources in by_flavor.items():
        by_resources.setdefault(tuple(sorted(resources)), []).append(flavor)
    return [
        ResourceGroup(resources, tuple(sorted(flavors)))
        for resources, flavors in sorted(by_resources.items())
    ]
