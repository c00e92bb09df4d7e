"""ClusterQueues, Cohorts and LocalQueues: our declarations as Kueue's objects, and back.

Owns the translation for both served versions. What Kueue has no field for travels in annotations
under our name; what it cannot hold at all is refused by a sentence. Never talks to a cluster.

Source: kubernetes-sigs/kueue v0.15.0, apis/kueue/v1beta1 and apis/kueue/v1beta2.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuplane.core.quota.nesting import nest_groups
from gpuplane.core.quota.quantities import amount_of, quantity_text
from gpuplane.core.quota.specs import (
    DEFAULT_FAIR_WEIGHT_MILLI,
    BorrowWithinCohortPolicy,
    ClusterQueueSpec,
    CohortSpec,
    FlavorFungibility,
    FlavorFungibilityPolicy,
    FlavorPreference,
    FlavorResource,
    LocalQueueSpec,
    PreemptionPolicy,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
)
from gpuplane.kube.kueue.multikueue import CHECK
from gpuplane.kube.kueue.names import (
    HIGHEST_PRIORITY_NOTE,
    HOLD_CHECK,
    JOB_TYPES_NOTE,
    MANAGED_LABEL,
    MANAGED_VALUE,
    TENANT_LABEL,
    UNCOUNTED_FLAVOR,
    ApiVersion,
)

Object = dict[str, Any]
Quotas = Mapping[FlavorResource, ResourceQuota]

_OLD_FUNGIBILITY = {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}
"""What v1beta1 calls `MayStopSearch`, by field; every Kueue that serves v1beta1 takes these."""
_UNCOUNTED = {"cpu": "1000000", "memory": "1Pi", "ephemeral-storage": "1Pi"}
"""Kueue admits nothing that asks for a resource its queue does not cover; embedded admission
counts these only where they are declared. More than any tenant can use, and no sum overflows."""
_WRITTEN = {"cpu": ("1000000", "1M"), "memory": ("1Pi",), "ephemeral-storage": ("1Pi",)}
"""The same as the API server may write it."""
_COHORT_FIELD = {ApiVersion.V1BETA1: "cohort", ApiVersion.V1BETA2: "cohortName"}


@dataclass(frozen=True, slots=True)
class Reading:
    """An object read from a cluster, and in sentences what of it our document cannot say."""

    spec: ClusterQueueSpec | CohortSpec
    notes: tuple[str, ...] = ()


# -- what Kueue cannot hold ----------------------------------------------------------------------


def find_untold(spec: ClusterQueueSpec) -> str | None:
    """Return why Kueue cannot hold a ClusterQueue of ours, or None."""
    if spec.covers_everything:
        return (
            "Kueue has no queue that covers everything: name the resources and flavors, with a "
            "nominal quota for each."
        )
    return None


def find_untold_door(spec: LocalQueueSpec) -> str | None:
    """Return why Kueue cannot hold a LocalQueue of ours, or None."""
    if spec.limits:
        return (
            "Kueue has no limits on a LocalQueue: give the tenant a ClusterQueue of its own in "
            "the cohort, with the limit as its nominal quota."
        )
    return None


# -- to Kueue ------------------------------------------------------------------------------------


def cluster_queue_object(
    spec: ClusterQueueSpec,
    version: ApiVersion,
    checks: Sequence[str] = (),
    laid_out: Collection[str] = (),
) -> Object:
    """Return a ClusterQueue as Kueue has it.

    Args:
        spec: What was declared.
        version: The API version to write.
        checks: Names of the AdmissionChecks that a workload must pass besides its quota.
        laid_out: Flavors that have a Topology.

    Raises:
        ValueError: If Kueue cannot hold it (`find_untold` says why).
    """
    untold = find_untold(spec)
    if untold is not None:
        raise ValueError(untold)
    policy = spec.preemption
    preemption: Object = {
        "withinClusterQueue": str(policy.within_cluster_queue),
        "reclaimWithinCohort": str(policy.reclaim_within_cohort),
        "borrowWithinCohort": {"policy": str(policy.borrow_within_cohort)},
    }
    if policy.max_priority_threshold is not None:
        preemption["borrowWithinCohort"]["maxPriorityThreshold"] = policy.max_priority_threshold
    body: Object = {
        "resourceGroups": _groups_object(spec, laid_out),
        "namespaceSelector": {},
        "queueingStrategy": str(spec.queueing_strategy),
        "preemption": preemption,
        "flavorFungibility": _fungibility_object(spec.flavor_fungibility, version),
        "fairSharing": {"weight": _weight_text(spec.fair_weight_milli)},
    }
    if spec.cohort is not None:
        body[_COHORT_FIELD[version]] = spec.cohort
    if checks:
        body["admissionChecksStrategy"] = {
            "admissionChecks": [{"name": name} for name in sorted(checks)]
        }
    notes = {}
    if spec.highest_priority is not None:
        notes[HIGHEST_PRIORITY_NOTE] = str(spec.highest_priority)
    return _object(version, "ClusterQueue", spec.name, body, notes=notes)


def cohort_object(spec: CohortSpec, version: ApiVersion) -> Object:
    """Return a Cohort as Kueue has it; a pair without a quota in one of its groups owns nothing."""
    groups = groups_of_quotas(spec.quotas)
    full = {
        FlavorResource(flavor, name): spec.quotas.get(
            FlavorResource(flavor, name), ResourceQuota(0)
        )
        for group in groups
        for flavor in group.flavors
        for name in group.covered_resources
    }
    body: Object = {
        "resourceGroups": nest_groups(groups, full, _quota_object),
        "fairSharing": {"weight": _weight_text(spec.fair_weight_milli)},
    }
    if spec.parent is not None:
        body["parentName"] = spec.parent
    return _object(version, "Cohort", spec.name, body)


def local_queue_object(
    spec: LocalQueueSpec, namespace: str, version: ApiVersion, name: str | None = None
) -> Object:
    """Return a tenant's LocalQueue as Kueue has it, in the namespace of the tenant.

    Raises:
        ValueError: If Kueue cannot hold it (`find_untold_door` says why).
    """
    untold = find_untold_door(spec)
    if untold is not None:
        raise ValueError(untold)
    notes = {}
    if spec.job_types:
        notes[JOB_TYPES_NOTE] = json.dumps(sorted(spec.job_types))
    if spec.highest_priority is not None:
        notes[HIGHEST_PRIORITY_NOTE] = str(spec.highest_priority)
    made = _object(
        version,
        "LocalQueue",
        name or spec.name,
        {"clusterQueue": spec.cluster_queue},
        notes=notes,
        namespace=namespace,
    )
    made["metadata"]["labels"][TENANT_LABEL] = spec.tenant
    return made


def groups_of_quotas(quotas: Quotas) -> list[ResourceGroup]:
    """Return the groups of quotas that were declared without any.

    Kueue has each resource and each flavor in one group: whatever shares either goes together.
    """
    groups: list[tuple[set[str], set[str]]] = []
    for pair in sorted(quotas):
        resources, flavors = {pair.resource}, {pair.flavor}
        apart = []
        for known in groups:
            if known[0] & resources or known[1] & flavors:
                resources |= known[0]
                flavors |= known[1]
            else:
                apart.append(known)
        groups = [*apart, (resources, flavors)]
    return [
        ResourceGroup(tuple(sorted(resources)), tuple(sorted(flavors)))
        for resources, flavors in sorted(groups, key=lambda each: sorted(each[0]))
    ]


# -- from Kueue ----------------------------------------------------------------------------------


def read_cluster_queue(found: Mapping[str, Any]) -> Reading:
    """Return what a ClusterQueue of any served version says in our words.

    Raises:
        ValueError: If a quantity or a policy in it is none that is known.
    """
    body = found.get("spec") or {}
    notes: list[str] = []
    groups, quotas = _read_groups(body.get("resourceGroups") or (), notes)
    policy = body.get("preemption") or {}
    borrow = policy.get("borrowWithinCohort") or {}
    fungibility = body.get("flavorFungibility") or {}
    preference = fungibility.get("preference")
    _note_more(body, notes)
    spec = ClusterQueueSpec(
        name=found["metadata"]["name"],
        cohort=body.get("cohortName") or body.get("cohort") or None,
        resource_groups=groups,
        quotas=quotas,
        queueing_strategy=QueueingStrategy(body.get("queueingStrategy") or "BestEffortFIFO"),
        fair_weight_milli=_read_weight(body),
        preemption=PreemptionPolicy(
            WithinClusterQueue(policy.get("withinClusterQueue") or "Never"),
            ReclaimWithinCohort(policy.get("reclaimWithinCohort") or "Never"),
            BorrowWithinCohortPolicy(borrow.get("policy") or "Never"),
            borrow.get("maxPriorityThreshold"),
        ),
        flavor_fungibility=FlavorFungibility(
            FlavorFungibilityPolicy(fungibility.get("whenCanBorrow") or "MayStopSearch"),
            FlavorFungibilityPolicy(fungibility.get("whenCanPreempt") or "TryNextFlavor"),
            None if preference is None else FlavorPreference(preference),
        ),
        highest_priority=_read_highest(found),
    )
    return Reading(spec, tuple(notes))


def read_cohort(found: Mapping[str, Any]) -> Reading:
    """Return what a Cohort of any served version says in our words.

    Raises:
        ValueError: If a quantity in it is none.
    """
    body = found.get("spec") or {}
    notes: list[str] = []
    _, quotas = _read_groups(body.get("resourceGroups") or (), notes)
    owned = {pair: quota for pair, quota in quotas.items() if quota != ResourceQuota(0)}
    spec = CohortSpec(
        found["metadata"]["name"], body.get("parentName") or None, owned, _read_weight(body)
    )
    return Reading(spec, tuple(notes))


def read_local_queue(found: Mapping[str, Any]) -> LocalQueueSpec:
    """Return what a LocalQueue says in our words; its tenant is empty where nobody named it."""
    metadata = found["metadata"]
    notes = metadata.get("annotations") or {}
    try:
        types = json.loads(notes.get(JOB_TYPES_NOTE, "[]"))
    except ValueError:
        types = []
    return LocalQueueSpec(
        name=metadata["name"],
        tenant=(metadata.get("labels") or {}).get(TENANT_LABEL, ""),
        cluster_queue=(found.get("spec") or {}).get("clusterQueue") or "",
        job_types=frozenset(str(each) for each in types)
        if isinstance(types, list)
        else frozenset(),
        highest_priority=_read_highest(found),
    )


# -- parts ---------------------------------------------------------------------------------------


def _object(
    version: ApiVersion,
    kind: str,
    name: str,
    spec: Object,
    *,
    notes: Mapping[str, str] | None = None,
    namespace: str | None = None,
) -> Object:
    metadata: Object = {"name": name, "labels": {MANAGED_LABEL: MANAGED_VALUE}}
    if namespace is not None:
        metadata["namespace"] = namespace
    if notes:
        metadata["annotations"] = dict(notes)
    return {
        "apiVersion": version.group_version,
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }


def _fungibility_object(fungibility: FlavorFungibility, version: ApiVersion) -> Object:
    made: Object = {
        "whenCanBorrow": str(fungibility.when_can_borrow),
        "whenCanPreempt": str(fungibility.when_can_preempt),
    }
    if version is ApiVersion.V1BETA1:
        for field, old in _OLD_FUNGIBILITY.items():
            if made[field] == str(FlavorFungibilityPolicy.MAY_STOP_SEARCH):
                made[field] = old
    if fungibility.preference is not None:
        made["preference"] = str(fungibility.preference)
    return made


def _groups_object(spec: ClusterQueueSpec, laid_out: Collection[str]) -> list[Object]:
    """Return the groups of a queue, with what every pod asks for and the queue does not declare.

    Kueue lays a pod out only where all that it asks for comes from one flavor, and a queue with
    any other flavor takes nothing into those with a Topology that does not name a level. So what is
    not declared joins the group of such flavors, and has a flavor of its own everywhere else.

    Source:
        kubernetes-sigs/kueue v0.15.0, pkg/scheduler/flavorassigner/tas_flavorassigner.go.
    """
    groups = nest_groups(spec.resource_groups, spec.quotas, _quota_object)
    left = [name for name in _UNCOUNTED if spec.find_group(name) is None]
    if not left or not groups:
        return groups
    limits = {} if spec.cohort is None else {"borrowingLimit": "0", "lendingLimit": "0"}
    quotas = [{"name": name, "nominalQuota": _UNCOUNTED[name], **limits} for name in left]
    if len(groups) == 1 and any(each["name"] in laid_out for each in groups[0]["flavors"]):
        [group] = groups
        flavors = [
            {**each, "resources": [*each["resources"], *quotas]} for each in group["flavors"]
        ]
        return [{"coveredResources": [*group["coveredResources"], *left], "flavors": flavors}]
    flavors = [{"name": UNCOUNTED_FLAVOR, "resources": quotas}]
    return [*groups, {"coveredResources": left, "flavors": flavors}]


def find_uncounted(groups: Iterable[Mapping[str, Any]]) -> frozenset[FlavorResource]:
    """Return what of the groups of a ClusterQueue is no quota, but there for what is not declared.

    Args:
        groups: As Kueue has them.
    """
    return frozenset(
        FlavorResource(flavor["name"], quota["name"])
        for group in groups
        for flavor in group.get("flavors") or ()
        for quota in flavor.get("resources") or ()
        if quota["name"] in _UNCOUNTED
        and str(quota.get("nominalQuota", "")) in _WRITTEN[quota["name"]]
    )


def _quota_object(resource: str, quota: ResourceQuota) -> Object:
    made: Object = {"name": resource, "nominalQuota": quantity_text(resource, quota.nominal)}
    if quota.borrowing_limit is not None:
        made["borrowingLimit"] = quantity_text(resource, quota.borrowing_limit)
    if quota.lending_limit is not None:
        made["lendingLimit"] = quantity_text(resource, quota.lending_limit)
    return made


def _read_groups(
    found: Iterable[Mapping[str, Any]], notes: list[str]
) -> tuple[tuple[ResourceGroup, ...], dict[FlavorResource, ResourceQuota]]:
    groups: list[ResourceGroup] = []
    quotas: dict[FlavorResource, ResourceQuota] = {}
    for group in found:
        flavors = group.get("flavors") or ()
        if [each["name"] for each in flavors] == [UNCOUNTED_FLAVOR]:
            continue
        unsaid = find_uncounted([group])
        covered = tuple(
            name
            for name in group.get("coveredResources") or ()
            if not all(FlavorResource(each["name"], name) in unsaid for each in flavors)
        )
        if not covered:
            covered = tuple(group.get("coveredResources") or ())
        groups.append(ResourceGroup(covered, tuple(each["name"] for each in flavors)))
        for flavor in flavors:
            for quota in flavor.get("resources") or ():
                pair = FlavorResource(flavor["name"], quota["name"])
                if pair.resource not in covered:
                    continue
                quotas[pair] = ResourceQuota(
                    _read_amount(pair, quota.get("nominalQuota", 0), notes),
                    _read_limit(pair, quota.get("borrowingLimit"), notes),
                    _read_limit(pair, quota.get("lendingLimit"), notes),
                )
    return tuple(groups), quotas


def _read_limit(pair: FlavorResource, found: object, notes: list[str]) -> int | None:
    return None if found is None else _read_amount(pair, found, notes)


def _read_amount(pair: FlavorResource, found: object, notes: list[str]) -> int:
    amount = amount_of(pair.resource, found)
    if not amount.exact:
        notes.append(
            f"{found} of {pair.resource} in {pair.flavor} is shown rounded down to "
            f"{quantity_text(pair.resource, amount.units)}."
        )
    return amount.units


def _note_more(body: Mapping[str, Any], notes: list[str]) -> None:
    """Say what a ClusterQueue has that our document has no words for; nothing of it is touched."""
    strategy = (body.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    checks = [each["name"] for each in strategy] + list(body.get("admissionChecks") or ())
    others = sorted(set(checks) - {HOLD_CHECK, CHECK})
    if others:
        notes.append(f"Workloads must pass the AdmissionChecks {', '.join(others)}.")
    stop = body.get("stopPolicy") or "None"
    if stop != "None":
        notes.append(f"It is stopped (stopPolicy {stop}).")
    if body.get("namespaceSelector") not in ({}, None):
        notes.append("Only namespaces that its selector matches may use it.")
    if "namespaceSelector" in body and body["namespaceSelector"] is None:
        notes.append("No namespace may use it: it has no namespaceSelector.")
    if body.get("admissionScope"):
        notes.append("Admission fair sharing is on.")


def _read_highest(found: Mapping[str, Any]) -> int | None:
    told = (found["metadata"].get("annotations") or {}).get(HIGHEST_PRIORITY_NOTE, "")
    return int(told) if told.lstrip("-").isdigit() else None


def _read_weight(body: Mapping[str, Any]) -> int:
    weight = (body.get("fairSharing") or {}).get("weight")
    return DEFAULT_FAIR_WEIGHT_MILLI if weight is None else amount_of("cpu", weight).units


def _weight_text(weight_milli: int) -> str:
    return quantity_text("cpu", weight_milli)
