"""What is seen of nodes and GPUs, and how delays are drawn."""

from __future__ import annotations

from collections import Counter
from statistics import median

import pytest

from gpuplane.backends.simulated import Fleet, load_demo_fleet, parse_fleet
from gpuplane.backends.simulated.fleet import Delay, DelayShape, compute_chance
from gpuplane.core.fleet.facts import CLIQUE_LABEL
from tests.clocks import FakeClock
from tests.unit.backends.simulated.conftest import Open


async def test_a_node_is_seen_as_the_fleet_describes_it(open_backend: Open, fleet: Fleet) -> None:
    seen = (await open_backend(fleet).observe()).nodes
    node, described = seen[1], fleet.nodes[1]
    assert (node.name, node.ready, node.rack, node.block) == ("big-02", True, "r2", "b1")
    assert (node.cpu_milli, node.memory_mib, node.ephemeral_mib) == (64_000, 524_288, 1_048_576)
    assert node.topology == "nvswitch-8"
    assert [gpu.gpu_id for gpu in node.gpus] == [gpu.gpu_id for gpu in described.gpus]
    assert {gpu.memory_mib for gpu in node.gpus} == {81_559}
    assert [gpu.numa for gpu in node.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert node.labels["nvidia.com/gpu.count"] == "8"
    assert node.labels["nvidia.com/gpu.product"] == "nvidia-h100-80gb"
    assert "nvidia.com/gpu.count" not in seen[2].labels


async def test_mig_instances_are_seen_where_the_layout_put_them(open_backend: Open) -> None:
    nodes = {node.name: node for node in (await open_backend(load_demo_fleet()).observe()).nodes}
    gpus = nodes["a100-03"].gpus
    assert [gpu.mig_enabled for gpu in gpus] == [True] * 6 + [False] * 2
    assert gpus[0].mig_instances == tuple(("1g.10gb", start) for start in range(7))
    assert gpus[4].mig_instances == (("3g.40gb", 0), ("3g.40gb", 4))
    assert gpus[7].mig_instances == ()


NVL72 = """
apiVersion: gpuplane.io/v1
kind: Fleet
metadata: {name: racks}
spec:
  racks: [{name: r1, block: b1}, {name: r2, block: b1}]
  nodeGroups:
    - name: tray
      count: 36
      gpus: {model: GB200, count: 4}
      topology: nvl72-node-4
      cpu: 144
      memory: 960Gi
      ephemeralStorage: 1Ti
      racks: [r1, r2]
"""


async def test_the_trays_of_an_nvl72_rack_are_one_clique(open_backend: Open) -> None:
    seen = (await open_backend(parse_fleet(NVL72, "racks.yaml")).observe()).nodes
    cliques = Counter(node.labels[CLIQUE_LABEL] for node in seen)
    assert cliques == {"r1.1": 18, "r2.1": 18}
    assert sum(len(node.gpus) for node in seen if node.rack == "r1") == 72


async def test_the_generation_stands_still_while_nothing_changes(
    open_backend: Open, fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(fleet)
    first = await backend.observe()
    await clock.advance(100_000)
    assert (await backend.observe()).generation == first.generation


@pytest.mark.parametrize(
    ("delay", "least", "middle", "most"),
    [
        (Delay(DelayShape.CONSTANT, 500), 500, 500, 500),
        (Delay(DelayShape.UNIFORM, 1000, 3000), 1000, 2000, 3000),
        (Delay(DelayShape.LOGNORMAL, 2000, 6000), 0, 2000, 6000),
    ],
)
def test_delays_follow_their_distribution(delay: Delay, least: int, middle: int, most: int) -> None:
    drawn = sorted(delay.compute_ms(compute_chance(7, str(n))) for n in range(4000))
    assert drawn[0] >= least
    assert median(drawn) == pytest.approx(middle, rel=0.05, abs=1)
    assert drawn[3800] == pytest.approx(most, rel=0.1)
