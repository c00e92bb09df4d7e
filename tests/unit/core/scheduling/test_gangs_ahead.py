"""A gang that waits behind a gang which starts in the same cycle."""

from __future__ import annotations

from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import Policy
from tests.builders import NOW, World, a_node, a_workload


def test_what_a_gang_that_just_started_holds_on_several_nodes_is_given_back_once() -> None:
    world = World([a_node(f"node-{index}", 4) for index in range(2)])
    world.pending = [
        a_workload(f"gang-{index}")
        .gpus(4)
        .gang(2, 2)
        .age(100 - index)
        .having(estimated_duration_s=60)
        .build()
        for index in range(4)
    ]
    decision = decide(world.snapshot(), Policy(), NOW, 1)
    assert (len(decision.placed), len(decision.waiting)) == (1, 3)
