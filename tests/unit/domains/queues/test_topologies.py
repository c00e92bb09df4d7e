"""What Kueue refuses of a Topology is refused here, by field, before it gets there."""

from __future__ import annotations

import pytest

from gpuplane.domains.queues.rules.topologies import (
    HOSTNAME,
    TopologySpec,
    encode_topology,
    find_topology_problem,
    topology_of,
)

FLAVORS = {
    "h100": {"nodeLabels": {"nvidia.com/gpu.product": "H100"}},
    "any": {},
    "taken": {"nodeLabels": {"a": "b"}, "topologyName": "other"},
}
RACKS = ("example.com/block", "example.com/rack", HOSTNAME)


def test_levels_down_to_the_host_and_flavors_with_labels_are_taken_and_kept() -> None:
    spec = TopologySpec("racks", RACKS, ("h100",))
    assert find_topology_problem(spec, (), FLAVORS) is None
    assert topology_of("racks", encode_topology(spec)) == spec


@pytest.mark.parametrize(
    ("levels", "flavors", "field", "said"),
    [
        ((), (), "levels", "1 to 16 levels"),
        (tuple(f"l{n}" for n in range(17)), (), "levels", "1 to 16 levels"),
        (("no/label/",), (), "levels", "no name of a node label"),
        (("a" * 317,), (), "levels", "no name of a node label"),
        (("rack", "rack"), (), "levels", "named twice"),
        ((HOSTNAME, "rack"), (), "levels", "only be the last level"),
        (RACKS, ("nothing",), "flavors", "no ResourceFlavor 'nothing'"),
        (RACKS, ("any",), "flavors", "no node label"),
        (RACKS, ("taken",), "flavors", "has the Topology other"),
    ],
)
def test_each_fault_names_its_field(
    levels: tuple[str, ...], flavors: tuple[str, ...], field: str, said: str
) -> None:
    problem = find_topology_problem(TopologySpec("racks", levels, flavors), (), FLAVORS)
    assert problem is not None
    assert problem.field == field
    assert said in problem.sentence


def test_a_flavor_that_another_declaration_names_is_taken() -> None:
    other = TopologySpec("first", RACKS, ("h100",))
    problem = find_topology_problem(TopologySpec("second", RACKS, ("h100",)), (other,), FLAVORS)
    assert problem is not None
    assert "has the Topology first" in problem.sentence
