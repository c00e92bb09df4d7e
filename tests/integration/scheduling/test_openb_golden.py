"""The default policy places a production trace exactly as the published algorithm does.

Protocol and figures: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, with the openb trace;
pods in the order of the file, over and over, until arrivals reach 130 % of the GPUs.
"""

from __future__ import annotations

import csv
import gzip
import os
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.fleet.facts import GpuFacts, NodeFacts
from gpuplane.core.ids import GpuId, NodeId
from gpuplane.core.scheduling.bench import Bench
from gpuplane.core.scheduling.fragmentation import compute_typical_mix
from gpuplane.core.scheduling.placement import place_workload
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import ResourceRequest
from tests.builders import CLUSTER, NOW, a_workload, an_id

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("GPUPLANE_DATA", ROOT.parent / "shared" / "data")) / "openb"


def read_nodes() -> list[NodeFacts]:
    with (DATA / "openb_node_list_gpu_node.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [
        NodeFacts(
            node_id=NodeId(an_id(row["sn"])),
            name=row["sn"],
            cpu_milli=int(row["cpu_milli"]),
            memory_mib=int(row["memory_mib"]),
            gpus=tuple(
                GpuFacts(GpuId(f"{row['sn']}/{index}"), index, row["model"], 1)
                for index in range(int(row["gpu"]))
            ),
        )
        for row in rows
    ]


def read_pods() -> list[Workload]:
    base = a_workload().build()
    with gzip.open(DATA / "openb_pod_list_default.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    return [
        replace(
            base,
            resources=ResourceRequest(
                gpu_count=int(row["num_gpu"]),
                gpu_milli=min(1000, int(row["gpu_milli"])) if int(row["num_gpu"]) else 1000,
                cpu_milli=int(row["cpu_milli"]),
                memory_mib=int(row["memory_mib"]),
                ephemeral_mib=0,
            ),
        )
        for row in rows
    ]


def test_the_fragmentation_policy_equals_the_published_golden_run() -> None:
    if not DATA.is_dir():
        pytest.skip("the openb trace is not here; GPUPLANE_DATA names its folder")
    pods = read_pods()
    fleet = Fleet.from_nodes(CLUSTER, read_nodes())
    capacity = int(fleet.gpu_free_milli.sum())
    mix = compute_typical_mix(pods, share=0.95, max_classes=1000)
    assert len(mix.classes) == 35
    bench = Bench(fleet, Policy(), mix, NOW, 1)
    arrived = placed = allocated = arrivals = 0
    for pod in cycle(pods):
        asked = pod.resources.gpu_count * pod.resources.gpu_milli
        if (arrived + asked) * 10 > capacity * 13:
            break
        arrived += asked
        arrivals += 1
        if place_workload(pod, bench, None) is not None:
            placed += 1
            allocated += asked
    assert (arrivals, placed, allocated) == (10_891, 8_395, 5_874_730)
    assert int(fleet.cpu_free.sum()) == 16_719_720
