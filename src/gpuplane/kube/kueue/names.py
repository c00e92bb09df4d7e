"""Names of Kueue's API: groups, versions, kinds, labels and the words of its conditions."""

from enum import StrEnum
from types import MappingProxyType

from gpuplane.core.workloads import PRIORITY_VALUES, Priority

GROUP = "kueue.x-k8s.io"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
MULTIKUEUE_CONTROLLER = "kueue.x-k8s.io/multikueue"
HOLD_CONTROLLER = "gpuplane.io/hold"
"""Whom Kueue waits for where budget, window or suspension hold an admitted workload back."""
HOLD_CHECK = "gpuplane-hold"
"""The AdmissionCheck of that controller."""

UNCOUNTED_FLAVOR = "gpuplane-uncounted"
"""Of what a queue does not declare: a quota on GPUs alone is common and every pod asks for CPU."""
JOB_TYPES_NOTE = "gpuplane.io/job-types"
HIGHEST_PRIORITY_NOTE = "gpuplane.io/highest-priority"
MANAGED_LABEL = "app.kubernetes.io/managed-by"
MANAGED_VALUE = "gpuplane"
TENANT_LABEL = "gpuplane.io/tenant"


class ApiVersion(StrEnum):
    """The versions of Kueue's API that are spoken here, newest first."""

    V1BETA2 = "v1beta2"
    V1BETA1 = "v1beta1"

    @property
    def group_version(self) -> str:
        """Return it as `apiVersion` of an object."""
        return f"{GROUP}/{self.value}"


def choose_version(preferred: str, served: tuple[str, ...]) -> ApiVersion | None:
    """Return the version to speak: the newest known one that is served; None when none is.

    The server's preference does not matter: every served version shows the same objects, and the
    newest known one says the most.
    """
    known = {preferred, *served}
    return next((version for version in ApiVersion if version.value in known), None)


PRIORITY_CLASSES = MappingProxyType(
    {priority: f"gpuplane-{str(priority).lower()}" for priority in Priority}
)
"""The WorkloadPriorityClass of each class of ours, by a name that a person recognises."""

PRIORITY_CLASS_VALUES = MappingProxyType(
    {PRIORITY_CLASSES[priority]: PRIORITY_VALUES[priority] for priority in Priority}
)
"""Values 1000, 100, 10, 1 and 0 for SPOT (unified platform, 5.1)."""


class WorkloadCondition(StrEnum):
    """The condition types of a Workload that are read here."""

    QUOTA_RESERVED = "QuotaReserved"
    ADMITTED = "Admitted"
    PODS_READY = "PodsReady"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    REQUEUED = "Requeued"
    FINISHED = "Finished"
