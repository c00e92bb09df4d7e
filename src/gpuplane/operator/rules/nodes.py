"""Which nodes can take a workload: how many GPUs a node has, and why one is left out.

Owns detection and filtering. Never chooses among the nodes that are left: `strategies` does.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from gpuplane.operator.names import COUNT_LABELS, MEMORY_LABEL, RESOURCES, Vendor
from gpuplane.operator.rules.seen import Node, Workload


class LeftOut(StrEnum):
    """Why a node cannot take a workload; a metric label and a word in messages."""

    NOT_READY = "NotReady"
    UNSCHEDULABLE = "Unschedulable"
    TAINTED = "Tainted"
    NO_GPUS = "NoGPUs"
    GPU_MEMORY = "GPUMemory"
    TOO_SMALL = "TooSmall"
    TOO_FEW_FREE = "TooFewFree"


_WORDS = {
    LeftOut.NOT_READY: "not ready",
    LeftOut.UNSCHEDULABLE: "cordoned",
    LeftOut.TAINTED: "with a taint that is not tolerated",
    LeftOut.NO_GPUS: "without such GPUs",
    LeftOut.GPU_MEMORY: "with less GPU memory",
    LeftOut.TOO_SMALL: "with too few GPUs in all",
    LeftOut.TOO_FEW_FREE: "with too few GPUs free",
}


class Detected(msgspec.Struct, frozen=True):
    """The GPUs of one vendor on a node.

    Attributes:
        resource: The extended resource that a pod asks for.
        total: How many there are.
        source: Where the number comes from: `allocatable`, `capacity`, `labels` or `none`.
    """

    resource: str
    total: int
    source: str


class Candidate(msgspec.Struct, frozen=True):
    """A node that can take the workload.

    Attributes:
        free: GPUs that nobody has, at least as many as asked for.
        total: All GPUs of the vendor.
        free_mask: Which are free, bit `i` for GPU `i`, or None where that is not known.
    """

    node: Node
    resource: str
    free: int
    total: int
    free_mask: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates, and how many nodes were left out by reason."""

    candidates: tuple[Candidate, ...]
    left_out: Mapping[LeftOut, int]
    most_free: int

    def sentence(self, workload: Workload) -> str:
        """Return why nothing fits, for the status of the workload."""
        asked = f"{workload.gpus} free {workload.vendor} GPU{'s' if workload.gpus != 1 else ''}"
        if workload.memory_mib:
            asked += f" of {workload.memory_mib} MiB"
        if not self.left_out:
            return f"no node has {asked}: the cluster has no nodes"
        told = ", ".join(f"{count} {_WORDS[why]}" for why, count in sorted(self.left_out.items()))
        most = f"; at most {self.most_free} are free on one node" if self.most_free else ""
        return f"no node has {asked}: {told}{most}"


def detect_gpus(node: Node, vendor: Vendor) -> Detected:
    """Return a node's GPUs: what is allocatable, else the capacity, else its labels, else none.

    Source: operator document, "GPU Detection Logic".
    """
    resources = RESOURCES[vendor]
    for amounts, source in ((node.allocatable, "allocatable"), (node.capacity, "capacity")):
        for resource in resources:
            if resource in amounts:
                return Detected(resource, amounts[resource], source)
    for label in COUNT_LABELS[vendor]:
        text = node.labels.get(label, "")
        if text.isdigit():
            return Detected(resources[0], int(text), "labels")
    return Detected(resources[0], 0, "none")


def find_reason(
    node: Node, workload: Workload, free: int, detected: Detected | None = None
) -> LeftOut | None:
    """Return why a node cannot take a workload, or None if it can.

    Args:
        free: GPUs of the workload's vendor that nobody has.
        detected: The node's GPUs of that vendor, where they were counted already.
    """
    found = detected or detect_gpus(node, workload.vendor)
    if found.total == 0:
        return LeftOut.NO_GPUS
    if not node.is_ready:
        return LeftOut.NOT_READY
    if node.is_unschedulable:
        return LeftOut.UNSCHEDULABLE
    # A taint named like the resource says that only GPU work belongs here, which this is.
    if any(key != found.resource for key, _, _ in node.taints):
        return LeftOut.TAINTED
    if workload.memory_mib and workload.memory_mib > memory_mib(node):
        return LeftOut.GPU_MEMORY
    if found.total < workload.gpus:
        return LeftOut.TOO_SMALL
    if free < workload.gpus:
        return LeftOut.TOO_FEW_FREE
    return None


def memory_mib(node: Node) -> int:
    """Return the memory of each GPU of a node in MiB as its label says it, 0 where it does not."""
    text = node.labels.get(MEMORY_LABEL, "")
    return int(text) if text.isdigit() else 0


def list_candidates(
    nodes: Iterable[Node],
    workload: Workload,
    used: Mapping[str, int],
    busy_ids: Mapping[str, Sequence[str]] | None = None,
) -> Choice:
    """Return the nodes that can take a workload, by name, and why the others cannot.

    Args:
        nodes: Every node.
        used: By node, GPUs of the workload's vendor that are given away.
        busy_ids: By node, the chosen ids of GPUs that are given away, where they are known.
    """
    busy = busy_ids or {}
    found: list[Candidate] = []
    left_out: Counter[LeftOut] = Counter()
    most_free = 0
    for node in nodes:
        detected = detect_gpus(node, workload.vendor)
        free = max(0, detected.total - used.get(node.name, 0))
        reason = find_reason(node, workload, free, detected)
        if reason is None:
            mask = _free_mask(detected.total, free, busy.get(node.name, ()))
            found.append(Candidate(node, detected.resource, free, detected.total, mask))
            continue
        left_out[reason] += 1
        if reason is LeftOut.TOO_FEW_FREE:
            most_free = max(most_free, free)
    found.sort(key=lambda each: each.node.name)
    return Choice(tuple(found), dict(left_out), most_free)


def _free_mask(total: int, free: int, busy: Sequence[str]) -> int | None:
    """Return the free GPUs where the ids of all busy ones are plain indices, else None."""
    mask = (1 << total) - 1
    for each in busy:
        if not each.isdigit() or int(each) >= total:
            return None
        mask &= ~(1 << int(each))
    return mask if mask.bit_count() == free else None
