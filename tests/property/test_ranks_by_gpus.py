"""A node in a state never seen ranks by its GPUs as one that is looked at afresh."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.fleet.facts import NodeFacts
from gpuplane.core.scheduling.bench import Bench
from gpuplane.core.scheduling.fragments import TypicalClass, TypicalMix
from gpuplane.core.scheduling.large import LargeClass
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.topology.named import named_topology
from tests.builders import A100, CLUSTER, H100, NOW, a_node, a_workload
from tests.examples import examples

SIZES = (1, 2, 4, 8)
MIX = TypicalMix(
    tuple(TypicalClass(0, 1000, size, "") for size in SIZES),
    (1, 1, 1, 1),
    tuple((LargeClass(size, 0, 0, ""), 1) for size in (8, 4, 2)),
)


def a_pair(name: str, broken: int) -> NodeFacts:
    """Return a node with an A100 and a H100, one of which does not work."""
    node = a_node(name, 2, unhealthy=(broken,))
    other = a_node(f"{name}-other", 2, model=A100, unhealthy=(broken,))
    return replace(node, gpus=(other.gpus[0], node.gpus[1]))


NODES = (
    a_node("cube-a", topology=named_topology("nvlink-cube-mesh-8", 8)),
    a_node("cube-b", topology=named_topology("nvlink-cube-mesh-8", 8)),
    a_node("switch", topology=named_topology("nvswitch-8", 8)),
    a_node("unknown"),
    a_pair("pair-a", 0),
    a_pair("pair-b", 1),
)


def asked_for() -> list[Workload]:
    found = [a_workload().gpus(1).resources(gpu_model=model).build() for model in (A100, H100)]
    for size in SIZES:
        found.append(a_workload().gpus(size).build())
        for required in (False, True):
            links = a_workload().gpus(size).links(LinkPreference.NVLINK, required=required)
            found.append(links.build())
    found.append(a_workload().share(500).build())
    return found


@examples(60)
@given(
    st.sampled_from(list(PlacementPolicy)),
    st.lists(
        st.tuples(
            st.integers(0, len(NODES) - 1),
            st.integers(0, 255),
            st.sampled_from([400, 1000]),
            st.sampled_from([0, 8_000, 126_000]),
        ),
        min_size=4,
        max_size=20,
    ),
)
def test_what_is_remembered_by_gpus_is_what_a_fresh_look_finds(
    placement: PlacementPolicy, steps: list[tuple[int, int, int, int]]
) -> None:
    policy, asked = Policy(placement=placement), asked_for()
    fleet = Fleet(CLUSTER, NODES)
    bench = Bench(fleet, policy, MIX, NOW, 3)
    held: dict[int, Take] = {}
    for workload in asked:
        assert len(bench.row(workload).ranks) == len(NODES)
    for node, mask, milli, cpu in steps:
        if node in held:
            fleet.release(held.pop(node))
        held[node] = Take(node, mask & int(fleet.present_mask[node]), milli, cpu, 0, 0)
        fleet.allocate(held[node])
        afresh = Fleet(CLUSTER, NODES)
        for take in held.values():
            afresh.allocate(take)
        straight = Bench(afresh, policy, MIX, NOW, 3)
        for workload in asked:
            expected = straight.row(workload).ranks.tolist()
            assert bench.row(workload).ranks.tolist() == expected
