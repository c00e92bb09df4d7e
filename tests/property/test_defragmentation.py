"""What every plan of moves keeps, whatever runs where and whoever waits."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import event, given
from hypothesis import strategies as st

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.fleet.facts import Allocation, NodeFacts
from gpuplane.core.scheduling.bench import Bench
from gpuplane.core.scheduling.defragmentation import (
    Gain,
    MoveLimits,
    MovePlan,
    plan_defragmentation,
)
from gpuplane.core.scheduling.fragmentation import compute_typical_mix
from gpuplane.core.scheduling.placement import count_placeable, needed_replicas
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import PRIORITY_VALUES, Priority
from tests.builders import CLUSTER, NOW, World, a_node, a_workload

FREELY = MoveLimits(max_moves=1000, max_moves_each=4, max_lost_s=1_000_000)
LONG_AGO = NOW - 3_600_000


def a_filling(random: Random, node: NodeFacts) -> list[RunningWorkload]:
    """Return work on a node, with gaps between its GPUs."""
    running: list[RunningWorkload] = []
    cpu_left, free = node.cpu_milli, list(range(len(node.gpus)))
    while free:
        if random.random() < 0.3:
            free = free[1:]  # a gap
            continue
        share = random.choice([1000, 1000, 1000, 500, 300])
        count = 1 if share < 1000 else min(len(free), random.choice([1, 1, 2]))
        cpu = random.choice([1_000, 1_000, 4_000])
        if cpu > cpu_left:
            break
        cpu_left -= cpu
        gpus, free = free[:count], free[count:]
        asked = a_workload(f"{node.name}/{gpus[0]}").gpus(count, gpu_milli=share, cpu_milli=cpu)
        workload = replace(
            asked.build(),
            priority=random.choice([Priority.LOW, Priority.LOW, Priority.NORMAL, *Priority]),
            preemptible=random.choice([None] * 5 + [False]),
        )
        held = Allocation(
            workload.job_id,
            node.node_id,
            0,
            tuple(node.gpus[gpu].gpu_id for gpu in gpus),
            share,
            None,
            cpu,
            workload.resources.memory_mib,
            workload.resources.ephemeral_mib,
        )
        started = random.choice([LONG_AGO] * 5 + [NOW - 1_000])
        progress = random.choice([None] * 5 + [0.95])
        running.append(
            RunningWorkload(workload, CLUSTER, (held,), started, progress_ratio=progress)
        )
    return running


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a few half-used nodes and work for several GPUs that waits."""
    nodes = [
        a_node(f"node-{i}", draw(st.sampled_from([8, 8, 4])), cpu_milli=32_000, memory_mib=262_144)
        for i in range(draw(st.integers(2, 4)))
    ]
    # A seed instead of draws: those tend to the smallest, and empty nodes need no moves.
    random = Random(draw(st.integers(0, 1 << 32)))
    running = [each for node in nodes for each in a_filling(random, node)]
    pending = []
    for i in range(draw(st.integers(1, 4))):
        asked = a_workload(f"pending-{i}").gpus(draw(st.sampled_from([4, 4, 3, 8, 2])))
        kind = draw(st.sampled_from(["one", "one", "one", "share", "gang"]))
        if kind == "share":
            asked = a_workload(f"pending-{i}").share(draw(st.sampled_from([400, 700])))
        if kind == "gang":
            asked = asked.gang(2)
        pending.append(
            asked.priority(
                draw(st.sampled_from([Priority.HIGH, Priority.NORMAL, *Priority]))
            ).build()
        )
    return World(nodes, pending=pending, running=running)


policies = st.sampled_from(
    [PlacementPolicy.FRAGMENTATION, PlacementPolicy.BALANCED, PlacementPolicy.LEAST_LOADED]
).map(lambda name: Policy(placement=name))


def plan(world: World, policy: Policy, limits: MoveLimits = FREELY) -> MovePlan:
    made = plan_defragmentation(world.snapshot(), policy, NOW, 1, limits)
    event(f"{min(len(made.moves), 3)} moves")
    return made


def take(fleet: Fleet, allocation: Allocation) -> None:
    """Take what is allocated; a GPU sold twice is refused by the fleet, the rest is checked."""
    fleet.allocate(fleet.take_of(allocation))
    assert fleet.cpu_free.min() >= 0
    assert fleet.memory_free.min() >= 0
    assert fleet.ephemeral_free.min() >= 0


def start(fleet: Fleet, gain: Gain) -> None:
    for allocation in gain.allocations:
        take(fleet, allocation)


