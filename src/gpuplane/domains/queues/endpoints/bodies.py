"""From declared and seen queues to API bodies."""

from collections.abc import Mapping
from typing import Any

from gpuplane.core.ids import TenantId
from gpuplane.core.quota.nesting import nest_groups
from gpuplane.core.quota.specs import (
    ClusterQueueSpec,
    CohortSpec,
    PreemptionPolicy,
    ResourceGroup,
    ResourceQuota,
)
from gpuplane.core.workloads import PRIORITY_VALUES
from gpuplane.domains.queues.schemas import (
    CohortOut,
    ConflictOut,
    FieldOwnerOut,
    QueueOut,
    QueueStateOut,
    QuotaOut,
    UsedOut,
)
from gpuplane.domains.queues.service import (
    Declared,
    DeclaredQueues,
    Door,
    Seen,
    Shown,
    Standing,
    find_standing,
    quantity_text,
    show_cluster_queues,
    show_cohorts,
    show_door,
)


def quota_body(shown: Shown[ClusterQueueSpec], *, is_default: bool = False) -> QuotaOut:
    """Return a ClusterQueue as the API shows it."""
    declared, seen = shown.declared, shown.seen
    spec = declared.spec
    fungibility = spec.flavor_fungibility
    preference = fungibility.preference
    return QuotaOut.model_construct(
        name=spec.name,
        cohort=spec.cohort,
        resource_groups=nest_groups(spec.resource_groups, spec.quotas, _quota_texts),
        queueing_strategy=str(spec.queueing_strategy),
        fair_sharing={"weight": spec.fair_weight_milli / 1000},
        preemption=_preemption_body(spec.preemption),
        flavor_fungibility={
            "whenCanBorrow": str(fungibility.when_can_borrow),
            "whenCanPreempt": str(fungibility.when_can_preempt),
            "preference": None if preference is None else str(preference),
        },
        covers_everything=spec.covers_everything,
        highest_priority=_class_of(spec.highest_priority),
        is_default=is_default,
        is_declared=shown.is_declared,
        standing=str(shown.standing),
        warnings=list(shown.warnings),
        cluster=None if seen is None else _state(seen.state),
        on_cluster=None if shown.on_cluster is None else _on_cluster(shown.on_cluster),
        conflict=conflict_body(seen),
        notes=[] if seen is None else list(seen.notes),
        resource_version=declared.version,
        created_at=None if is_default else declared.created_at,
        updated_at=None if is_default else declared.updated_at,
    )


def _preemption_body(policy: PreemptionPolicy) -> dict[str, Any]:
    return {
        "withinClusterQueue": str(policy.within_cluster_queue),
        "reclaimWithinCohort": str(policy.reclaim_within_cohort),
        "borrowWithinCohort": {
            "policy": str(policy.borrow_within_cohort),
            "maxPriorityThreshold": policy.max_priority_threshold,
        },
    }


def _on_cluster(spec: ClusterQueueSpec) -> dict[str, Any]:
    return {
        "cohort": spec.cohort,
        "resourceGroups": nest_groups(spec.resource_groups, spec.quotas, _quota_texts),
        "queueingStrategy": str(spec.queueing_strategy),
        "fairSharing": {"weight": spec.fair_weight_milli / 1000},
        "preemption": _preemption_body(spec.preemption),
    }


def cohort_body(name: str, found: DeclaredQueues) -> CohortOut:
    """Return a Cohort as the API shows it, one that is merely named among them."""
    shown = next((each for each in show_cohorts(found) if each.declared.name == name), None)
    declared = None if shown is None else shown.declared
    seen = None if shown is None else shown.seen
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
        resource_groups=nest_groups(groups, spec.quotas, _quota_texts),
        fair_sharing={"weight": spec.fair_weight_milli / 1000},
        members=[
            each.declared.name
            for each in show_cluster_queues(found)
            if each.declared.spec.cohort == name
        ],
        is_declared=shown is not None and shown.is_declared,
        standing=str(Standing.DECLARED if shown is None else shown.standing),
        conflict=conflict_body(seen),
        notes=[] if seen is None else list(seen.notes),
        resource_version=None if declared is None else declared.version,
    )


def queue_body(declared: Declared[Door], found: DeclaredQueues) -> QueueOut:
    """Return a declared LocalQueue as the API shows it."""
    door = declared.spec
    tenant = found.tenants.get(door.tenant_id, "")
    seen, standing = show_door(found, declared)
    return QueueOut.model_construct(
        name=declared.name,
        tenant=tenant,
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
        is_declared=True,
        standing=str(standing),
        namespace=None if seen is None else seen.namespace,
        cluster=None if seen is None else _state(seen.state),
        conflict=conflict_body(seen),
        resource_version=declared.version,
        created_at=declared.created_at,
        updated_at=declared.updated_at,
    )


def seen_queue_body(seen: Seen) -> QueueOut:
    """Return a LocalQueue that somebody else made on the cluster."""
    return QueueOut.model_construct(
        name=seen.name,
        tenant=seen.spec.get("tenant", ""),
        tenant_id="",
        cluster_queue=seen.spec.get("clusterQueue", ""),
        job_types=list(seen.spec.get("jobTypes", ())),
        limits=[],
        highest_priority=None,
        is_declared=False,
        standing=str(find_standing(seen, is_declared=False, is_same=False, admits_itself=True)),
        namespace=seen.namespace,
        cluster=_state(seen.state),
        conflict=None,
        resource_version=0,
        created_at=None,
        updated_at=None,
    )


def _state(state: Mapping[str, Any]) -> QueueStateOut | None:
    if not state:
        return None
    return QueueStateOut.model_construct(
        active=state["active"],
        reason=state["reason"],
        message=state["message"],
        pending=state["pending"],
        reserving=state["reserving"],
        admitted=state["admitted"],
        weighted_share=state["weightedShare"],
        used=[
            UsedOut.model_construct(
                flavor=each["flavor"],
                resource=each["resource"],
                total=each["totalText"],
                borrowed=each["borrowedText"],
            )
            for each in state["used"]
        ],
    )


def conflict_body(seen: Seen | None) -> ConflictOut | None:
    """Return why what is declared was not written, as it is shown."""
    if seen is None or seen.conflict is None:
        return None
    told = seen.conflict
    return ConflictOut.model_construct(
        reason=told.reason,
        message=told.message,
        owners=[
            FieldOwnerOut.model_construct(field=name, manager=manager)
            for name, manager in told.owners
        ],
    )


def _class_of(value: int | None) -> str | None:
    return next((str(each) for each, own in PRIORITY_VALUES.items() if own == value), None)


def _quota_texts(resource: str, quota: ResourceQuota) -> dict[str, str | None]:
    borrowing, lending = quota.borrowing_limit, quota.lending_limit
    return {
        "name": resource,
        "nominalQuota": quantity_text(resource, quota.nominal),
        "borrowingLimit": None if borrowing is None else quantity_text(resource, borrowing),
        "lendingLimit": None if lending is None else quantity_text(resource, lending),
    }


def named(found: DeclaredQueues, name: str) -> Shown[ClusterQueueSpec]:
    """Return the ClusterQueue of a name."""
    return next(each for each in show_cluster_queues(found) if each.declared.name == name)


def own(found: DeclaredQueues, name: str, tenant_id: TenantId) -> Declared[Door]:
    """Return a tenant's LocalQueue of a name."""
    return next(
        each
        for each in found.local_queues
        if each.name == name and each.spec.tenant_id == tenant_id
    )
