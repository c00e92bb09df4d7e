"""Turns a fleet file into a fleet: the format `gpuplane.io/v1`, kind `Fleet`.

Owns the format (docs/reference/fleet.md) and its checks; a fleet that this returns is whole.
"""

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from gpuplane.backends.simulated.fleet import (
    MAX_GPUS_PER_NODE,
    MAX_NODES,
    Delay,
    DelayShape,
    Failure,
    FailureKind,
    Fleet,
    Gpu,
    Node,
    Prices,
    make_gpu_id,
)
from gpuplane.backends.simulated.mig import read_layouts
from gpuplane.backends.simulated.quantities import (
    QuantityError,
    parse_cpu_milli,
    parse_duration_ms,
    parse_memory_mib,
    parse_price_micro,
)
from gpuplane.backends.simulated.reading import Collector, FleetError, Section, load_document
from gpuplane.core.hardware import GpuModel, find_model, nearest_models
from gpuplane.core.pricing.currencies import CURRENCIES, nearest_currencies
from gpuplane.core.topology.named import described_topology
from gpuplane.kit.errors import FieldError

API_VERSION = "gpuplane.io/v1"
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MAX_FAILURES = 10_000
MAX_SPEED = 1_000_000.0

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_INDEX = re.compile(r"\{index(?::0?([1-9]))?\}")
_LABEL_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]{0,251}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAME_FIX = "use lower case letters, digits, '-' and '.', at most 63, a letter or digit at the ends"


def load_fleet(path: Path, name: str | None = None) -> Fleet:
    """Return the fleet described in a file.

    Args:
        path: A YAML file.
        name: Takes the place of the file's own; ids of GPUs depend on it, so two clusters made
            from one file need two names.

    Raises:
        FleetError: With every mistake, each naming its path, the reason and the fix.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = "name a readable UTF-8 file"
        raise FleetError(str(path), (FieldError("(file)", str(error), fix),)) from error
    return parse_fleet(text, str(path), name)


def load_demo_fleet() -> Fleet:
    """Return the fleet that every installation brings along (`examples/fleets/demo.yaml`).

    In the tree `data/demo.yaml` is a symbolic link to that file; a built wheel holds its content.
    """
    resource = files("gpuplane").joinpath("data", "demo.yaml")
    return parse_fleet(resource.read_text(encoding="utf-8"), "demo.yaml")


def parse_fleet(text: str, source: str, name: str | None = None) -> Fleet:
    """Return the fleet described in a text.

    Args:
        text: One YAML document.
        source: What it was read from, for the messages.
        name: Takes the place of the text's own.

    Raises:
        FleetError: With every mistake, each naming its path, the reason and the fix.
    """
    collector = Collector(source)
    root = Section(load_document(text, source), "", collector)
    _read_header(root)
    metadata = root.section("metadata")
    own_name = _read_name(metadata, "name")
    metadata.finish()
    spec = root.section("spec")
    fleet = _read_spec(spec, name or own_name)
    root.finish()
    collector.raise_if_any()
    return fleet


def _read_header(root: Section) -> None:
    for key, wanted in (("apiVersion", API_VERSION), ("kind", "Fleet")):
        value = root.text(key)
        if value and value != wanted:
            root.refuse(key, f"{value!r} is not read here", f"write {wanted}")


def _read_spec(spec: Section, name: str) -> Fleet:
    racks = _read_racks(spec)
    nodes: dict[str, Node] = {}
    groups: set[str] = set()
    for group in spec.sections("nodeGroups"):
        _read_group(group, name, racks, nodes, groups)
    if not nodes and spec.is_clean:
        spec.refuse("nodeGroups", "the fleet has no node", "describe at least one group of nodes")
    clock = spec.section("clock")
    speed = clock.amount("speed", _parse_speed, 1.0)
    clock.finish()
    fleet = Fleet(
        name=name,
        nodes=tuple(nodes.values()),
        prices=_read_prices(spec.section("prices"), nodes),
        failures=_read_failures(spec, nodes),
        start_delay=_read_delay(spec.section("startDelay")),
        stop_delay=_read_delay(spec.section("stopDelay")),
        speed=speed,
        description=spec.text("description", ""),
    )
    spec.finish()
    return fleet


def _read_name(section: Section, key: str) -> str:
    name = section.text(key)
    if name and not _NAME.fullmatch(name):
        section.refuse(key, f"{name[:80]!r} is not a name", _NAME_FIX)
    return name


def _read_racks(spec: Section) -> dict[str, str]:
    """Return the block of each rack by the rack's name."""
    racks: dict[str, str] = {}
    for rack in spec.sections("racks"):
        name = _read_name(rack, "name")
        if name in racks:
            rack.refuse("name", f"the rack {name!r} is described twice", "give each its own name")
        racks[name] = _read_name(rack, "block") if rack.has("block") else ""
        rack.finish()
    return racks


