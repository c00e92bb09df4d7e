"""Who gives way when a workload of higher priority finds no node.

Owns the choice of victims among workloads that the operator itself placed; pods of others are
never touched. A victim has a lower priority and has not refused; on one node the fewest GPUs are
freed, lowest priorities first, then the youngest, because least work is lost with them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpuplane.operator.names import RESOURCES
from gpuplane.operator.rules.nodes import LeftOut, detect_gpus, find_reason
from gpuplane.operator.rules.seen import Node, Workload

MAX_VICTIMS = 8
"""A workload asks for 8 GPUs at most and a victim gives back one at least."""
_TRIED = 12
"""Of the victims of one node that are tried in all combinations: 12 make 4,000."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """A node, and those who give it up, by (namespace, name)."""

    node: str
    resource: str
    victims: tuple[tuple[str, str], ...]


def plan_preemption(
    workload: Workload,
    nodes: Iterable[Node],
    used: Mapping[str, int],
    placed: Mapping[str, Sequence[Workload]],
) -> Preemption | None:
    """Return the node that costs least to clear for a workload, or None.

    Args:
        used: By node, GPUs of the workload's vendor that are given away.
        placed: By node, the workloads of this operator that hold GPUs there.
    """
    best: tuple[tuple[int, int, int, int, str], Preemption] | None = None
    for node in sorted(nodes, key=lambda each: each.name):
        found = detect_gpus(node, workload.vendor)
        free = max(0, found.total - used.get(node.name, 0))
        if find_reason(node, workload, free) is not LeftOut.TOO_FEW_FREE:
            continue
        may_go = [each for each in placed.get(node.name, ()) if _may_go(each, workload)]
        victims = _fewest(may_go, workload.gpus - free)
        if victims is None:
            continue
        cost = (
            max(each.priority.rank for each in victims),
            sum(each.gpus for each in victims),
            len(victims),
            -min(each.scheduled_s for each in victims),
            node.name,
        )
        plan = Preemption(node.name, found.resource, tuple(sorted(each.key for each in victims)))
        if best is None or cost < best[0]:
            best = cost, plan
    return None if best is None else best[1]


def _may_go(each: Workload, preemptor: Workload) -> bool:
    return (
        each.is_preemptible
        and not each.is_going
        and RESOURCES[each.vendor] == RESOURCES[preemptor.vendor]
        and each.priority.rank < preemptor.priority.rank
    )


def _fewest(may_go: Sequence[Workload], gpus: int) -> tuple[Workload, ...] | None:
    """Return the set that frees enough at least cost, or None if all together are not enough."""
    if sum(each.gpus for each in may_go) < gpus:
        return None
    order = sorted(may_go, key=lambda each: (each.priority.rank, -each.scheduled_s, each.key))
    ways = [
        chosen
        for size in range(1, min(len(order), MAX_VICTIMS) + 1)
        for chosen in combinations(order[:_TRIED], size)
        if sum(each.gpus for each in chosen) >= gpus
    ]
    if not ways:
        return None
    return min(
        ways,
        key=lambda chosen: (
            max(each.priority.rank for each in chosen),
            sum(each.gpus for each in chosen),
            len(chosen),
            [order.index(each) for each in chosen],
        ),
    )
