"""Which label is a rack is told by the Topologies of the flavors of a queue."""

from __future__ import annotations

from typing import Any

from gpuplane.domains.queues.rules.levels import find_laid_out, find_level
from gpuplane.domains.queues.rules.seen import Seen, SeenKind

RACKS = ("example.com/rack", "example.com/clique")


def seen(kind: SeenKind, name: str, **spec: Any) -> Seen:
    """Return an object as a cluster shows it."""
    return Seen(kind, "", name, True, spec)


def topology(name: str, *levels: str) -> Seen:
    """Return a Topology of these node labels."""
    return seen(SeenKind.TOPOLOGY, name, levels=[{"nodeLabel": each} for each in levels])


HERE = (
    seen(
        SeenKind.CLUSTER_QUEUE,
        "team",
        resourceGroups=[{"flavors": [{"name": "l4"}, {"name": "t4"}, {"name": "lost"}]}],
    ),
    seen(SeenKind.CLUSTER_QUEUE, "other", resourceGroups=[{"flavors": [{"name": "t4"}]}]),
    seen(SeenKind.FLAVOR, "l4", topologyName="wide"),
    seen(SeenKind.FLAVOR, "t4"),
    seen(SeenKind.FLAVOR, "lost", topologyName="gone"),
    topology("wide", "example.com/clique", "example.com/rack"),
    topology("nobodys", "example.com/block"),
)


def test_the_best_known_label_that_is_a_level_stands_for_what_is_asked() -> None:
    assert find_level(HERE, "team", RACKS) == "example.com/rack"
    assert find_level(HERE, "team", RACKS[::-1]) == "example.com/clique"


def test_a_level_of_no_flavor_of_the_queue_is_none() -> None:
    assert find_level(HERE, "team", ("example.com/block",)) is None
    assert find_level(HERE, "other", RACKS) is None
    assert find_level(HERE, "nobody", RACKS) is None


def test_only_flavors_whose_topology_is_there_are_laid_out() -> None:
    assert find_laid_out(HERE, "team") == {"l4": frozenset(RACKS)}
