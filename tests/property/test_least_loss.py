"""The victims are those that lose least, beside every other set that could have been stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

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
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.pieces import MAX_EXACT
from gpuplane.core.scheduling.policy import Backfill, Policy, PreemptionLimits
from gpuplane.core.scheduling.preemption import compute_loss, may_stop, victim_value
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import (
    NetworkLevel,
    NetworkMode,
    NetworkRequest,
    Priority,
    ReplicaRequest,
    Spreading,
)
from tests.builders import H100, NOW, World, a_node, a_workload
from tests.examples import examples

Cost = tuple[int, bool, int, int]
"""Highest class, anyone nearly done, GPU-seconds lost together, how many."""
PAIR = FlavorResource(H100, GPU)


def cost_of(some: Sequence[RunningWorkload]) -> Cost:
    losses = [compute_loss(each, NOW) for each in some]
    return (
        max(victim_value(each.workload) for each in some),
        any(loss.is_nearly_done for loss in losses),
        sum(loss.lost_gpu_s for loss in losses),
        len(some),
    )


def policy_of(limit: int) -> Policy:
    # A place that is kept for a head is no room, and would have to be kept in the trials below.
    limits = PreemptionLimits(min_run_s=300, per_cluster_hour=limit)
    return Policy(backfill=Backfill.GREEDY, preemption=limits)


def list_sets(world: World, policy: Policy) -> list[list[RunningWorkload]]:
    """Return every set that may be stopped, cheapest first."""
    asker = world.pending[0]
    young = NOW - policy.preemption.min_run_s * 1000
    open_to_it = [
        each
        for each in world.running
        if may_stop(asker, each.workload) and each.started_at <= young
    ]
    most = min(len(open_to_it), policy.preemption.per_cluster_hour)
    sets = [list(some) for k in range(1, most + 1) for some in combinations(open_to_it, k)]
    return sorted(sets, key=cost_of)


def fits_without(world: World, some: Sequence[RunningWorkload], policy: Policy) -> bool:
    kept = [each for each in world.running if each not in some]
    trial = World(world.nodes, world.queues, list(world.pending), kept, world.quota)
    return bool(decide(trial.snapshot(), policy, NOW, 1).placed)


def find_cheapest(world: World, policy: Policy) -> Cost | None:
    """Return the cost of the cheapest set without which it starts, by trying them all."""
    sets = list_sets(world, policy)
    everyone = sorted({id(each): each for some in sets for each in some}.values(), key=id)
    if not sets or not fits_without(world, everyone, policy):
        return None
    return next((cost_of(some) for some in sets if fits_without(world, some, policy)), None)


def victims_of(world: World, decision: Decision) -> list[RunningWorkload]:
    by_id = {each.workload.job_id: each for each in world.running}
    return [by_id[victim] for verdict in decision.preempting for victim in verdict.victims]


@st.composite
def running_workloads(draw: st.DrawFn, index: int) -> Workload:
    made = a_workload(f"running-{index}").gpus(
        draw(st.sampled_from([1, 1, 1, 2, 2, 3])),
        cpu_milli=draw(st.sampled_from([100, 100, 3_000])),
    )
    if draw(st.integers(0, 4)) == 4:
        made = made.share(draw(st.sampled_from([300, 600])))
    if draw(st.integers(0, 3)) == 3:
        made = made.gang(draw(st.sampled_from([2, 3])))
    return made.having(
        priority=draw(
            st.sampled_from([Priority.SPOT, Priority.SPOT, Priority.LOW, Priority.NORMAL])
        ),
        preemptible=False if draw(st.integers(0, 9)) == 9 else None,
    ).build()


@st.composite
def preemptors(draw: st.DrawFn, counts: Sequence[int]) -> Workload:
    count = draw(st.sampled_from(counts))
    made = a_workload("urgent").gpus(
        draw(st.sampled_from([2, 3, 4] if count == 1 else [1, 2, 3])),
        cpu_milli=draw(st.sampled_from([100, 5_000])),
    )
    replicas = ReplicaRequest(count, draw(st.integers(1, count)), count, draw(st.booleans()))
    required = NetworkRequest(NetworkLevel.RACK, NetworkMode.REQUIRED)
    return (
        made.priority(draw(st.sampled_from([Priority.HIGH, Priority.HIGH, Priority.NORMAL])))
        .having(replicas=replicas)
        .placement(
            spreading=draw(st.sampled_from([Spreading.ANY, Spreading.ANY, *Spreading])),
            network=required if count > 1 and draw(st.integers(0, 5)) == 5 else None,
        )
        .build()
    )


@st.composite
def full_worlds(
    draw: st.DrawFn, queues: Sequence[ClusterQueueSpec] = (), counts: Sequence[int] = (1, 2, 3)
) -> World:
    """Draw a few nodes with at most `MAX_EXACT` running workloads, and one that wants their place.

    How long each ran, its checkpoint and its progress are drawn, so that losses differ.
    """
    nodes = [
        a_node(f"node-{index}", draw(st.sampled_from([4, 4, 4, 3])), cpu_milli=16_000,
               rack=draw(st.sampled_from(["r1", "r2", ""])))
        for index in range(draw(st.integers(2, 3)))
    ]  # fmt: skip
    world = World(nodes, queues)
    world.pending = [draw(running_workloads(index)) for index in range(MAX_EXACT)]
    world.apply(decide(world.snapshot(), Policy(), NOW - 9_000_000, 1), NOW - 9_000_000)
    world.running = [
        replace(
            each,
            started_at=NOW - draw(st.integers(100, 3_000)) * 1000,
            checkpoint_at=NOW - draw(st.integers(0, 900)) * 1000 if draw(st.booleans()) else None,
            progress_ratio=draw(st.sampled_from([None, None, 0.5, 0.95])),
        )
        for each in world.running
    ]
    world.pending = [draw(preemptors(counts))]
    return world


LIMITS = st.sampled_from([10, 10, 2, 1])


@examples(40)
@given(full_worlds(counts=(1,)), LIMITS)
def test_victims_for_one_replica_are_the_cheapest_set_of_all(world: World, limit: int) -> None:
    """Gangs may be among the victims; the limit of the hour binds in some."""
    check_the_cheapest(world, limit)


@examples(60)
@given(full_worlds(counts=(2, 2, 3)), LIMITS)
def test_victims_for_several_replicas_are_the_cheapest_set_of_all(world: World, limit: int) -> None:
    """Gangs and others, on any nodes, on one, on one each, in one rack."""
    check_the_cheapest(world, limit)


def check_the_cheapest(world: World, limit: int) -> None:
    policy = policy_of(limit)
    decision = decide(world.snapshot(), policy, NOW, 1)
    if decision.placed:
        return
    victims = victims_of(world, decision)
    assert (cost_of(victims) if victims else None) == find_cheapest(world, policy)


def a_queue(name: str, gpus: int, cohort: str | None = None) -> ClusterQueueSpec:
    return ClusterQueueSpec(
        name=name,
        cohort=cohort,
        resource_groups=(ResourceGroup((GPU,), (H100,)),),
        quotas={PAIR: ResourceQuota(gpus * 1000)},
        preemption=PreemptionPolicy(
            WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.LOWER_PRIORITY
        ),
    )


@examples(40)
@given(
    st.integers(2, 8).flatmap(lambda gpus: full_worlds([a_queue("default", gpus)])),
    st.integers(1, 4),
)
def test_where_a_set_keeps_the_limit_of_the_hour_one_is_found_for_quota_too(
    world: World, limit: int
) -> None:
    policy = policy_of(limit)
    decision = decide(world.snapshot(), policy, NOW, 1)
    if decision.placed:
        return
    victims = victims_of(world, decision)
    assert len(victims) <= limit
    assert bool(victims) == (find_cheapest(world, policy) is not None)
    if victims:
        assert fits_without(world, victims, policy)
        for spared in victims:
            rest = [each for each in victims if each is not spared]
            assert not fits_without(world, rest, policy)
