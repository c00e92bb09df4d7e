"""Makes a fleet from the node list of a published cluster trace.

Owns the reader of the `openb` format (Alibaba, clusterdata v2023): one row a node with the columns
sn, cpu_milli, memory_mib, gpu, model. What the trace does not tell is not made up: no links, no
racks, no prices.
"""

import csv
from pathlib import Path

from gpuplane.backends.simulated.fleet import (
    MAX_GPUS_PER_NODE,
    MAX_NODES,
    Fleet,
    Gpu,
    Node,
    make_gpu_id,
)
from gpuplane.backends.simulated.reading import Collector, FleetError
from gpuplane.core.hardware import find_model, nearest_models
from gpuplane.kit.errors import FieldError

COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
EPHEMERAL_MIB = 100 * 1024 * 1024
"""Disk of every node, which the trace leaves out: so much that it is never the reason to wait."""


def fleet_from_trace(path: Path, *, name: str) -> Fleet:
    """Return the fleet of a node list.

    Args:
        path: A CSV file with the columns of `COLUMNS`, in any order.
        name: Name of the fleet, on which the ids of its GPUs depend.

    Raises:
        FleetError: With every row that cannot be read, its column, the reason and the fix.
    """
    collector = Collector(str(path))
    nodes: dict[str, Node] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                collector.add("row 1", f"no column {missing[0]}", f"name {', '.join(COLUMNS)}")
                collector.raise_if_any()
            for row in reader:
                node = _read_node(row, f"row {reader.line_num}", name, collector)
                if node.name in nodes:
                    where = f"row {reader.line_num}.sn"
                    collector.add(where, f"the node {node.name!r} exists already", "keep one")
                nodes[node.name] = node
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        fix = "name a readable CSV file in UTF-8"
        raise FleetError(str(path), (FieldError("(file)", str(error), fix),)) from error
    if not 0 < len(nodes) <= MAX_NODES:
        collector.add("(file)", f"it holds {len(nodes)} nodes", f"write 1 to {MAX_NODES}")
    collector.raise_if_any()
    return Fleet(name=name, nodes=tuple(nodes.values()), description=f"From the trace {path.name}.")


def _read_node(row: dict[str, str], where: str, fleet_name: str, collector: Collector) -> Node:
    def whole(column: str, low: int, high: int) -> int:
        text = row[column] or ""
        if text.isascii() and text.isdigit() and low <= int(text[:19]) <= high:
            return int(text)
        fix = f"write a whole number from {low} to {high}"
        collector.add(f"{where}.{column}", f"{text[:40]!r} stands here", fix)
        return low

    name = row["sn"] or ""
    if not name:
        collector.add(f"{where}.sn", "it is empty", "give the node a name")
    gpu_count = whole("gpu", 0, MAX_GPUS_PER_NODE)
    written = row["model"] or ""
    model = find_model(written) if written else None
    if gpu_count and model is None:
        near = ", ".join(nearest_models(written))
        reason = f"the GPU model {written[:40]!r} is not known"
        collector.add(f"{where}.model", reason, f"nearest: {near}")
    gpus = (
        ()
        if model is None
        else tuple(
            Gpu(make_gpu_id(fleet_name, name, index), index, model.name, model.memory_mib)
            for index in range(gpu_count)
        )
    )
    return Node(
        name=name,
        cpu_milli=whole("cpu_milli", 1, 1 << 30),
        memory_mib=whole("memory_mib", 1, 1 << 40),
        ephemeral_mib=EPHEMERAL_MIB,
        gpus=gpus,
    )
