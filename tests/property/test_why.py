"""Every change that is named really starts the job, alone or as a pair, whatever the world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.why import Change, explain_workload
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import NetworkMode, Spreading
from tests.builders import NOW, World
from tests.examples import examples
from tests.property.test_scheduling import worlds

ALONE = replace(Policy(), preemption=replace(Policy().preemption, enabled=False))


def changed(workload: Workload, change: Change) -> Workload:
    """Return the workload as a person would submit it again after reading the change."""
    group, _, name = change.field.partition(".")
    after: Any = change.after
    if group == "resources":
        after = change.after if name == "gpu_model" else int(change.after)
        more = {"gpu_architecture": None} if name == "gpu_model" else {}
        asked = replace(workload.resources, **{name: after}, **more)
        return replace(workload, resources=asked)
    if group == "replicas":
        count = int(change.after)
        minimum = min(workload.replicas.minimum, count)
        fewer = replace(workload.replicas, count=count, minimum=minimum)
        return replace(workload, replicas=fewer)
    placement = workload.placement
    if name == "links_required":
        return replace(workload, placement=replace(placement, links_required=False))
    if name == "spreading":
        return replace(workload, placement=replace(placement, spreading=Spreading(after)))
    if name == "network.mode" and placement.network is not None:
        network = replace(placement.network, mode=NetworkMode(after))
        return replace(workload, placement=replace(placement, network=network))
    raise AssertionError(f"the worlds drawn here need no change of {change.field}")


@examples(80)
@given(worlds(), st.data())
def test_a_change_that_is_named_starts_the_job(world: World, data: st.DataObject) -> None:
    workload = data.draw(st.sampled_from(world.pending))
    found = explain_workload(world.snapshot(), workload, ALONE, NOW, 1)
    world.pending = [workload]
    starts = bool(decide(world.snapshot(), ALONE, NOW, 1).placed)
    assert starts is (found.waiting is None)
    for change in found.changes:
        if change.field.startswith("queue."):
            continue
        asked = changed(workload, change)
        if change.also is not None:
            asked = changed(asked, change.also)
        world.pending = [asked]
        (placed,) = decide(world.snapshot(), ALONE, NOW, 1).placed
        assert change.node_name in {each.node_name for each in placed.replicas}
