"""Where and when a blocked head is expected to start."""

from __future__ import annotations

from gpuplane.core.fleet.facts import Allocation, NodeFacts
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.workload import RunningWorkload
from gpuplane.core.workloads import Priority
from tests.builders import CLUSTER, NOW, World, a_node, a_workload


def a_share(name: str, node: NodeFacts, gpu: int, milli: int, ends_in_s: int) -> RunningWorkload:
    workload = a_workload(name).share(milli).priority(Priority.CRITICAL).build()
    allocation = Allocation(
        workload.job_id, node.node_id, 0, (node.gpus[gpu].gpu_id,), milli, None, 100, 100
    )
    ends_at = NOW + ends_in_s * 1000
    return RunningWorkload(workload, CLUSTER, (allocation,), NOW - 4_000_000, expected_end=ends_at)


def test_a_head_keeps_a_place_from_when_a_whole_gpu_is_free_not_only_the_sum_of_parts() -> None:
    # After 1,000 s 1,400 of 2,000 milli-GPU are free, but no GPU is whole before 3,000 s.
    node = a_node("shared", 2)
    shares = [(600, 1000), (300, 3000)]
    running = [
        a_share(f"part-{gpu}-{milli}", node, gpu, milli, ends)
        for gpu in (0, 1)
        for milli, ends in shares
    ]
    head = a_workload("head").priority(Priority.HIGH).build()
    small = a_workload("small").share(100).build()
    waiting = decide(World([node], (), [head, small], running).snapshot(), Policy(), NOW, 1).waiting
    said = {each.job_id: each.reason for each in waiting}
    # NOW is 08:53:20; 50 minutes on it is 09:43:20, and minutes are rounded up.
    assert "A place is kept for it from 2025-10-09T09:44Z on." in said[head.job_id].sentence
    assert said[small.job_id].word is Word.BEHIND_HEAD
