"""Why a manager's Kueue is not connected with a worker, in its own words and with what mends it.

Source: kubernetes-sigs/kueue v0.15.0, pkg/controller/admissionchecks/multikueue/
multikueuecluster.go (the condition Active of a MultiKueueCluster and its reasons).
"""

import re
from collections.abc import Mapping
from typing import Any

from gpuplane.kube.kueue.multikueue import cluster_of_worker
from gpuplane.kube.kueue.states import read_conditions

_NO_KIND = re.compile(r'no matches for kind "([^"]+)"')


def why_unconnected(name: str, found: Mapping[str, Any] | None) -> str:
    """Return why a manager is not connected with a worker and what mends it; empty where it is.

    Args:
        name: What the manager knows the worker by.
        found: Its MultiKueueCluster, None where there is none.
    """
    worker = cluster_of_worker(name)
    if found is None:
        return (
            f"Kueue knows {worker} by no MultiKueueCluster {name}: connect it again with "
            "`gpuplane clusters multikueue`."
        )
    told = read_conditions((found.get("status") or {}).get("conditions")).get("Active")
    if told is None:
        return (
            f"Kueue says nothing of {worker} yet: see whether its controller runs with MultiKueue "
            "on."
        )
    if told.true:
        return ""
    said = f"Kueue is not connected with {worker}: {told.reason}: {told.message.rstrip('. ')}."
    lacking = _NO_KIND.search(told.message)
    if lacking is not None:
        kind = lacking.group(1)
        return (
            f"{said} Install the definition of {kind} on {worker}, or take {kind} out of "
            "integrations.frameworks in the manager's Kueue."
        )
    return (
        f"{said} See that {worker} runs and can be reached from the manager, then connect it again "
        "with `gpuplane clusters multikueue`."
    )
