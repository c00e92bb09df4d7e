"""Workloads of a cluster as they stand, and which attempt of ours each belongs to."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from gpuplane.core.ids import AttemptId
from gpuplane.kube.kueue.names import HOLD_CHECK, WorkloadCondition
from gpuplane.kube.kueue.states import (
    Told,
    WorkloadState,
    find_preemptor,
    instant_of,
    read_workload,
)

AGE_MARK = "It was taken back before and stands in line since"
"""How the message of an Evicted condition begins that tells the age of what was never admitted."""
HOLD_MARK = "gpuplane holds it back:"
"""How the message of an Evicted condition begins that gives back the quota of what is held."""
BY_CHECK = "AdmissionCheck"
"""The reason of Kueue's Evicted condition whose instant is the age of what waits."""
ATTEMPT_LABEL = "gpuplane.io/attempt-id"
CLUSTER_LABEL = "gpuplane.io/cluster-id"
ATTEMPT_VARIABLE = "GPUPLANE_ATTEMPT_ID"
CLUSTER_VARIABLE = "GPUPLANE_CLUSTER_ID"
DISPATCHED_LABEL = "kueue.x-k8s.io/multikueue-origin"


@dataclass(frozen=True, slots=True)
class Followed:
    """A Workload, what of it is written back, and our attempt.

    Args:
        version: Its resourceVersion: what is written back names it.
        checks: The states of its AdmissionChecks as Kueue has them.
        attempt_id: The attempt it was made for, None where it is somebody else's.
        cluster_id: The cluster as whoever made it knows it; another control plane's has another.
    """

    state: WorkloadState
    version: str
    checks: tuple[Mapping[str, Any], ...]
    attempt_id: AttemptId | None
    cluster_id: str = ""
    is_dispatched: bool = False
    """Whether another cluster's Kueue made it here, and would make it again if it changed."""
    requeue_at: int | None = None
    """Before when Kueue does not try it again, ms since the epoch; None where nothing is said."""

    def is_foreign(self, ids: Collection[str]) -> bool:
        """Return whether another control plane made it: it is not touched.

        Args:
            ids: What the cluster is known by here, and was before a lost database was rebuilt.
        """
        return bool(self.cluster_id) and self.cluster_id not in ids

    @property
    def hold(self) -> Mapping[str, Any] | None:
        """Return the state of our AdmissionCheck, None where it has none."""
        return next((each for each in self.checks if each.get("name") == HOLD_CHECK), None)

    @property
    def eviction(self) -> Told | None:
        """Return what its cluster says of having taken back what it admitted, None for never."""
        told = self.state.conditions.get(str(WorkloadCondition.EVICTED))
        is_ours = told is not None and any(m in told.message for m in (AGE_MARK, HOLD_MARK))
        return None if is_ours else told

    @property
    def is_pod(self) -> bool:
        """Return whether it is of one pod of a service, which has as many as pods."""
        return any(kind == "Pod" for kind, _, _ in self.state.owners)

    @property
    def is_evicted(self) -> bool:
        """Return whether its cluster took back what it had admitted."""
        return self.eviction is not None and self.eviction.true

    @property
    def preemptor_uid(self) -> str:
        """Return the uid of the job object that it made room for, empty where none is named."""
        for kind in (WorkloadCondition.PREEMPTED, WorkloadCondition.EVICTED):
            told = self.state.find(kind)
            if told is not None and (uid := find_preemptor(told.message)):
                return uid
        return ""


def follow(found: Mapping[str, Any]) -> Followed:
    """Return what is kept of a Workload."""
    labels = _labels(found) or _variables(found)
    requeue = (found.get("status") or {}).get("requeueState") or {}
    return Followed(
        read_workload(found),
        found["metadata"].get("resourceVersion", ""),
        tuple((found.get("status") or {}).get("admissionChecks") or ()),
        _attempt_of(labels),
        labels.get(CLUSTER_LABEL, ""),
        DISPATCHED_LABEL in (found["metadata"].get("labels") or {}),
        instant_of(requeue.get("requeueAt")),
    )


def find_age(each: Followed) -> int | None:
    """Return the instant by which Kueue orders a Workload that waits, ms since the epoch."""
    evicted = each.state.find(WorkloadCondition.EVICTED)
    if evicted is not None and evicted.reason == BY_CHECK:
        return evicted.at
    return each.state.created_at


def instant_text(now: int) -> str:
    """Return an instant as Kubernetes writes it."""
    return datetime.fromtimestamp(now // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _labels(found: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of the pods of a Workload: those of its first pod set that has ours."""
    for pod_set in (found.get("spec") or {}).get("podSets") or ():
        labels = ((pod_set.get("template") or {}).get("metadata") or {}).get("labels") or {}
        if ATTEMPT_LABEL in labels:
            return dict(labels)
    return {}


def _variables(found: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the same of the Workload of a single pod, which has none of its labels (v0.15)."""
    for pod_set in (found.get("spec") or {}).get("podSets") or ():
        for container in ((pod_set.get("template") or {}).get("spec") or {}).get("containers", ()):
            told = {each["name"]: each.get("value", "") for each in container.get("env") or ()}
            if ATTEMPT_VARIABLE in told:
                return {
                    ATTEMPT_LABEL: told[ATTEMPT_VARIABLE],
                    CLUSTER_LABEL: told.get(CLUSTER_VARIABLE, ""),
                }
    return {}


def _attempt_of(labels: Mapping[str, str]) -> AttemptId | None:
    try:
        return AttemptId(UUID(labels[ATTEMPT_LABEL]))
    except (KeyError, ValueError):
        return None
