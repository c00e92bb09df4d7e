"""Which worker of a MultiKueue manager is nominated next, in the order of preference.

Owns the choice and the object that says it. Pure: whoever follows Workloads writes it. Kueue's own
dispatchers know no order below three workers, so a manager's Kueue is told to leave nominating to
us (`multiKueue.dispatcherName: gpuplane.io/in-order`); where it is not, it nominates all that are
connected and nothing is left to be done here.

Source: kubernetes-sigs/kueue v0.15.0, pkg/controller/admissionchecks/multikueue/workload.go
(nominateAndSynchronizeWorkers) and docs/concepts/multikueue.md: an external dispatcher writes
`status.nominatedClusterNames` as the field manager `kueue-admission`.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpuplane.kube.kueue.multikueue import CHECK
from gpuplane.kube.kueue.names import WorkloadCondition
from gpuplane.kube.kueue.states import WorkloadState

DISPATCHER = "gpuplane.io/in-order"
"""What a manager's Kueue names as its dispatcher, so that the order of preference holds."""
ADMISSION_MANAGER = "kueue-admission"
"""The field manager under which Kueue itself takes nominations back."""
ROUND_MS = 20_000
"""How long one worker may think before the next one is asked too: it takes a second or two."""
MOST_NOMINATED = 10
"""Kueue's limit on `nominatedClusterNames`."""


def needs_worker(state: WorkloadState) -> bool:
    """Return whether a Workload has its quota on the manager and no worker yet."""
    if state.cluster_name or state.find(WorkloadCondition.FINISHED) is not None:
        return False
    reserved = state.find(WorkloadCondition.QUOTA_RESERVED) is not None
    return reserved and any(
        check.name == CHECK and check.state == "Pending" for check in state.checks
    )


def decide_nomination(
    order: Sequence[str],
    active: Collection[str],
    nominated: Sequence[str],
    since: int,
    now: int,
) -> tuple[str, ...] | None:
    """Return the workers to be nominated from now on, None where that changes nothing.

    The first that is connected is asked alone. Another joins when it had its time, or when no
    nominated one is connected any more; none is taken back, because it may be about to answer.

    Args:
        order: The workers by their names on the manager, best first.
        active: Those that the manager is connected with.
        nominated: Those that are nominated.
        since: Since when they are, ms since the epoch.
        now: The instant.
    """
    if any(each in active for each in nominated) and now - since < ROUND_MS:
        return None
    rest = [each for each in order if each in active and each not in nominated]
    if not rest or len(nominated) >= MOST_NOMINATED:
        return None
    return (*nominated, rest[0])


def nomination_object(found: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return what is applied as `kueue-admission` to nominate workers.

    It repeats all that this manager owns of the status: what an apply leaves out is taken away.

    Args:
        found: The Workload as it was read, with its managed fields.
        names: The workers.
    """
    metadata = found["metadata"]
    status: dict[str, Any] = {}
    for entry in metadata.get("managedFields") or ():
        if (entry.get("manager"), entry.get("operation")) == (ADMISSION_MANAGER, "Apply"):
            fields = (entry.get("fieldsV1") or {}).get("f:status") or {}
            status |= pick_owned(found.get("status") or {}, fields) if fields else {}
    status["nominatedClusterNames"] = list(names)
    return {
        "apiVersion": found["apiVersion"],
        "kind": "Workload",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "status": status,
    }


def pick_owned(value: Any, fields: Mapping[str, Any]) -> Any:
    """Return the part of a value that a set of managed fields (`fieldsV1`) names.

    Source: kubernetes-sigs/structured-merge-diff, fieldpath: `f:` is a field, `k:` an item of a
    list by its keys, `v:` an item of a set, `.` the thing itself.
    """
    if not fields:
        return value
    if isinstance(value, Mapping):
        return {
            key[2:]: pick_owned(value[key[2:]], below)
            for key, below in fields.items()
            if key.startswith("f:") and key[2:] in value
        }
    if isinstance(value, list):
        return [
            pick_owned(each, below)
            for each in value
            for key, below in fields.items()
            if _names_item(key, each)
        ]
    return value


def _names_item(key: str, item: Any) -> bool:
    if key.startswith("k:") and isinstance(item, Mapping):
        return bool(json.loads(key[2:]).items() <= item.items())
    return key.startswith("v:") and bool(json.loads(key[2:]) == item)
