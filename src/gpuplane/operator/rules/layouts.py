"""MIG layouts of node groups: what each GPU is to become, and which of it may be ordered now.

Owns the comparison of a MIGLayout with what agents report, and the orders that follow from it.
Every order is an edge of `core.lifecycle.mig`: free instances give way, held ones stay until they
are given back. Never cuts a GPU: the agent of the node does, and reports what came of it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuplane.core.ids import GpuId
from gpuplane.core.lifecycle.mig import FIRST, HELD, MigState, find_mig_edge
from gpuplane.core.mig.layouts import MigInstance, find_problem
from gpuplane.core.mig.profiles import MigTable, find_table
from gpuplane.core.mig.rebalance import MigGpu, plan_shares
from gpuplane.operator.names import MIG_ORDERS_ANNOTATION, MIG_STATE_ANNOTATION, PRODUCT_LABEL
from gpuplane.operator.rules.seen import Node


class NodeState(StrEnum):
    """How a node of a group stands to its layout."""

    SETTLED = "Settled"
    CHANGING = "Changing"
    HELD = "Held"
    QUEUED = "Queued"
    UNREADABLE = "Unreadable"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True)
class Group:
    """What a MIGLayout asks for.

    Attributes:
        instances: Count by profile on every GPU; None where shares or whole GPUs are asked for.
        shares: Weight by profile over the group.
        unsettled: Nodes that may be cut at the same time.
    """

    name: str
    uid: str
    generation: int
    selector: Mapping[str, str]
    instances: Mapping[str, int] | None
    shares: Mapping[str, int] | None
    unsettled: int


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU as its agent reports it; `is_enabled` says whether it is in MIG mode."""

    index: int
    is_enabled: bool
    instances: tuple[tuple[MigInstance, MigState], ...]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What is found of a node, and the text of its orders annotation (None: leave it)."""

    name: str
    state: NodeState
    message: str
    orders: str | None


def read_group(item: Mapping[str, Any]) -> Group:
    """Return what is kept of a MIGLayout."""
    meta, spec = item["metadata"], item.get("spec") or {}
    return Group(
        name=meta["name"],
        uid=meta.get("uid", ""),
        generation=int(meta.get("generation") or 0),
        selector=dict(spec.get("nodeSelector") or {}),
        instances={} if spec.get("whole") else spec.get("instances"),
        shares=spec.get("shares"),
        unsettled=int(spec.get("maxUnsettledNodes") or 1),
    )


def read_report(text: str) -> tuple[GpuReport, ...]:
    """Return what an agent's annotation says.

    Raises:
        ValueError: If it cannot be read.
    """
    try:
        return tuple(
            sorted(
                (
                    GpuReport(
                        int(gpu["index"]),
                        gpu["mode"] == "enabled",
                        tuple(
                            (MigInstance(int(one["start"]), one["profile"]), MigState(one["state"]))
                            for one in gpu.get("instances") or ()
                        ),
                    )
                    for gpu in json.loads(text)["gpus"]
                ),
                key=lambda gpu: gpu.index,
            )
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the agent's report cannot be read: {error}") from error


def plan_group(group: Group, nodes: Iterable[Node]) -> tuple[NodePlan, ...]:
    """Return the plan of every node of a group, by name.

    At most `unsettled` nodes change at a time; those that began go on first.
    """
    members = sorted(
        (node for node in nodes if _selects(group.selector, node)), key=lambda node: node.name
    )
    readings = {node.name: _read(node) for node in members}
    targets = _targets(group, members, readings)
    plans = [_plan_node(group, node, readings[node.name], targets) for node in members]
    changing = {plan.name for plan in plans if plan.state is NodeState.CHANGING}
    begun = {
        node.name
        for node in members
        if node.name in changing and _is_ordered(node.annotations.get(MIG_ORDERS_ANNOTATION, ""))
    }
    turns = [*sorted(begun), *sorted(changing - begun)][: max(group.unsettled, len(begun))]
    return tuple(
        plan
        if plan.name in turns or plan.state is not NodeState.CHANGING
        else NodePlan(plan.name, NodeState.QUEUED, "waits for its turn", None)
        for plan in plans
    )


_Reading = tuple[MigTable, tuple[GpuReport, ...]] | str
_Targets = Mapping[tuple[str, int], tuple[MigInstance, ...] | str]


def _selects(selector: Mapping[str, str], node: Node) -> bool:
    return all(node.labels.get(key) == value for key, value in selector.items())


def _is_ordered(text: str) -> bool:
    try:
        return bool(json.loads(text)["gpus"]) if text else False
    except (KeyError, TypeError, ValueError):
        return False


def _read(node: Node) -> _Reading:
    product = node.labels.get(PRODUCT_LABEL, "")
    # GPU feature discovery appends what the device plugin makes of the GPUs, such as -MIG-1g.5gb.
    table = find_table(product.split("-MIG-")[0].removesuffix("-SHARED"))
    if table is None:
        return f"{product or 'a GPU without product label'} has no MIG"
    text = node.annotations.get(MIG_STATE_ANNOTATION, "")
    if not text:
        return "the agent of the node has not reported yet"
    try:
        return table, read_report(text)
    except ValueError as error:
        return str(error)


def _targets(group: Group, nodes: Sequence[Node], readings: Mapping[str, _Reading]) -> _Targets:
    """Return by (node, GPU index) the instances it is to carry, or why it cannot."""
    if group.shares is not None:
        return _share_targets(group.shares, nodes, readings)
    found: dict[tuple[str, int], tuple[MigInstance, ...] | str] = {}
    for node in nodes:
        reading = readings[node.name]
        if isinstance(reading, str):
            continue
        table, gpus = reading
        for gpu in gpus:
            found[node.name, gpu.index] = _exact_target(table, gpu, group.instances or {})
    return found


def _share_targets(
    shares: Mapping[str, int], nodes: Sequence[Node], readings: Mapping[str, _Reading]
) -> _Targets:
    by_table: dict[MigTable, list[tuple[tuple[str, int], MigGpu]]] = {}
    for node in nodes:
        reading = readings[node.name]
        if not isinstance(reading, str):
            table, gpus = reading
            for gpu in gpus:
                name = GpuId(f"{node.name}/{gpu.index}")
                by_table.setdefault(table, []).append(
                    ((node.name, gpu.index), MigGpu(name, table, gpu.instances))
                )
    found: dict[tuple[str, int], tuple[MigInstance, ...] | str] = {}
    for gpus_of in by_table.values():
        try:
            layouts, _ = plan_shares([gpu for _, gpu in gpus_of], shares)
        except ValueError as error:
            found.update({key: str(error) for key, _ in gpus_of})
            continue
        for (key, _), layout in zip(gpus_of, layouts, strict=True):
            found[key] = layout.instances
    return found


def _exact_target(
    table: MigTable, gpu: GpuReport, wanted: Mapping[str, int]
) -> tuple[MigInstance, ...] | str:
    """Return where the wanted instances lie, around what is held and what is there already."""
    names: list[str] = []
    for name, count in sorted(wanted.items()):
        profile = table.find_profile(name)
        if profile is None:
            near = ", ".join(table.nearest_profiles(name))
            return f"{table.model} has no profile {name}; nearest are {near}"
        names += [profile.name] * count
    # Large ones first: they have the fewest places.
    names.sort(key=lambda name: (-table_size(table, name), name))
    held = {one for one, state in gpu.instances if state in HELD}
    there = {one for one, _ in gpu.instances}
    found = _lay(table, (), tuple(names), held, there)
    if found is None:
        told = ", ".join(f"{count} of {name}" for name, count in sorted(wanted.items()))
        return f"{told} do not fit on one {table.model}"
    return found


def table_size(table: MigTable, name: str) -> int:
    """Return the memory slices of a profile of the table."""
    profile = table.find_profile(name)
    return 0 if profile is None else profile.memory_slices


def _lay(
    table: MigTable,
    placed: tuple[MigInstance, ...],
    names: tuple[str, ...],
    held: set[MigInstance],
    there: set[MigInstance],
) -> tuple[MigInstance, ...] | None:
    """Return the first layout of the profiles, held places tried first, then those that exist."""
    if not names:
        return tuple(sorted(placed))
    profile = table.find_profile(names[0])
    assert profile is not None, "unknown profiles were refused"
    starts = sorted(
        profile.starts,
        key=lambda start: (
            MigInstance(start, profile.name) not in held,
            MigInstance(start, profile.name) not in there,
            start,
        ),
    )
    for start in starts:
        grown = (*placed, MigInstance(start, profile.name))
        if find_problem(table, grown) is None:
            found = _lay(table, grown, names[1:], held, there)
            if found is not None:
                return found
    return None


def _plan_node(group: Group, node: Node, reading: _Reading, targets: _Targets) -> NodePlan:
    if isinstance(reading, str):
        return NodePlan(node.name, NodeState.UNREADABLE, reading, None)
    table, gpus = reading
    orders: list[dict[str, Any]] = []
    held = 0
    for gpu in gpus:
        target = targets[node.name, gpu.index]
        if isinstance(target, str):
            return NodePlan(node.name, NodeState.REFUSED, target, None)
        order, kept = _order(table, gpu, target)
        held += kept
        if order:
            orders.append({"index": gpu.index, "steps": order})
    text = _orders_text(group, orders)
    if orders:
        message = f"{len(orders)} of {len(gpus)} GPUs are being cut"
        return NodePlan(node.name, NodeState.CHANGING, message, text)
    if held:
        message = f"{held} instances stay until their workloads give them back"
        return NodePlan(node.name, NodeState.HELD, message, text)
    return NodePlan(node.name, NodeState.SETTLED, "as asked for", text)


def _order(
    table: MigTable, gpu: GpuReport, target: tuple[MigInstance, ...]
) -> tuple[list[dict[str, Any]], int]:
    """Return the steps that may be taken now, and how many held instances stand in the way."""
    there = dict(gpu.instances)
    held = [one for one, state in there.items() if state in HELD and one not in target]
    if not gpu.is_enabled:
        return ([_step(FIRST, MigState.MIG_ENABLED)], 0) if target else ([], 0)
    gone = [one for one in there if one not in target and one not in held]
    steps = [
        _step(MigState.AVAILABLE, MigState.PARTITION_DESTROYED, one)
        for one in gone
        if there[one] is MigState.AVAILABLE
    ]
    # What comes may not lie on what is still there, held or on its way out.
    staying = tuple(one for one in there if one in target or one in held)
    missing = [one for one in target if one not in there]
    if gone and not steps:
        return [], len(held)
    for one in missing:
        if find_problem(table, (*staying, one)) is None:
            source = MigState.PARTITION_DESTROYED if gone else MigState.MIG_ENABLED
            steps.append(_step(source, MigState.PARTITION_CREATED, one))
            staying = (*staying, one)
    if not target and not there:
        steps.append(_step(MigState.MIG_ENABLED, FIRST))
    return steps, len(held)


def _step(source: MigState, target: MigState, one: MigInstance | None = None) -> dict[str, Any]:
    edge = find_mig_edge(source, target)
    assert edge is not None, f"the life of a MIG partition has no way from {source} to {target}"
    step: dict[str, Any] = {"from": source.value, "to": target.value, "trigger": edge.trigger}
    if one is not None:
        step |= {"profile": one.profile, "start": one.start}
    return step


def _orders_text(group: Group, orders: list[dict[str, Any]]) -> str:
    told = {"layout": group.name, "generation": group.generation, "gpus": orders}
    return json.dumps(told, sort_keys=True, separators=(",", ":"))
