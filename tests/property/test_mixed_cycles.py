"""What every cycle keeps where everything comes together: times, neighbours, reservations, quotas.

The sums here are plain ones over what a decision says, made without the fleet's own arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.fleet.facts import Allocation
from gpuplane.core.ids import JobId, ReservationId
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision, Placed, ReplicaPlacement, Waiting
from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.reservations import Reservation
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import ResourceRequest, TimeWindow
from tests.builders import CLUSTER, H100, NOW, World, an_id
from tests.examples import examples
from tests.property.test_scheduling import policies, worlds

HOUR_MS = 3_600_000


@dataclass
class Mixed:
    """A world with what is not in every world: reservations to come and victims of the hour."""

    world: World
    reservations: list[Reservation]
    spent: int

    def snapshot(self) -> Snapshot:
        return self.world.snapshot(
            reservations=tuple(self.reservations), preempted_last_hour={CLUSTER: self.spent}
        )


@st.composite
def with_times_and_neighbours(draw: st.DrawFn, asked: Workload, others: list[JobId]) -> Workload:
    """Draw what else a workload may say: when, near whom, apart from whom."""
    at = NOW + draw(st.sampled_from([-HOUR_MS, 60_000, 2 * HOUR_MS]))
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return replace(asked, not_before=at)
    if kind == 1:
        return replace(
            asked, deadline=at, is_cancelled_at_deadline=True, submitted_at=NOW - 2 * HOUR_MS
        )
    if kind == 2:
        opens = draw(st.sampled_from([0, 8 * 60, 12 * 60]))
        return replace(asked, window=TimeWindow(opens, opens + 60, "UTC"))
    if kind in (3, 4) and others:
        named = (draw(st.sampled_from(others)),)
        near = {"co_locate_with": named} if kind == 3 else {"separate_from": named}
        return replace(asked, placement=replace(asked.placement, **near))
    return asked


@st.composite
def mixed_worlds(draw: st.DrawFn) -> Mixed:
    world = draw(worlds())
    others = [each.workload.job_id for each in world.running]
    others += [each.job_id for each in world.pending]
    world.pending = [draw(with_times_and_neighbours(each, others)) for each in world.pending]
    reservations = [
        Reservation(
            ReservationId(an_id(f"reserved-{index}")), CLUSTER, H100, draw(st.integers(1, 8)),
            NOW + hours * HOUR_MS + 1, NOW + (hours + 2) * HOUR_MS, "lab", "p",
        )
        for index, hours in enumerate(draw(st.lists(st.integers(0, 2), max_size=2)))
    ]  # fmt: skip
    return Mixed(world, reservations, draw(st.sampled_from([0, 0, 8, 10])))


def sum_taken(
    held: Iterable[tuple[ResourceRequest, Allocation | ReplicaPlacement]],
) -> tuple[Counter[object], Counter[object]]:
    """Return what is taken of GPUs and instances, and of each node's CPU, memory and disk."""
    devices: Counter[object] = Counter()
    amounts: Counter[object] = Counter()
    for asked, each in held:
        if each.mig is not None:
            devices[each.mig.gpu_id, each.mig.profile, each.mig.start] += 1000
        else:
            devices.update(dict.fromkeys(each.gpu_ids, each.gpu_milli))
        for name in ("cpu_milli", "memory_mib", "ephemeral_mib"):
            amounts[each.node_id, name] += getattr(asked, name)
    return devices, amounts


def list_promised(world: World, decision: Decision) -> list[tuple[Workload, Placed]]:
    by_id = {each.job_id: each for each in world.pending}
    placed = [*decision.placed, *(each.placement for each in decision.preempting)]
    return [(by_id[each.job_id], each) for each in placed]


@examples(40)
@given(mixed_worlds(), policies)
def test_what_starts_and_what_is_promised_fits_beside_what_runs_on(
    mixed: Mixed, policy: Policy
) -> None:
    """No overdraft: not of a GPU, an instance or a node, also once victims are gone."""
    world = mixed.world
    decision = decide(mixed.snapshot(), policy, NOW, 1)
    leaving = {victim for each in decision.preempting for victim in each.victims}
    held: list[tuple[ResourceRequest, Allocation | ReplicaPlacement]] = [
        (each.workload.resources, one)
        for each in world.running
        if not each.stopping and each.workload.job_id not in leaving
        for one in each.allocations
    ]
    for workload, placed in list_promised(world, decision):
        held += [(workload.resources, replica) for replica in placed.replicas]
    devices, amounts = sum_taken(held)
    assert all(milli <= 1000 for milli in devices.values())
    for node in world.nodes:
        for name in ("cpu_milli", "memory_mib", "ephemeral_mib"):
            assert amounts[node.node_id, name] <= getattr(node, name)


