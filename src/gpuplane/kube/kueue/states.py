"""What Kueue says of its queues and workloads: usage, pending work, conditions.

Owns the reading of statuses of every served version into values. Never writes and never decides.

Source: kubernetes-sigs/kueue v0.15.0, apis/kueue/v1beta2/{clusterqueue,workload}_types.go.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpuplane.core.quota.quantities import amount_of
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.kube.kueue.names import HOLD_CHECK, UNCOUNTED_FLAVOR, WorkloadCondition
from gpuplane.kube.kueue.queues import find_uncounted

MAX_DOMAINS = 8
"""Domains of a layout that a sentence names; the others are counted."""
_PREEMPTOR = re.compile(r"JobUID: ([0-9a-f-]{36})")


@dataclass(frozen=True, slots=True)
class Told:
    """One condition as Kueue tells it; `at` is its last transition, ms since the epoch."""

    true: bool
    reason: str
    message: str
    at: int | None


@dataclass(frozen=True, slots=True)
class Used:
    """What is used of a flavor-resource in the core's unit, and how much of that is borrowed."""

    total: int
    borrowed: int = 0


@dataclass(frozen=True, slots=True)
class QueueState:
    """Where a ClusterQueue or LocalQueue stands by its own status."""

    name: str
    namespace: str = ""
    active: bool = False
    reason: str = ""
    message: str = ""
    pending: int = 0
    reserving: int = 0
    admitted: int = 0
    used: Mapping[FlavorResource, Used] = field(default_factory=dict)
    weighted_share: int | None = None


@dataclass(frozen=True, slots=True)
class CheckState:
    """Where one AdmissionCheck of a Workload stands."""

    name: str
    state: str
    message: str


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """Where a Workload stands.

    Args:
        owners: (kind, name, uid) of what it was made for.
        job_uid: The uid of the job object, as Kueue labels it; empty where there is none.
        usage: What its admission counts, in the core's unit.
        cluster_name: The worker it runs on, where MultiKueue dispatched it.
        nominated: The workers that are asked whether they have room for it.
        layout: (domain, pods) by which a Topology's flavor laid it out; a domain is a value of
            each level that Kueue tells, often of the host alone.
    """

    name: str
    namespace: str
    uid: str
    queue: str
    priority: int
    active: bool
    created_at: int | None
    owners: tuple[tuple[str, str, str], ...] = ()
    job_uid: str = ""
    conditions: Mapping[str, Told] = field(default_factory=dict)
    cluster_queue: str = ""
    usage: Mapping[FlavorResource, int] = field(default_factory=dict)
    checks: tuple[CheckState, ...] = ()
    cluster_name: str = ""
    nominated: tuple[str, ...] = ()
    layout: tuple[tuple[str, int], ...] = ()

    def find(self, kind: WorkloadCondition) -> Told | None:
        """Return a condition that is true, or None."""
        told = self.conditions.get(str(kind))
        return told if told is not None and told.true else None

    @property
    def admitted_at(self) -> int | None:
        """Return since when it is admitted, None while it is not."""
        told = self.find(WorkloadCondition.ADMITTED)
        return None if told is None else told.at

    @property
    def waits_for_hold(self) -> bool:
        """Return whether it has its quota and waits for our AdmissionCheck."""
        return self.find(WorkloadCondition.QUOTA_RESERVED) is not None and any(
            check.name == HOLD_CHECK and check.state == "Pending" for check in self.checks
        )

    def explain(self) -> tuple[str, str]:
        """Return (reason, message) of why it waits or what became of it, in Kueue's own words."""
        for kind in (WorkloadCondition.FINISHED, WorkloadCondition.ADMITTED):
            told = self.find(kind)
            if told is not None:
                return told.reason or str(kind), self._laid_out(told.message)
        waiting = [check for check in self.checks if check.state != "Ready" and check.message]
        if self.find(WorkloadCondition.QUOTA_RESERVED) is not None and waiting:
            return f"AdmissionCheck{waiting[0].state}", waiting[0].message
        for kind in (WorkloadCondition.QUOTA_RESERVED, WorkloadCondition.EVICTED):
            refused = self.conditions.get(str(kind))
            if refused is not None and refused.message:
                return refused.reason or str(kind), refused.message
        return "Pending", "Kueue has not looked at it yet."

    def _laid_out(self, message: str) -> str:
        """Return a message with where Kueue put its pods, where it did not leave that to others."""
        if not self.layout:
            return message
        shown = [f"{domain} ({count})" for domain, count in self.layout[:MAX_DOMAINS]]
        more = len(self.layout) - len(shown)
        where = ", ".join(shown) + (f" and {more} more" if more else "")
        return f"{message.rstrip('.')}. Laid out on {where}."


