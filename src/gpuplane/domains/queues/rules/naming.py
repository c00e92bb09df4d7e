"""Names of flavors: a flavor that means a GPU model has the model's canonical name."""

from collections.abc import Iterable

from gpuplane.core.hardware import KNOWN_MODELS, find_models


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
