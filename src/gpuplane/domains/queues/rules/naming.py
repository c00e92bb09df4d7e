"""Names of flavors: a flavor that means a GPU model has the model's canonical name."""

from collections.abc import Collection, Iterable

from gpuplane.core.hardware import KNOWN_MODELS, find_models
from gpuplane.core.mig.profiles import MIG_RESOURCE_PREFIX
from gpuplane.core.quota.flavors import ANY_FLAVOR
from gpuplane.core.quota.specs import GPU, FlavorResource


def find_misspelt_flavor(flavors: Iterable[str]) -> tuple[str, str] | None:
    """Return (flavor, canonical name) of the first that names a GPU model in another spelling.

    Such a flavor would stand for every node, because only the canonical name stands for the nodes
    of a model: a quota meant for one model would count all.
    """
    for flavor in flavors:
        if flavor in KNOWN_MODELS:
            continue
        models = find_models(flavor)
        if models:
            return flavor, models[0].name
    return None


def find_unknown_model(quotas: Iterable[FlavorResource], present: Collection[str]) -> str | None:
    """Return the first flavor with a quota of GPUs that names no GPU model, None without one.

    Such a flavor would stand for every node. Whoever means every model writes `any`; flavors of
    other resources are named freely.

    Args:
        quotas: The flavors with their resources.
        present: The models of the cluster, among which may be some that nobody described.
    """
    for flavor, resource in sorted(quotas):
        if resource != GPU and not resource.startswith(MIG_RESOURCE_PREFIX):
            continue
        if flavor != ANY_FLAVOR and flavor not in KNOWN_MODELS and flavor not in present:
            return flavor
    return None
