"""Who is moved for whom, in small worlds that can be checked by eye."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from gpuplane.core.fleet.facts import Allocation, MigPlacement, NodeFacts
from gpuplane.core.quota.specs import (
    GPU,
    ClusterQueueSpec,
    FlavorResource,
    ResourceGroup,
    ResourceQuota,
)
from gpuplane.core.scheduling.defragmentation import MoveLimits, MovePlan, plan_defragmentation
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.workload import RunningWorkload
from gpuplane.core.workloads import Priority
from tests.builders import CLUSTER, H100, NOW, WorkloadBuilder, World, a_node, a_workload, an_id

HOUR_MS = 3_600_000


def running(
    name: str,
    node: NodeFacts,
    gpus: Sequence[int],
    *,
    asked: WorkloadBuilder | None = None,
    started_at: int = NOW - HOUR_MS,
    checkpoint_at: int | None = NOW - 60_000,
    **rest: object,
) -> RunningWorkload:
    """Return work that holds these GPUs of a node; its last checkpoint is a minute old."""
    workload = (asked or a_workload(name)).gpus(len(gpus)).priority(Priority.LOW).build()
    if rest:
        workload = replace(workload, **rest)  # type: ignore[arg-type]  # fields of a workload
    resources = workload.resources
    held = Allocation(
        workload.job_id,
        node.node_id,
        0,
        tuple(node.gpus[gpu].gpu_id for gpu in gpus),
        1000,
        None,
        resources.cpu_milli,
        resources.memory_mib,
        resources.ephemeral_mib,
    )
    return RunningWorkload(workload, CLUSTER, (held,), started_at, checkpoint_at=checkpoint_at)


def plan(world: World, limits: MoveLimits | None = None) -> MovePlan:
    return plan_defragmentation(world.snapshot(), Policy(), NOW, 1, limits)


def two_nodes() -> tuple[NodeFacts, NodeFacts]:
    return a_node("node-a", 4), a_node("node-b", 4)


def names(made: MovePlan) -> list[UUID]:
    return [move.job_id for move in made.moves]


def test_one_move_empties_a_node_for_a_large_job() -> None:
    a, b = two_nodes()
    small, other = running("small", a, [2]), running("other", b, [0, 1])
    large = a_workload("large").gpus(4).build()
    made = plan(World([a, b], pending=[large], running=[small, other]))
    assert names(made) == [small.workload.job_id]
    assert made.moves[0].target.node_id == b.node_id
    assert [gain.job_id for gain in made.gains] == [large.job_id]
    assert {each.node_id for each in made.gains[0].allocations} == {a.node_id}
    assert (made.gained_gpu_milli, made.lost_gpu_s) == (4000, 60)


def test_what_fits_needs_no_moves() -> None:
    a, b = two_nodes()
    fits = a_workload("fits").gpus(2).build()
    made = plan(World([a, b], pending=[fits], running=[running("small", a, [0])]))
    assert [each.job_id for each in made.starts] == [fits.job_id]
    assert (made.moves, made.gains) == ((), ())


def test_critical_and_unmovable_work_stays() -> None:
    for kept in ({"priority": Priority.CRITICAL}, {"preemptible": False}):
        a, b = two_nodes()
        world = World(
            [a, b],
            pending=[a_workload("large").gpus(4).priority(Priority.CRITICAL).build()],
            running=[running("a", a, [0], **kept), running("b", b, [0], **kept)],
        )
        assert plan(world).moves == ()


def test_nobody_moves_for_a_lower_class() -> None:
    a, b = two_nodes()
    high = running("a", a, [0], priority=Priority.HIGH)
    other = running("b", b, [0], priority=Priority.HIGH)
    large = a_workload("large").gpus(4)
    low = World([a, b], pending=[large.priority(Priority.LOW).build()], running=[high, other])
    equal = World([a, b], pending=[large.priority(Priority.HIGH).build()], running=[high, other])
    assert plan(low).moves == ()
    assert len(plan(equal).moves) == 1


def test_work_that_has_just_begun_or_is_nearly_done_stays() -> None:
    a, b = two_nodes()
    young = running("young", a, [0], started_at=NOW - 1000)
    old = replace(running("old", b, [0]), progress_ratio=0.95)
    world = World([a, b], pending=[a_workload("large").gpus(4).build()], running=[young, old])
    assert plan(world).moves == ()


def test_the_one_that_loses_least_is_moved() -> None:
    a, b = two_nodes()
    dear = running("dear", a, [0], checkpoint_at=NOW - 1_800_000)
    cheap = running("cheap", b, [0], checkpoint_at=NOW - 30_000)
    world = World([a, b], pending=[a_workload("large").gpus(4).build()], running=[dear, cheap])
    assert names(plan(world)) == [cheap.workload.job_id]


def test_a_loss_beyond_the_limit_is_not_worth_it() -> None:
    a, b = two_nodes()
    both = [
        running("a", a, [0], checkpoint_at=NOW - 1_800_000),
        running("b", b, [0], checkpoint_at=NOW - 1_800_000),
    ]
    world = World([a, b], pending=[a_workload("large").gpus(4).build()], running=both)
    assert plan(world, MoveLimits(max_lost_s=449)).moves == ()
    assert len(plan(world, MoveLimits(max_lost_s=450)).moves) == 1


def test_a_chain_makes_room_where_one_move_cannot() -> None:
    # The large job needs a whole node. What is on the first fits only where something small can
    # itself go to the third, whose GPUs are too few for anything else.
    a, b, c = a_node("node-a", 4), a_node("node-b", 4), a_node("node-c", 1)
    middle = running("middle", a, [0, 1])
    small, fixed = running("small", b, [0]), running("fixed", b, [1, 2], preemptible=False)
    large = a_workload("large").gpus(4).build()
    made = plan(World([a, b, c], pending=[large], running=[middle, small, fixed]))
    assert names(made) == [small.workload.job_id, middle.workload.job_id]
    assert [move.target.node_id for move in made.moves] == [c.node_id, b.node_id]
    assert made.gains[0].after_moves == 2


def test_several_leave_one_node_when_each_alone_is_not_enough() -> None:
    a, b = two_nodes()
    world = World(
        [a, b],
        pending=[a_workload("large").gpus(4).build()],
        running=[
            running("x", a, [0]),
            running("y", a, [3]),
            running("z", b, [0, 1], preemptible=False),
        ],
    )
    made = plan(world)
    assert len(made.moves) == 2
    assert {move.source.node_id for move in made.moves} == {a.node_id}


def test_what_all_moves_for_one_gain_lose_together_is_within_the_limit() -> None:
    # A minute each: two minutes for four GPUs are 30 s a GPU, however the room is made.
    a, b = two_nodes()
    c, small = a_node("node-c", 1), running("small", b, [0])
    fixed = running("fixed", b, [1, 2], preemptible=False)
    chain = [running("middle", a, [0, 1]), small, fixed]
    several = [running("x", a, [0]), running("y", a, [3]), running("z", b, [0], preemptible=False)]
    for nodes, at_work in (((a, b, c), chain), ((a, b), several)):
        world = World(list(nodes), pending=[a_workload("large").gpus(4).build()], running=at_work)
        dear = plan(world, MoveLimits(max_lost_s=10**6))
        assert len(dear.moves) == 2
        just_enough = -(-dear.lost_gpu_s // 4)
        assert plan(world, MoveLimits(max_lost_s=just_enough)) == dear
        assert plan(world, MoveLimits(max_lost_s=just_enough - 1)).moves == ()


def test_a_gang_gains_all_its_replicas_or_nothing() -> None:
    a, b, c = a_node("node-a", 4), a_node("node-b", 4), a_node("node-c", 2)
    spread = [running("x", a, [0]), running("y", b, [0])]
    gang = a_workload("gang").gpus(4).gang(2).build()
    made = plan(World([a, b, c], pending=[gang], running=spread))
    assert len(made.moves) == 2
    assert made.gains[0].gpu_milli == 8000
    assert plan(World([a, b], pending=[gang], running=spread)).moves == ()


def test_no_quota_no_moves() -> None:
    a, b = two_nodes()
    queue = ClusterQueueSpec(
        name="default",
        resource_groups=(ResourceGroup((GPU,), (H100,)),),
        quotas={FlavorResource(H100, GPU): ResourceQuota(3000)},
    )
    world = World(
        [a, b],
        [queue],
        pending=[a_workload("large").gpus(4).build()],
        running=[running("x", a, [0]), running("y", b, [0])],
    )
    assert plan(world).moves == ()


def test_jobs_that_are_tied_to_others_stay() -> None:
    a, b = two_nodes()
    near = a_workload("near").placement(separate_from=(an_id("job/far"),))
    tied = [running("near", a, [0], asked=near), running("far", b, [0])]
    world = World([a, b], pending=[a_workload("large").gpus(4).build()], running=tied)
    assert plan(world).moves == ()


def test_gangs_that_run_stay() -> None:
    a, b = two_nodes()
    gang = running("gang", a, [0], asked=a_workload("gang").gang(2))
    second = running("gang", b, [0]).allocations[0]
    both = replace(gang, allocations=(*gang.allocations, replace(second, rank=1)))
    world = World([a, b], pending=[a_workload("large").gpus(4).build()], running=[both])
    assert plan(world).moves == ()


def test_a_mig_instance_is_given_up_for_whoever_may_only_use_that_node() -> None:
    cut = {0: [("1g.10gb", 0)]}
    a, b = a_node("a", 1, mig=cut, labels={"zone": "a"}), a_node("b", 1, mig=cut)
    asked = a_workload("x").mig("1g.10gb")
    holder = running("x", a, [0], asked=asked)
    held = replace(
        holder.allocations[0], mig=MigPlacement(a.gpus[0].gpu_id, "1g.10gb", 0), gpu_milli=1000
    )
    wish = a_workload("wish").mig("1g.10gb").placement(node_selector={"zone": "a"}).build()
    made = plan(World([a, b], pending=[wish], running=[replace(holder, allocations=(held,))]))
    assert names(made) == [holder.workload.job_id]
    target = made.moves[0].target
    assert (target.node_id, target.mig) == (
        b.node_id,
        MigPlacement(b.gpus[0].gpu_id, "1g.10gb", 0),
    )
    assert made.gains[0].allocations[0].node_id == a.node_id