@examples(20)
@given(mixed_worlds(), policies)
def test_what_starts_is_of_the_kind_that_was_asked_for(mixed: Mixed, policy: Policy) -> None:
    gpus = {gpu.gpu_id: gpu for node in mixed.world.nodes for gpu in node.gpus}
    for workload, placed in list_promised(mixed.world, decide(mixed.snapshot(), policy, NOW, 1)):
        asked = workload.resources
        assert needed_replicas(workload.replicas) <= len(placed.replicas)
        assert len(placed.replicas) <= workload.replicas.count
        for replica in placed.replicas:
            held = [gpus[each] for each in replica.gpu_ids]
            assert len(set(replica.gpu_ids)) == len(held) == asked.gpu_count
            assert all(gpu.healthy for gpu in held)
            assert all(asked.gpu_model in (None, gpu.model) for gpu in held)
            assert all(gpu.mig_enabled == (asked.mig_profile is not None) for gpu in held)
            assert (replica.mig.profile if replica.mig else None) == asked.mig_profile


@examples(20)
@given(mixed_worlds(), policies)
def test_every_workload_gets_one_verdict_whatever_keeps_it_waiting(
    mixed: Mixed, policy: Policy
) -> None:
    decision = decide(mixed.snapshot(), policy, NOW, 1)
    verdicts = Counter(each.job_id for each in decision.verdicts)
    assert verdicts == Counter(each.job_id for each in mixed.world.pending)
    for verdict in decision.verdicts:
        if isinstance(verdict, Waiting):
            assert verdict.reason.sentence
            assert sum(each.nodes for each in verdict.counts) <= len(mixed.world.nodes)
            words = [each.word for each in verdict.counts]
            assert len(words) == len(set(words))


@examples(20)
@given(mixed_worlds(), policies, st.randoms(use_true_random=False))
def test_no_order_of_the_input_changes_a_byte(mixed: Mixed, policy: Policy, random: Random) -> None:
    first = decide(mixed.snapshot(), policy, NOW, 1).to_json()
    world = mixed.world
    world.nodes = list(world.nodes)
    world.queues = list(world.queues)
    for listed in (world.pending, world.running, world.nodes, world.queues, mixed.reservations):
        random.shuffle(listed)  # type: ignore[arg-type]  # each is a list of its own kind
    world.running = [
        replace(each, allocations=tuple(random.sample(each.allocations, len(each.allocations))))
        for each in world.running
    ]
    assert decide(mixed.snapshot(), policy, NOW, 1).to_json() == first


@examples(20)
@given(mixed_worlds(), policies)
def test_a_cycle_over_what_a_cycle_left_starts_nothing_more(mixed: Mixed, policy: Policy) -> None:
    decision = decide(mixed.snapshot(), policy, NOW, 1)
    mixed.world.apply(decision)
    again = decide(mixed.snapshot(), policy, NOW, 1)
    started = {placed.job_id for placed in decision.placed}
    late = {
        each.job_id for each in mixed.world.pending if started & {*each.placement.co_locate_with}
    }
    if not decision.preempting and not late:
        # Who is to be near a job that was placed after its turn starts in the next cycle.
        assert not again.placed


@examples(20)
@given(mixed_worlds(), policies)
def test_victims_stay_within_the_limit_of_the_hour_and_of_lower_classes(
    mixed: Mixed, policy: Policy
) -> None:
    decision = decide(mixed.snapshot(), policy, NOW, 1)
    victims = [victim for each in decision.preempting for victim in each.victims]
    assert len(victims) == len(set(victims))
    assert len(victims) <= max(0, policy.preemption.per_cluster_hour - mixed.spent)
    running = {each.workload.job_id: each for each in mixed.world.running}
    assert all(not running[victim].stopping for victim in victims)
