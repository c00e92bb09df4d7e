"""Workloads of a cluster as they stand, and which attempt of ours each belongs to."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gpuplane.core.ids import AttemptId
from gpuplane.kube.kueue.names import HOLD_CHECK, WorkloadCondition
from gpuplane.kube.kueue.states import WorkloadState, read_workload

ATTEMPT_LABEL = "gpuplane.io/attempt-id"
_PREEMPTOR = re.compile(r"JobUID: ([0-9a-f-]{36})")
"""How Kueue names the job that others made room for (pkg/scheduler/preemption, v0.15)."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A Workload, what of it is written back, and our attempt.

    Args:
        version: Its resourceVersion: what is written back names it.
        checks: The states of its AdmissionChecks as Kueue has them.
        attempt_id: The attempt it was made for, None where it is somebody else's.
    """

    state: WorkloadState
    version: str
    checks: tuple[Mapping[str, Any], ...]
    attempt_id: AttemptId | None

    @property
    def hold(self) -> Mapping[str, Any] | None:
        """Return the state of our AdmissionCheck, None where it has none."""
        return next((each for each in self.checks if each.get("name") == HOLD_CHECK), None)

    @property
    def is_evicted(self) -> bool:
        """Return whether its cluster took back what it had admitted."""
        return self.state.find(WorkloadCondition.EVICTED) is not None

    @property
    def preemptor_uid(self) -> str:
        """Return the uid of the job object that it made room for, empty where none is named."""
        for kind in (WorkloadCondition.PREEMPTED, WorkloadCondition.EVICTED):
            told = self.state.find(kind)
            match = None if told is None else _PREEMPTOR.search(told.message)
            if match is not None:
                return match[1]
        return ""


def follow(found: Mapping[str, Any]) -> Followed:
    """Return what is kept of a Workload."""
    return Followed(
        read_workload(found),
        found["metadata"].get("resourceVersion", ""),
        tuple((found.get("status") or {}).get("admissionChecks") or ()),
        attempt_of(found),
    )


def attempt_of(found: Mapping[str, Any]) -> AttemptId | None:
    """Return the attempt that the pods of a Workload are labelled with, None without one."""
    for pod_set in (found.get("spec") or {}).get("podSets") or ():
        labels = ((pod_set.get("template") or {}).get("metadata") or {}).get("labels") or {}
        try:
            return AttemptId(UUID(labels[ATTEMPT_LABEL]))
        except (KeyError, ValueError):
            continue
    return None
