"""What is said of work that waits: the true reason, the true number and a fix that can help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplane.core.quota.specs import (
    GPU,
    ClusterQueueSpec,
    FlavorResource,
    PreemptionPolicy,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
)
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.workloads import Priority
from tests.builders import A100, H100, NOW, WorkloadBuilder, World, a_node, a_workload, an_id


def said(world: World, *builders: WorkloadBuilder) -> Reason:
    """Return why the only one that waits does."""
    world.pending = [each.build() for each in builders]
    (waiting,) = decide(world.snapshot(), Policy(), NOW, 1).waiting
    return waiting.reason


@pytest.mark.parametrize(
    ("gang", "needs", "fix"),
    [
        ((4, 1), "Needs 4 replicas", "state a minimum of at least 2"),
        ((4, 3), "Needs at least 3 of 4 replicas", "lower the minimum"),
        ((3, 3), "Needs 3 replicas", "lower the minimum"),
    ],
)
def test_a_gang_says_how_many_it_needs_and_what_would_help(
    gang: tuple[int, int], needs: str, fix: str
) -> None:
    reason = said(World([a_node("a", 4), a_node("b", 4)]), a_workload().gpus(3).gang(*gang))
    assert reason.word is Word.GANG
    assert reason.sentence == f"{needs} of 3 GPUs at once; 2 fit now."
    assert fix in reason.fix


def test_nodes_whose_gpus_are_cut_are_not_just_too_small() -> None:
    cut = a_node("cut", 8, mig=dict.fromkeys(range(6), (("1g.10gb", 0),)))
    reason = said(World([cut, a_node("small", 2)]), a_workload().gpus(4))
    assert reason.word is Word.NODE_TOO_SMALL
    assert "On 1 node GPUs are cut by MIG and cannot be had whole." in reason.sentence
    assert "switched off" in reason.fix
    assert "MIG" not in said(World([a_node("small", 2)]), a_workload().gpus(4)).sentence


def test_a_gang_of_two_is_not_told_to_lower_its_minimum() -> None:
    reason = said(World([a_node("a", 4)]), a_workload().gpus(3).gang(2, 2))
    assert reason.sentence == "Needs 2 replicas of 3 GPUs at once; 1 fit now."
    assert "minimum" not in reason.fix


def test_a_gang_that_only_its_flavors_part_is_not_told_that_all_fit() -> None:
    quotas = {FlavorResource(each, GPU): ResourceQuota(8000) for each in (H100, A100)}
    queue = ClusterQueueSpec(
        name="parted",
        cohort=None,
        resource_groups=(ResourceGroup((GPU,), (H100, A100)),),
        quotas=quotas,
        preemption=PreemptionPolicy(WithinClusterQueue.NEVER, ReclaimWithinCohort.NEVER),
    )
    world = World([a_node("h", 4), a_node("a", 4, model=A100)], [queue])
    reason = said(world, a_workload("gang", "parted").gpus(4).gang(2, 2))
    assert reason.word is Word.QUOTA_EXCEEDED
    assert reason.sentence == (
        "Needs 2 replicas of 4 GPUs at once; no flavor with quota left has room for that many."
    )


def test_a_job_whose_neighbour_is_placed_after_it_waits_for_the_neighbour() -> None:
    near = a_workload("near").priority(Priority.HIGH)
    near = near.placement(co_locate_with=(an_id("job/anchor"),))
    world = World([a_node("a")])
    reason = said(world, near, a_workload("anchor"))
    assert reason.word is Word.AFFINITY
    assert reason.sentence == (
        "Needs 1 GPU near a job that got its own place only after its turn; it waits for that."
    )


def test_replicas_on_one_node_are_said_to_be_on_that_node() -> None:
    world = World([a_node("only", 4)], pending=[a_workload().gpus(2).gang(2).build()])
    (placed,) = decide(world.snapshot(), Policy(), NOW, 1).placed
    assert "2 replicas on node only, " in " ".join(placed.explanation)


@pytest.mark.parametrize(
    ("written_s_ago", "since"),
    [(None, "its start"), (7200, "its start"), (600, "its last checkpoint")],
)
def test_a_receipt_names_the_instant_from_which_it_counts(
    written_s_ago: int | None, since: str
) -> None:
    world = World([a_node("a", 1)], pending=[a_workload("low").priority(Priority.LOW).build()])
    start = NOW - 3_600_000
    world.apply(decide(world.snapshot(), Policy(), start, 1), start)
    written = None if written_s_ago is None else NOW - written_s_ago * 1000
    world.running = [replace(each, checkpoint_at=written) for each in world.running]
    world.pending = [a_workload("urgent").priority(Priority.HIGH).build()]
    (preempting,) = decide(world.snapshot(), Policy(), NOW, 1).preempting
    (receipt,) = preempting.receipts
    lost = 600 if since == "its last checkpoint" else 3600
    assert receipt.sentence == f"Ran 3600 s; {lost} GPU-seconds since {since} are lost."
