"""The openb trace where a clone has it, and small lists of our own.

`GPUPLANE_DATA` names the folder of the published data (default: `../shared/data` beside the
repository).
"""

from __future__ import annotations

import gzip
import os
from functools import cache
from pathlib import Path

import pytest

from gpuplane.core.simulation.placement.files import TraceNode, TracePod, parse_nodes, parse_pods
from gpuplane.core.simulation.placement.replays import (
    Order,
    Report,
    capacity_of,
    list_arrivals,
    list_nodes,
    make_placer,
    replay,
)

ROOT = Path(__file__).resolve().parents[5]
DATA = Path(os.environ.get("GPUPLANE_DATA", ROOT.parent / "shared" / "data")) / "openb"


def needs_trace() -> None:
    """Leave the test out where the trace is not."""
    if not DATA.is_dir():
        pytest.skip("the openb trace is not here; GPUPLANE_DATA names its folder")


@cache
def trace_nodes() -> tuple[TraceNode, ...]:
    """Return the published nodes with GPUs."""
    with (DATA / "openb_node_list_gpu_node.csv").open(newline="") as lines:
        return parse_nodes(lines)


@cache
def trace_pods(name: str = "default") -> tuple[TracePod, ...]:
    """Return one of the published pod lists."""
    with gzip.open(DATA / f"openb_pod_list_{name}.csv.gz", "rt", newline="") as lines:
        return parse_pods(lines)


def list_names() -> list[str]:
    """Return the names of the pod lists that are here."""
    return sorted(
        path.name.removeprefix("openb_pod_list_").removesuffix(".csv.gz")
        for path in DATA.glob("openb_pod_list_*.csv.gz")
    )


def run(
    policy: str,
    nodes: tuple[TraceNode, ...],
    pods: tuple[TracePod, ...],
    order: Order = Order.FILE,
    seed: int = 42,
    per_mille: int = 1300,
) -> Report:
    """Return the report of one replay."""
    capacity = capacity_of(nodes)
    arrivals = list_arrivals(pods, capacity, order, per_mille, seed)
    placer = make_placer(policy, list_nodes(nodes, order, seed), pods, seed)
    return replay(arrivals, placer, capacity)


def a_pod(name: str = "pod", gpus: int = 1, milli: int = 1000, **rest: object) -> TracePod:
    """Return a pod of one CPU and one GiB."""
    shape: dict[str, object] = {"cpu_milli": 1000, "memory_mib": 1024, "models": "", **rest}
    return TracePod(name=name, gpu_count=gpus, gpu_milli=milli if gpus else 0, **shape)  # type: ignore[arg-type]  # fields of a pod


def some_nodes(count: int = 2, gpus: int = 4, model: str = "T4") -> tuple[TraceNode, ...]:
    """Return equal nodes."""
    return tuple(TraceNode(f"node-{i}", 64_000, 262_144, gpus, model) for i in range(count))
