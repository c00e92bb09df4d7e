"""The words of the two custom resources and of what the operator writes on other objects.

Owns names only. Those under `gpu.warp.dev` and `gpu-orchestrator` are the operator document's own,
so that its examples apply unchanged; ours are under `gpuplane.io`.
"""

from enum import StrEnum

GROUP = "gpu.warp.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
WORKLOAD_KIND = "GPUWorkload"
LAYOUT_GROUP = "gpuplane.io"
LAYOUT_API_VERSION = "gpuplane.io/v1alpha1"
LAYOUT_KIND = "MIGLayout"

FINALIZER = "gpu.warp.dev/finalizer"
WORKLOAD_LABEL = "gpu.warp.dev/workload"
CONTROLLER_LABEL = "gpu.warp.dev/controller"
CONTROLLER = "gpuplane-operator"
UID_LABEL = "gpu.warp.dev/workload-uid"
NODE_ANNOTATION = "gpu.warp.dev/assigned-node"
STRATEGY_ANNOTATION = "gpu.warp.dev/strategy"
PREEMPTIBLE_ANNOTATION = "gpu.warp.dev/preemptible"
"""`false` on a GPUWorkload keeps it from being preempted, whatever its priority."""

CHEAP_LABEL = "gpu-orchestrator/cheap-node"
MEMORY_LABEL = "nvidia.com/gpu.memory"
PRODUCT_LABEL = "nvidia.com/gpu.product"
HOST_LABEL = "kubernetes.io/hostname"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
TOPOLOGY_ANNOTATION = "gpuplane.io/topology"
GPU_IDS_ANNOTATION = "gpuplane.io/gpu-ids"

MIG_ORDERS_ANNOTATION = "gpuplane.io/mig-orders"
"""On a node, written by the operator: what each GPU is to become, step by step."""
MIG_STATE_ANNOTATION = "gpuplane.io/mig-state"
"""On a node, written by its agent: what each GPU carries, each instance with its state."""


class Vendor(StrEnum):
    """Who makes the GPUs that a workload asks for."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    GAUDI = "gaudi"


RESOURCES: dict[Vendor, tuple[str, ...]] = {
    Vendor.NVIDIA: ("nvidia.com/gpu",),
    Vendor.AMD: ("amd.com/gpu",),
    Vendor.INTEL: ("gpu.intel.com/xe", "gpu.intel.com/i915"),
    Vendor.GAUDI: ("habana.ai/gaudi",),
}
"""Extended resources of each vendor's device plugin, the one that is asked for first in front.

Sources: k8s-device-plugin (NVIDIA), ROCm/k8s-device-plugin, intel-device-plugins-for-kubernetes,
Habana's device plugin; each project's README."""

COUNT_LABELS: dict[Vendor, tuple[str, ...]] = {
    Vendor.NVIDIA: ("nvidia.com/gpu", "nvidia.com/gpu.count"),
    Vendor.AMD: ("amd.com/gpu", "amd.com/gpu.count"),
    Vendor.INTEL: ("gpu.intel.com/xe", "gpu.intel.com/i915", "gpu.intel.com/gpu-count"),
    Vendor.GAUDI: ("habana.ai/gaudi", "habana.ai/gaudi.count"),
}
"""Node labels that may carry a number of GPUs, read where a node reports no resource."""


class Strategy(StrEnum):
    """How a node is chosen; the first three are the operator document's, two are ours."""

    LEAST_LOADED = "leastLoaded"
    RANDOM = "random"
    COST_OPTIMIZED = "costOptimized"
    FRAGMENTATION = "fragmentation"
    TOPOLOGY = "topology"


class Priority(StrEnum):
    """The document's three words, in ascending order."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"

    @property
    def rank(self) -> int:
        """Return 0 for the lowest."""
        return list(Priority).index(self)


class Phase(StrEnum):
    """The document's phases of a workload."""

    PENDING = "Pending"
    SCHEDULING = "Scheduling"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


OVER = frozenset({Phase.SUCCEEDED, Phase.FAILED})
"""Phases that nothing follows."""