def bench(fleet: Fleet, policy: Policy) -> Bench:
    return Bench(fleet, policy, compute_typical_mix([], share=0.95, max_classes=4), NOW, 1)


def has_room(fleet: Fleet, workload: Workload, policy: Policy) -> bool:
    needed = needed_replicas(workload.replicas)
    return count_placeable(workload, bench(fleet, policy), None) >= needed


def after(world: World, made: MovePlan) -> World:
    """Return the world with the plan carried out."""
    held = {move.job_id: move.target for move in made.moves}
    running = [
        replace(each, allocations=(held[each.workload.job_id],), started_at=NOW)
        if each.workload.job_id in held
        else each
        for each in world.running
    ]
    started = {each.job_id: each for each in (*made.starts, *made.gains)}
    for workload in world.pending:
        if workload.job_id in started:
            allocations = started[workload.job_id].allocations
            running.append(RunningWorkload(workload, CLUSTER, allocations, NOW))
    pending = [each for each in world.pending if each.job_id not in started]
    return World(world.nodes, world.queues, pending, running)


@given(worlds(), policies)
def test_every_move_finds_room_in_its_order_and_nothing_is_sold_twice(
    world: World, policy: Policy
) -> None:
    made = plan(world, policy)
    fleet = world.snapshot_fleet()
    for each in made.starts:
        start(fleet, each)
    gains = list(made.gains)
    for done, move in enumerate(made.moves, start=1):
        take(fleet, move.target)
        fleet.release(fleet.take_of(move.source))
        while gains and gains[0].after_moves == done:
            start(fleet, gains.pop(0))
    assert gains == []


@given(worlds(), policies)
def test_whoever_gains_had_no_room_before_its_moves(world: World, policy: Policy) -> None:
    made = plan(world, policy)
    pending = {each.job_id: each for each in world.pending}
    fleet = world.snapshot_fleet()
    for each in made.starts:
        start(fleet, each)
    done = 0
    for gain in made.gains:
        if gain.after_moves > done:
            assert not has_room(fleet, pending[gain.job_id], policy)
        for move in made.moves[done : gain.after_moves]:
            take(fleet, move.target)
            fleet.release(fleet.take_of(move.source))
        done = gain.after_moves
        start(fleet, gain)
    assert done == len(made.moves), "no move is made for nothing"


@given(worlds(), policies)
def test_only_what_may_move_moves_and_once(world: World, policy: Policy) -> None:
    made = plan(world, policy)
    running = {each.workload.job_id: each for each in world.running}
    classes = {each.job_id: each.priority for each in world.pending}
    assert len({move.job_id for move in made.moves}) == len(made.moves)
    for number, move in enumerate(made.moves, start=1):
        moved = running[move.job_id]
        assert moved.workload.priority is not Priority.CRITICAL
        assert moved.workload.preemptible is not False
        assert moved.started_at == LONG_AGO
        assert moved.progress_ratio is None
        assert (move.source,) == moved.allocations
        assert move.target.node_id != move.source.node_id
        gainer = next(gain for gain in made.gains if gain.after_moves >= number)
        value = PRIORITY_VALUES[moved.workload.priority]
        assert value <= PRIORITY_VALUES[classes[gainer.job_id]]


@given(worlds(), policies)
def test_planning_again_after_carrying_out_moves_nothing(world: World, policy: Policy) -> None:
    made = plan(world, policy)
    again = plan(after(world, made), policy)
    assert (again.moves, again.gains, again.starts) == ((), (), ())


@given(worlds(), policies, st.randoms(use_true_random=False))
def test_the_order_of_the_input_is_irrelevant(world: World, policy: Policy, random: Random) -> None:
    made = plan(world, policy)
    random.shuffle(world.pending)
    random.shuffle(world.running)
    assert plan(world, policy) == made


@given(worlds(), policies)
def test_the_snapshot_is_left_as_it_was(world: World, policy: Policy) -> None:
    snapshot = world.snapshot()
    plan_defragmentation(snapshot, policy, NOW, 1, FREELY)
    untouched = world.snapshot_fleet()
    assert (snapshot.fleets[0].gpu_free_milli == untouched.gpu_free_milli).all()
    assert (snapshot.fleets[0].cpu_free == untouched.cpu_free).all()


@given(worlds(), policies, st.integers(0, 3), st.integers(0, 7200))
def test_limits_hold(world: World, policy: Policy, most: int, lost_s: int) -> None:
    limits = MoveLimits(max_moves=most, max_moves_each=2, max_lost_s=lost_s)
    made = plan(world, policy, limits)
    assert len(made.moves) <= most
    assert made.lost_gpu_s * 1000 <= lost_s * made.gained_gpu_milli
