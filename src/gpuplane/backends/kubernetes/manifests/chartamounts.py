"""Whether the pods of a chart fit what their job asks for, which is all that is set aside: pure.

counted   replicas, parallelism, sidecars, what starting up takes, what is asked for whole pods
together  everything that may run at one moment: Jobs and bare pods beside those that run on
hooks     Jobs and pods of Helm's hooks, which run one after another: the largest of them
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuplane.backends.interface import AttemptPlan
from gpuplane.backends.kubernetes.manifests.chartrules import (
    LASTING,
    Object,
    copies_of,
    hooks_of,
    pod_spec_of,
    refusal,
)
from gpuplane.core.podrequests import Amounts, effective_request, most_of, read_request, sum_of

_BEFORE = frozenset({"pre-install", "pre-upgrade", "pre-rollback"})
"""Hooks that are over when what they come before is made."""
_AWAITED = frozenset({"Job", "Pod"})
"""Kinds of hooks whose end Helm waits for; others are made, and left to run."""


def check_total(plan: AttemptPlan, objects: Sequence[Object], devices: Sequence[Object]) -> None:
    """Refuse a chart whose pods are others, or ask for more, than the job.

    Args:
        objects: All that it makes, their amounts checked.
        devices: Those of them whose pods ask for GPUs.

    Raises:
        BackendError: With field, reason and fix.
    """
    count = len(plan.replicas)
    lasting = sum(copies_of(obj) for obj in objects if obj["kind"] in LASTING)
    with_gpus = sum(copies_of(obj) for obj in devices)
    has_gpus = plan.resources.gpu_count > 0
    if has_gpus and with_gpus != count:
        raise refusal(
            f"{with_gpus} pods of the chart ask for GPUs, and the job has {count} replicas",
            "Have spec.chart.values and replicas.count say the same.",
            "replicas.count",
        )
    if not has_gpus and lasting < count:
        raise refusal(
            f"{lasting} pods of the chart run on, and the job has {count} replicas",
            "Have spec.chart.values and replicas.count say the same.",
            "replicas.count",
        )
    asked = compute_peak(objects)
    if asked.get("cpu", 0) > count * plan.resources.cpu_milli:
        raise refusal(
            f"the chart's pods ask for {asked['cpu']}m of CPU, and the job for"
            f" {count * plan.resources.cpu_milli}m",
            "Raise cpu_cores.",
            "cpu_cores",
        )
    if asked.get("memory", 0) > count * plan.resources.memory_mib << 20:
        raise refusal(
            f"the chart's pods ask for {-(-asked['memory'] // (1 << 20))} MiB of memory, and the"
            f" job for {count * plan.resources.memory_mib} MiB",
            "Raise memory_gb.",
            "memory_gb",
        )


def compute_peak(objects: Iterable[Object]) -> dict[str, int]:
    """Return the most that what a chart makes asks for at one moment: CPU in thousandths, bytes."""
    beside: Amounts = {}
    before: Amounts = {}
    after: Amounts = {}
    for obj in objects:
        each = _request_of(pod_spec_of(obj))
        asked = {name: copies_of(obj) * amount for name, amount in each.items()}
        hooks = hooks_of(obj)
        if not hooks or obj["kind"] not in _AWAITED:
            beside = sum_of(beside, asked)
        elif hooks <= _BEFORE:
            before = most_of(before, asked)
        else:
            after = most_of(after, asked)
    return most_of(sum_of(beside, after), before)


def _request_of(spec: Mapping[str, Any]) -> dict[str, int]:
    return effective_request(
        [_asked(each.get("resources")) for each in spec.get("containers") or ()],
        [
            (_asked(each.get("resources")), each.get("restartPolicy") == "Always")
            for each in spec.get("initContainers") or ()
        ],
        _asked(spec.get("resources")),
        read_request(spec.get("overhead")),
    )


def _asked(resources: Mapping[str, Any] | None) -> dict[str, int]:
    told = resources or {}
    return read_request(told.get("requests"), told.get("limits"))
