"""The table from what a job asks for to the resource, the scheduler and the hints that give it.

Owns the names of extended resources. Which device a pod gets is decided on its node: by the
device plugin, by HAMi for shares, and by whoever reads the annotation with the chosen GPUs.

    asked                    resources of the container                    scheduler
    whole NVIDIA GPUs        nvidia.com/gpu                                default
    MIG profile 1g.10gb      nvidia.com/mig-1g.10gb                        default
    a share of one GPU       nvidia.com/gpu, gpucores, gpumem(-percentage) HAMi's
    Gaudi                    habana.ai/gaudi                               default
    AMD                      amd.com/gpu                                   default
    Intel                    gpu.intel.com/i915, or /xe where nodes say so default

Source: the device plugins' own documents (NVIDIA k8s-device-plugin with MIG strategy `mixed`,
HAMi "resource names" and "use-gpuuuid", Habana, AMD and Intel device plugins).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuplane.backends.interface import BackendError
from gpuplane.backends.kubernetes.names import GPU_IDS, HAMI_GPUS
from gpuplane.core.mig.profiles import resource_of_profile
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import ResourceRequest

WHOLE = 1000

NVIDIA = "nvidia.com/gpu"
NVIDIA_CORES = "nvidia.com/gpucores"
NVIDIA_MEMORY = "nvidia.com/gpumem"
NVIDIA_MEMORY_SHARE = "nvidia.com/gpumem-percentage"
GAUDI = "habana.ai/gaudi"
AMD = "amd.com/gpu"
INTEL = "gpu.intel.com/i915"
INTEL_XE = "gpu.intel.com/xe"

GPU_RESOURCES = (NVIDIA, GAUDI, AMD, INTEL, INTEL_XE)
"""Whole devices, in the order in which a node is asked for them."""

_BY_VENDOR = (("intel-gaudi", GAUDI), ("habana", GAUDI), ("amd-", AMD), ("intel-", INTEL))


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """What a container's devices come to.

    Args:
        resources: Extended resources, equal in requests and limits as Kubernetes wants them.
        shares: Whether a device is shared, so that the sharing scheduler must place the pod.
        annotations: Hints for the device layer on the node.
    """

    resources: dict[str, int] = field(default_factory=dict)
    shares: bool = False
    annotations: dict[str, str] = field(default_factory=dict)


def whole_resource(model: str | None, *, has_xe: bool = False) -> str:
    """Return the resource that whole devices of a model are counted in.

    Args:
        model: Canonical name, several joined by `|`, or None for any: then NVIDIA's, as only
            NVIDIA's device plugin counts devices without a model.
        has_xe: Whether the node has its Intel GPUs under the newer driver's name.

    Raises:
        BackendError: If the models belong to several resources: a pod can ask for one.
    """
    names = (model or "").split("|")
    found = {next((r for head, r in _BY_VENDOR if n.startswith(head)), NVIDIA) for n in names}
    if len(found) > 1:
        raise BackendError(
            Word.START_FAILED,
            f"the models {model} are counted in {' and '.join(sorted(found))}; a pod asks for one",
        )
    [resource] = found
    return INTEL_XE if resource == INTEL and has_xe else resource


def compute_claim(
    asked: ResourceRequest, gpu_ids: Sequence[str], *, has_xe: bool = False
) -> DeviceClaim:
    """Return what a container asks for to get the devices of a request.

    Args:
        gpu_ids: UUIDs of the GPUs that were chosen; empty leaves the choice to the node.

    Raises:
        BackendError: If no device plugin can give it.
    """
    if asked.gpu_count == 0:
        return DeviceClaim()
    hints = {GPU_IDS: ",".join(gpu_ids)} if gpu_ids else {}
    resource = whole_resource(asked.gpu_model, has_xe=has_xe)
    if asked.mig_profile:
        if resource != NVIDIA:
            raise BackendError(Word.START_FAILED, f"{resource} has no MIG profiles")
        name = resource_of_profile(asked.mig_profile)
        return DeviceClaim({name: asked.gpu_count}, annotations=hints)
    if asked.gpu_milli < WHOLE:
        if resource != NVIDIA:
            raise BackendError(Word.START_FAILED, f"{resource} cannot be shared")
        return _share(asked, gpu_ids, hints)
    return DeviceClaim({resource: asked.gpu_count}, annotations=hints)


def _share(asked: ResourceRequest, gpu_ids: Sequence[str], hints: dict[str, str]) -> DeviceClaim:
    # Rounded up: HAMi counts whole percent, and a job must not get less than it asked for.
    percent = -(-asked.gpu_milli * 100 // WHOLE)
    resources = {NVIDIA: asked.gpu_count, NVIDIA_CORES: percent}
    if asked.gpu_memory_mib:
        resources[NVIDIA_MEMORY] = asked.gpu_memory_mib
    else:
        resources[NVIDIA_MEMORY_SHARE] = percent
    if gpu_ids and all(each.startswith("GPU-") for each in gpu_ids):
        # A node that tells no UUIDs has names of our own; HAMi would wait for them for ever.
        hints = {**hints, HAMI_GPUS: ",".join(gpu_ids)}
    return DeviceClaim(resources, shares=True, annotations=hints)


def total_of(claims: Sequence[DeviceClaim]) -> dict[str, int]:
    """Return what several containers ask for together, as a quota counts it."""
    total: dict[str, int] = {}
    for claim in claims:
        for name, count in claim.resources.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))
