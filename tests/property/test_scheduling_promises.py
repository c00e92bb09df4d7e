"""What cycles promise one after the other: quotas kept, what is lent comes back, nobody starves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.ids import ReservationId
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
from gpuplane.core.scheduling.ordering import compute_entry
from gpuplane.core.scheduling.policy import Policy, PreemptionLimits
from gpuplane.core.scheduling.reservations import Reservation, latest_hold, may_be_stopped
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import PRIORITY_VALUES, Priority, ReplicaRequest
from tests.builders import CLUSTER, H100, NOW, World, a_node, a_workload, an_id
from tests.examples import examples
from tests.property.test_scheduling import policies, worlds

PAIR = FlavorResource(H100, GPU)
LENIENT = Policy(preemption=PreemptionLimits(min_run_s=0, per_cluster_hour=1000))
CLASSES = list(Priority)
HOUR_MS = 3_600_000


def a_lender(name: str, gpus: int) -> ClusterQueueSpec:
    return ClusterQueueSpec(
        name=name,
        cohort="all",
        resource_groups=(ResourceGroup((GPU,), (H100,)),),
        quotas={PAIR: ResourceQuota(gpus * 1000)},
        preemption=PreemptionPolicy(
            WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.LOWER_PRIORITY
        ),
    )


@given(worlds(), policies)
def test_no_queue_and_no_cohort_uses_more_than_its_quota(world: World, policy: Policy) -> None:
    world.apply(decide(world.snapshot(), policy, NOW, 1))
    tree = world.snapshot().quotas
    specs = [tree.get_spec(name) for name in tree.cluster_queues]
    owned: dict[FlavorResource, int] = {}
    used: dict[FlavorResource, int] = {}
    for spec in specs:
        if spec.covers_everything:
            return
        for pair, amount in tree.usage_of(spec.name).items():
            assert amount <= tree.potential_available(spec.name, pair)
            used[pair] = used.get(pair, 0) + amount
        for pair, quota in spec.quotas.items():
            owned[pair] = owned.get(pair, 0) + quota.nominal
    assert all(amount <= owned[pair] for pair, amount in used.items())


def play(world: World, policy: Policy, now: int) -> int:
    """Decide, start, and put victims back into their queues; return how many were stopped."""
    decision = decide(world.snapshot(), policy, now, 1)
    world.apply(decision, now)
    victims = [each.workload for each in world.running if each.stopping]
    world.running = [each for each in world.running if not each.stopping]
    world.pending += victims
    return len(victims)


@st.composite
def crowds(draw: st.DrawFn) -> World:
    """Draw one or two queues that may reclaim, full of running work, with more pending."""
    queues = [a_lender("a", 4), a_lender("b", 4)]
    world = World([a_node("a", 4), a_node("b", 4)], queues)

    def draw_some(name: str, most: int) -> list[Workload]:
        return [
            a_workload(f"{name}{index}", draw(st.sampled_from(["a", "b"])))
            .gpus(draw(st.sampled_from([1, 1, 2, 4])), gpu_model=H100)
            .priority(draw(st.sampled_from(CLASSES)))
            .age(draw(st.integers(0, 5)) * 1000)
            .having(replicas=ReplicaRequest(draw(st.sampled_from([1, 1, 2])), 1, 2))
            .build()
            for index in range(draw(st.integers(1, most)))
        ]

    world.pending = draw_some("first", 6)
    play(world, LENIENT, NOW - 3_600_000)
    world.pending += draw_some("then", 6)
    return world


@examples(60)
@given(crowds())
def test_stopping_and_starting_comes_to_rest(world: World) -> None:
    """No circle of victims: everyone only stops lower classes, so the rounds are bounded."""
    everyone = len(world.pending) + len(world.running)
    now = NOW
    for _ in range(4 * everyone):
        before = {each.workload.job_id for each in world.running}
        stopped = play(world, LENIENT, now)
        # A promise outlives its use for a while; what is promised to nobody any more is free.
        world.pending = [replace(each, promised_until=None) for each in world.pending]
        now += 1
        if not stopped and {each.workload.job_id for each in world.running} == before:
            break
    else:
        raise AssertionError("still stopping and starting")
    still = decide(world.snapshot(), LENIENT, now, 1)
    assert not still.placed
    assert not still.preempting


@given(st.integers(1, 4), st.lists(st.sampled_from([1, 2]), min_size=1, max_size=8), st.data())
def test_what_was_lent_comes_back_to_whom_it_belongs(
    wanted: int, lent: list[int], data: st.DataObject
) -> None:
    """An owner within its quota gets it back from lower classes that borrow it."""
    world = World([a_node("a")], [a_lender("owner", 4), a_lender("guest", 4)])
    low = data.draw(st.sampled_from([Priority.LOW, Priority.SPOT]))
    world.pending = [
        a_workload(f"guest{index}", "guest").gpus(gpus, gpu_model=H100).priority(low).build()
        for index, gpus in enumerate(lent)
    ]
    world.apply(decide(world.snapshot(), LENIENT, NOW - 3_600_000, 1), NOW - 3_600_000)
    world.pending = []
    back = a_workload("back", "owner").gpus(wanted, gpu_model=H100).priority(Priority.NORMAL)
    world.pending = [back.build()]
    stopped = play(world, LENIENT, NOW)
    world.pending = [each for each in world.pending if each.queue == "owner"]
    decision = decide(world.snapshot(), LENIENT, NOW + 1, 1)
    running = {each.workload.job_id for each in world.running}
    started = running | {placed.job_id for placed in decision.placed}
    assert back.build().job_id in started
    assert stopped <= wanted, "one victim for each GPU is enough, since each holds one or more"


@examples(40)
@given(
    st.integers(5, 8),
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 9)), min_size=4, max_size=10),
    st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 9)), max_size=12),
)
def test_the_first_in_line_starts_no_later_than_forecast_whoever_comes_after(
    large: int, first: list[tuple[int, int]], later: list[tuple[int, int]]
) -> None:
    """The stated bound: durations kept, a head starts when those that ran before it are over."""
    minute = 60 * MS_PER_S
    now = NOW
    world = World([a_node("a")])

    def a_job(name: str, gpus: int, minutes: int) -> Workload:
        made = a_workload(name).gpus(gpus, cpu_milli=100, memory_mib=100)
        return made.having(
            queued_at=now, submitted_at=now, estimated_duration_s=minutes * 60,
            max_duration_s=minutes * 60,
        ).build()  # fmt: skip

    world.pending = [a_job(f"first{i}", *each) for i, each in enumerate(first)]
    world.apply(decide(world.snapshot(), Policy(), now, 1), now)
    world.pending = [a_job("head", large, 5)]
    head = world.pending[0].job_id
    ends = [each.started_at + (each.workload.max_duration_s or 0) * 1000 for each in world.running]
    bound = max([now, *ends])
    arrivals = list(later)
    for step in range(len(first) * 10 + len(later) + 20):
        world.running = [
            each
            for each in world.running
            if now < each.started_at + (each.workload.max_duration_s or 0) * MS_PER_S
        ]
        if arrivals:
            world.pending.append(a_job(f"later{step}", *arrivals.pop()))
        world.apply(decide(world.snapshot(), Policy(), now, 1), now)
        if head in {each.workload.job_id for each in world.running}:
            assert now <= bound
            return
        now += minute
    raise AssertionError("the head never started")


@given(st.data())
def test_who_waited_for_its_target_is_passed_only_by_higher_classes_or_longer_waits(
    data: st.DataObject,
) -> None:
    """The bound on order: a whole boost stands beside the next class, and age decides there."""
    boosts = Policy().boosts
    priority = data.draw(st.sampled_from([Priority.NORMAL, Priority.LOW, Priority.SPOT]))
    target = boosts.wait_target_s[priority]
    waited = target + data.draw(st.integers(0, 10**6))
    ours = compute_entry(a_workload("ours").priority(priority).age(waited).build(), boosts, NOW)
    other_class = data.draw(st.sampled_from(CLASSES))
    other_wait = data.draw(st.integers(0, 10**6))
    other = a_workload("other").priority(other_class).age(other_wait).build()
    if compute_entry(other, boosts, NOW).key < ours.key:
        above = CLASSES[CLASSES.index(priority) - 1]
        is_higher = PRIORITY_VALUES[other_class] > PRIORITY_VALUES[above]
        is_starved = other_wait > boosts.wait_target_s[other_class] // 2
        assert is_higher or other_wait >= waited or (other_class is above and is_starved)


@given(worlds(), st.lists(st.tuples(st.integers(1, 16), st.integers(0, 3)), max_size=3))
def test_nothing_starts_on_reserved_gpus_that_could_not_be_gone_in_time(
    world: World, asked: list[tuple[int, int]]
) -> None:
    """At every start as many GPUs can be clear as are reserved then, or as could be before."""
    reservations = tuple(
        Reservation(
            ReservationId(an_id(f"r{index}")), CLUSTER, H100, count,
            NOW + start * HOUR_MS + 1, NOW + (start + 2) * HOUR_MS, "lab", "p",
        )
        for index, (count, start) in enumerate(asked)
    )  # fmt: skip
    before = list(world.running)
    world.apply(decide(world.snapshot(reservations=reservations), Policy(), NOW, 1))
    for one in reservations:
        at = one.start_at
        wanted = sum(each.gpu_count for each in reservations if each.start_at <= at < each.end_at)
        assert count_clear(world, world.running, at) >= min(wanted, count_clear(world, before, at))


def count_clear(world: World, running: Sequence[RunningWorkload], at: int) -> int:
    """Return the GPUs whose work is over by force or may be stopped at an instant."""
    fixed = {
        gpu_id
        for each in running
        if not may_be_stopped(each.workload) and latest_hold(each.workload, each.started_at, 0) > at
        for allocation in each.allocations
        for gpu_id in (*allocation.gpu_ids, *(allocation.mig or ())[:1])
    }
    return sum(
        gpu.model == H100 and gpu.healthy and gpu.gpu_id not in fixed
        for node in world.nodes
        for gpu in node.gpus
    )