@dataclass(frozen=True, slots=True)
class _Hardware:
    """The GPUs of each node of a group."""

    model: GpuModel | None
    count: int
    topology: str | None
    numa: tuple[int | None, ...]
    mig: dict[int, tuple[tuple[str, int], ...]]


def _read_group(
    group: Section, fleet: str, racks: dict[str, str], nodes: dict[str, Node], groups: set[str]
) -> None:
    """Add the nodes of one group."""
    group_name = _read_name(group, "name")
    if group_name in groups:
        group.refuse("name", f"the group {group_name!r} exists already", "give it another name")
    groups.add(group_name)
    count = group.integer("count", 1, MAX_NODES)
    names = _read_node_names(group, group_name, count)
    hardware = _read_hardware(group)
    cpu_milli = group.required_amount("cpu", parse_cpu_milli, 1000)
    memory_mib = group.required_amount("memory", parse_memory_mib, 1024)
    ephemeral_mib = group.required_amount("ephemeralStorage", parse_memory_mib, 1024)
    labels = _read_labels(group)
    taints = _read_taints(group)
    group_racks = _read_group_racks(group, racks)
    fabric = _read_name(group, "rdmaFabric") if group.has("rdmaFabric") else ""
    group.finish()
    if len(nodes) + count > MAX_NODES:
        group.refuse("count", f"the fleet would pass {MAX_NODES} nodes", "describe fewer")
        return
    for position, name in enumerate(names):
        if name in nodes:
            fix = "choose a nodeName or startIndex whose names are free"
            group.refuse("nodeName", f"the node {name!r} exists already", fix)
            return
        rack = group_racks[position * len(group_racks) // count] if group_racks else ""
        nodes[name] = Node(
            name=name,
            cpu_milli=cpu_milli,
            memory_mib=memory_mib,
            ephemeral_mib=ephemeral_mib,
            gpus=_make_gpus(fleet, name, hardware),
            topology=hardware.topology,
            labels={**labels, "gpuplane.io/node-group": group_name},
            taints=taints,
            rack=rack,
            block=racks.get(rack, ""),
            rdma_fabric=fabric,
        )


def _read_node_names(group: Section, group_name: str, count: int) -> list[str]:
    """Return the names that the pattern makes, at most MAX_NODES."""
    pattern = group.text("nodeName", f"{group_name}-{{index:02}}")
    start = group.integer("startIndex", 0, MAX_NODES, default=1)
    if len(_INDEX.findall(pattern)) != 1:
        fix = "write a name with {index} once, such as h100-{index:02}"
        group.refuse("nodeName", f"{pattern[:80]!r} makes no name for each node", fix)
        return []
    match = _INDEX.search(pattern)
    width = int(match.group(1) or 1) if match else 1
    names = [_INDEX.sub(f"{start + i:0{width}}", pattern) for i in range(count)]
    if not all(_NAME.fullmatch(name) for name in names):
        group.refuse("nodeName", f"{pattern[:80]!r} makes names that are no names", _NAME_FIX)
    return names


def _read_hardware(group: Section) -> _Hardware:
    if not group.has("gpus"):
        for key in ("topology", "mig"):
            if group.has(key):
                group.refuse(key, "the group has no GPUs", "describe gpus or take this out")
        return _Hardware(None, 0, None, (), {})
    gpus = group.section("gpus")
    model = _read_model(gpus, "model")
    count = gpus.integer("count", 1, MAX_GPUS_PER_NODE)
    gpus.finish()
    topology: str | None = None
    numa: tuple[int | None, ...] = (None,) * count
    if group.has("topology") and (described := group.text("topology")):
        try:
            numa = described_topology(described, count).numa
            topology = described.strip() if "\n" not in described.strip() else described
        except ValueError as error:
            fix = "name a known topology, or paste the output of nvidia-smi topo -m"
            group.refuse("topology", str(error), fix)
    return _Hardware(model, count, topology, numa, read_layouts(group, model, count))


def _read_model(section: Section, key: str) -> GpuModel | None:
    name = section.text(key)
    model = find_model(name) if name else None
    if name and model is None:
        near = ", ".join(nearest_models(name))
        section.refuse(key, f"the GPU model {name[:80]!r} is not known", f"nearest: {near}")
    return model


def _make_gpus(fleet: str, node: str, hardware: _Hardware) -> tuple[Gpu, ...]:
    if hardware.model is None:
        return ()
    return tuple(
        Gpu(
            gpu_id=make_gpu_id(fleet, node, index),
            index=index,
            model=hardware.model.name,
            memory_mib=hardware.model.memory_mib,
            numa=hardware.numa[index],
            mig=hardware.mig.get(index, ()),
        )
        for index in range(hardware.count)
    )


def _read_labels(group: Section) -> dict[str, str]:
    labels = group.text_map("labels")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            fix = "use letters, digits, '-', '_' and '.' (and one '/' in the key), at most 63"
            group.refuse(f"labels.{key[:80]}", "it is not a Kubernetes label", fix)
    return labels


def _read_taints(group: Section) -> tuple[tuple[str, str, str], ...]:
    taints = []
    for taint in group.sections("taints"):
        effect = taint.text("effect")
        if effect and effect not in TAINT_EFFECTS:
            fix = f"write one of {', '.join(TAINT_EFFECTS)}"
            taint.refuse("effect", f"{effect[:80]!r} is no effect", fix)
        taints.append((taint.text("key"), taint.text("value", ""), effect))
        taint.finish()
    return tuple(taints)


def _read_group_racks(group: Section, racks: dict[str, str]) -> list[str]:
    names = group.texts("racks")
    for index, name in enumerate(names):
        if name not in racks:
            known = ", ".join(racks) or "none is described in spec.racks"
            group.refuse(f"racks[{index}]", f"there is no rack {name[:80]!r}", f"known: {known}")
    return names


def _read_prices(prices: Section, nodes: dict[str, Node]) -> Prices:
    currency = prices.text("currency", "USD")
    if currency not in CURRENCIES:
        near = ", ".join(nearest_currencies(currency))
        fix = f"write its three capital letters (ISO 4217); nearest: {near}"
        prices.refuse("currency", f"{currency[:80]!r} is no currency", fix)
    present = {gpu.model for node in nodes.values() for gpu in node.gpus}
    per_model: dict[str, int] = {}
    table = prices.section("gpuHour")
    for written in table.keys():  # noqa: SIM118  # a Section is no dict
        micro = table.required_amount(written, parse_price_micro, 0)
        model = find_model(written)
        if model is None:
            near = ", ".join(nearest_models(written))
            reason = f"the GPU model {written[:80]!r} is not known"
            table.refuse(written, reason, f"nearest: {near}")
        elif model.name not in present:
            fix = f"models of the fleet: {', '.join(sorted(present)) or 'none'}"
            table.refuse(written, f"no node of the fleet has a {model.name}", fix)
        elif model.name in per_model:
            table.refuse(written, f"{model.name} has a price already", "keep one of the two")
        else:
            per_model[model.name] = micro
    cpu = prices.amount("cpuCoreHour", parse_price_micro, 0)
    memory = prices.amount("memoryGibHour", parse_price_micro, 0)
    prices.finish()
    return Prices(currency, per_model, cpu, memory)


def _read_delay(section: Section) -> Delay:
    """Return a delay; the keys that it needs follow from its distribution."""
    word = section.text("distribution", DelayShape.CONSTANT)
    if word not in tuple(DelayShape):
        fix = f"write one of {', '.join(DelayShape)}"
        section.refuse("distribution", f"{word[:80]!r} is no distribution", fix)
        word = DelayShape.CONSTANT
    shape = DelayShape(word)
    low_key, high_key = _DELAY_KEYS[shape]
    low = section.amount(low_key, parse_duration_ms, 0)
    high = section.required_amount(high_key, parse_duration_ms, low) if high_key else low
    section.finish()
    if high_key and high < low:
        section.refuse(high_key, f"it is less than {low_key}", f"make it at least {low_key}")
    return Delay(shape, low, high)


_DELAY_KEYS = {
    DelayShape.CONSTANT: ("value", ""),
    DelayShape.UNIFORM: ("min", "max"),
    DelayShape.LOGNORMAL: ("median", "p95"),
}


def _read_failures(spec: Section, nodes: dict[str, Node]) -> tuple[Failure, ...]:
    failures: list[Failure] = []
    for section in spec.sections("failures"):
        if len(failures) >= MAX_FAILURES:
            spec.refuse("failures", f"there are more than {MAX_FAILURES}", "describe fewer")
            break
        failures.extend(_read_failure(section, nodes))
    return tuple(failures)


def _read_failure(section: Section, nodes: dict[str, Node]) -> list[Failure]:
    kind_word, node_name = section.text("kind"), section.text("node")
    if kind_word and kind_word not in tuple(FailureKind):
        fix = f"write one of {', '.join(FailureKind)}"
        section.refuse("kind", f"{kind_word[:80]!r} is no failure", fix)
        kind_word = ""
    node = nodes.get(node_name)
    if node_name and node is None:
        section.refuse("node", f"there is no node {node_name[:80]!r}", "name a node of the fleet")
    gpu_index: int | None = None
    if kind_word == FailureKind.GPU_FAILED:
        last = len(node.gpus) - 1 if node is not None and node.gpus else MAX_GPUS_PER_NODE - 1
        gpu_index = section.integer("gpu", 0, last)
    elif section.has("gpu"):
        section.refuse("gpu", "a node goes down as a whole", "take it out, or write GpuFailed")
    at_ms = section.required_amount("at", parse_duration_ms, 0)
    for_ms = section.required_amount("for", parse_duration_ms, 1) if section.has("for") else None
    every_ms = (
        section.required_amount("every", parse_duration_ms, 2) if section.has("every") else None
    )
    section.finish()
    if for_ms == 0:
        section.refuse("for", "it would recover at once", "give it a time, or leave it out")
    if every_ms is not None and (for_ms is None or every_ms <= for_ms):
        fix = "write `for` and an `every` longer than it"
        section.refuse("every", "it would fail again before it has recovered", fix)
    if not kind_word or node is None:
        return []
    return [Failure(FailureKind(kind_word), node_name, at_ms, gpu_index, for_ms, every_ms)]


def _parse_speed(value: object) -> float:
    fix = f"write a number greater than 0, at most {MAX_SPEED:.0f}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise QuantityError("the speed is not a number", fix)
    if not 0 < value <= MAX_SPEED:
        raise QuantityError(f"the speed {value} is out of range", fix)
    return float(value)