def read_queue_state(found: Mapping[str, Any]) -> QueueState:
    """Return what a ClusterQueue or LocalQueue of any served version says of itself."""
    status = found.get("status") or {}
    active = read_conditions(status.get("conditions")).get("Active")
    fair = status.get("fairSharing") or {}
    used = status.get("flavorsUsage") or status.get("flavorUsage") or ()
    unsaid = find_uncounted((found.get("spec") or {}).get("resourceGroups") or ())
    return QueueState(
        name=found["metadata"]["name"],
        namespace=found["metadata"].get("namespace", ""),
        active=active is not None and active.true,
        reason="" if active is None else active.reason,
        message="" if active is None else active.message,
        pending=status.get("pendingWorkloads") or 0,
        reserving=status.get("reservingWorkloads") or 0,
        admitted=status.get("admittedWorkloads") or 0,
        used={
            FlavorResource(flavor["name"], each["name"]): Used(
                amount_of(each["name"], each.get("total", 0)).units,
                amount_of(each["name"], each.get("borrowed", 0)).units,
            )
            for flavor in used
            if flavor["name"] != UNCOUNTED_FLAVOR
            for each in flavor.get("resources") or ()
            if FlavorResource(flavor["name"], each["name"]) not in unsaid
        },
        weighted_share=fair.get("weightedShare"),
    )


def read_workload(found: Mapping[str, Any]) -> WorkloadState:
    """Return what a Workload of any served version says of itself."""
    metadata, spec = found["metadata"], found.get("spec") or {}
    status = found.get("status") or {}
    admission = status.get("admission") or {}
    return WorkloadState(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        uid=metadata.get("uid", ""),
        queue=spec.get("queueName") or "",
        priority=spec.get("priority") or 0,
        active=spec.get("active") is not False,
        created_at=instant_of(metadata.get("creationTimestamp")),
        owners=tuple(
            (each.get("kind", ""), each.get("name", ""), each.get("uid", ""))
            for each in metadata.get("ownerReferences") or ()
        ),
        job_uid=(metadata.get("labels") or {}).get("kueue.x-k8s.io/job-uid", ""),
        conditions=read_conditions(status.get("conditions")),
        cluster_queue=admission.get("clusterQueue") or "",
        usage=_read_usage(admission.get("podSetAssignments") or ()),
        checks=tuple(
            CheckState(each.get("name", ""), each.get("state", ""), each.get("message", ""))
            for each in status.get("admissionChecks") or ()
        ),
        cluster_name=status.get("clusterName") or "",
        nominated=tuple(status.get("nominatedClusterNames") or ()),
        layout=tuple(
            domain
            for each in admission.get("podSetAssignments") or ()
            for domain in _read_layout(each.get("topologyAssignment") or {})
        ),
    )


def read_conditions(found: Iterable[Mapping[str, Any]] | None) -> dict[str, Told]:
    """Return conditions by type."""
    return {
        each["type"]: Told(
            each.get("status") == "True",
            each.get("reason") or "",
            each.get("message") or "",
            instant_of(each.get("lastTransitionTime")),
        )
        for each in found or ()
    }


def find_preemptor(message: str) -> str:
    """Return the uid of the job object for which Kueue took something back, empty without one.

    Source: kubernetes-sigs/kueue v0.15.0, pkg/scheduler/preemption (`JobUID: …` of its message).
    """
    match = _PREEMPTOR.search(message)
    return "" if match is None else match[1]


def instant_of(text: object) -> int | None:
    """Return an instant of Kubernetes (RFC 3339) in ms since the epoch, None without one."""
    if not isinstance(text, str) or not text:
        return None
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def _read_usage(assignments: Iterable[Mapping[str, Any]]) -> dict[FlavorResource, int]:
    usage: dict[FlavorResource, int] = {}
    for each in assignments:
        amounts = each.get("resourceUsage") or {}
        for resource, flavor in (each.get("flavors") or {}).items():
            if flavor == UNCOUNTED_FLAVOR:
                continue
            pair = FlavorResource(flavor, resource)
            told = amount_of(resource, amounts.get(resource, 0)).units
            usage[pair] = usage.get(pair, 0) + told
    return usage


def _read_layout(assignment: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield (domain, pods) of a topology assignment of any served version.

    Source:
        kubernetes-sigs/kueue v0.15.0, apis/kueue/{v1beta1,v1beta2}/workload_types.go: since
        v1beta2 domains come in slices, a value being that of all of them or of each one.
    """
    for each in assignment.get("domains") or ():
        yield "/".join(each.get("values") or ()), each.get("count") or 0
    for piece in assignment.get("slices") or ():
        size = piece.get("domainCount") or 0
        columns = [_values(level, size) for level in piece.get("valuesPerLevel") or ()]
        counts = piece.get("podCounts") or {}
        pods = counts.get("individual") or [counts.get("universal") or 0] * size
        for values, count in zip(zip(*columns, strict=False), pods, strict=False):
            yield "/".join(values), count


def _values(level: Mapping[str, Any], size: int) -> list[str]:
    told = level.get("individual")
    if told is None:
        return [level.get("universal") or ""] * size
    head, tail = told.get("prefix") or "", told.get("suffix") or ""
    return [f"{head}{root}{tail}" for root in told.get("roots") or ()]
