"""Labels, annotations and resources of Kubernetes objects that the extender reads or writes.

Owns the spelling and nothing else.
"""

GPU_IDS = "gpuplane.io/gpu-ids"
"""Annotation of a pod: its GPUs, by UUID where the node tells them, else by index, with commas.
A MIG instance is `GPU/PROFILE/START`."""
GANG = "gpuplane.io/gang"
"""Label of a pod: the gang that it belongs to, within its namespace."""
GANG_SIZE = "gpuplane.io/gang-size"
"""Annotation of a pod: how many pods of its gang must be placed at once."""
JOB_NAME = "batch.kubernetes.io/job-name"
JOB_INDEX = "batch.kubernetes.io/job-completion-index"
RANK = "gpuplane.io/rank"

LINKS = "gpuplane.io/links"
"""Annotation of a pod: none, nvlink, same_numa or same_pcie."""
LINKS_REQUIRED = "gpuplane.io/links-required"
"""Annotation of a pod: `true` refuses nodes without such links."""
GPU_MODEL = "gpuplane.io/gpu-model"
"""Annotation of a pod: a GPU model in any spelling, or a family such as A100."""
GPU_MEMORY = "gpuplane.io/gpu-memory-mib"
"""Annotation of a pod: least memory of each of its GPUs, in MiB."""

GPU_UUIDS = "gpuplane.io/gpu-uuids"
"""Annotation of a node: UUIDs of its GPUs by index, with commas."""
MIG_LAYOUT = "gpuplane.io/mig-layout"
"""Annotation of a node: `INDEX:PROFILE@START,…;INDEX:…`, its MIG instances."""
CLAIMS = "gpuplane.io/gpu-claims"
"""Annotation of a node: GPUs that were chosen for a pod and that its own annotation may not show
yet, `POD_UID=ID,ID@EXPIRES_MS;…`. Written under the node's resourceVersion, so two replicas never
give out one GPU twice."""
MAINTENANCE_AT = "gpuplane.io/maintenance-at"
"""Annotation of a node: when its next maintenance starts, RFC 3339."""

ACCELERATOR = "gpuplane.io/accelerator"
"""Label that nodes get in the fleet: the resource of their whole devices."""
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"

GPU_RESOURCES = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
)
"""Extended resources of whole devices."""
MIG_PREFIX = "nvidia.com/mig-"
"""Extended resources of MIG instances (strategy `mixed` of the device plug-in)."""
