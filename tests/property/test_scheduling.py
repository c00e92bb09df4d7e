"""What every decision keeps, whatever the fleet, the quotas and the workloads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from gpuplane.core.fleet.facts import NodeFacts
from gpuplane.core.prediction.classes import WorkloadClass
from gpuplane.core.prediction.durations import Basis, Durations
from gpuplane.core.prediction.hints import Length, PlacementHint
from gpuplane.core.quota.specs import (
    GPU,
    ClusterQueueSpec,
    FlavorResource,
    PreemptionPolicy,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
    unlimited_cluster_queue,
)
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision, Placed
from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.policy import Backfill, PlacementPolicy, Policy
from gpuplane.core.scheduling.preemption import victim_value
from gpuplane.core.scheduling.recording import Recording, decode_recording, encode_recording
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.topology.named import named_topology
from gpuplane.core.workloads import (
    PRIORITY_VALUES,
    NetworkLevel,
    NetworkMode,
    NetworkRequest,
    PlacementRequest,
    Priority,
    ReplicaRequest,
    ResourceRequest,
    Spreading,
)
from tests.builders import A100, H100, NOW, World, a_node, a_workload, an_id, running_of
from tests.examples import examples

_PREEMPTING = PreemptionPolicy(
    WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.LOWER_PRIORITY
)


def a_queue(name: str, gpus: int, strategy: QueueingStrategy) -> ClusterQueueSpec:
    flavors = (H100, A100)
    return ClusterQueueSpec(
        name=name,
        cohort="all",
        resource_groups=(ResourceGroup((GPU,), flavors),),
        quotas={FlavorResource(each, GPU): ResourceQuota(gpus * 1000) for each in flavors},
        queueing_strategy=strategy,
        preemption=_PREEMPTING,
    )


HINTS = [
    PlacementHint(WorkloadClass.INTERACTIVE, Length.SHORT),
    PlacementHint(WorkloadClass.TRAINING, Length.LONG, 80),
    PlacementHint(None, Length.UNKNOWN, 16),
]
NETWORKS = [NetworkRequest(level, mode) for level in NetworkLevel for mode in NetworkMode]


def rarely(draw: st.DrawFn) -> bool:
    return draw(st.integers(0, 7)) == 7


@st.composite
def nodes(draw: st.DrawFn) -> list[NodeFacts]:
    made = []
    for index in range(draw(st.integers(1, 3))):
        count = draw(st.sampled_from([0, 4, 8, 8, 8]))
        name = f"node-{index}"
        mig = {0: (("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4))} if rarely(draw) else {}
        made.append(
            a_node(
                name,
                count,
                model=A100 if rarely(draw) else H100,
                cpu_milli=draw(st.sampled_from([8_000, 32_000, 32_000])),
                memory_mib=262_144,
                mig=mig if count else {},
                unhealthy=(count - 1,) if count and rarely(draw) else (),
                cordoned=rarely(draw),
                topology=named_topology("nvswitch-8", 8) if count == 8 else None,
                rack=draw(st.sampled_from(["", "r1", "r2"])),
                block=draw(st.sampled_from(["", "b1"])),
                labels={"data.gpuplane.io/images": "cached"} if rarely(draw) else {},
                price_micro_per_gpu_hour=draw(st.integers(0, 3)) * 1_000_000,
            )
        )
    return made


@st.composite
def workloads(
    draw: st.DrawFn, index: int, queues: list[str], priorities: list[Priority]
) -> Workload:
    gpus = draw(st.sampled_from([0, 1, 1, 2, 2, 4, 4, 8]))
    kind = draw(st.sampled_from(["whole", "whole", "whole", "whole", "share", "mig"]))
    milli, mig = 1000, None
    if kind == "share":
        gpus, milli = 1, draw(st.sampled_from([250, 500, 700]))
    if kind == "mig":
        gpus, mig = 1, draw(st.sampled_from(["1g.10gb", "3g.40gb"]))
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    made = a_workload(f"job-{index}", draw(st.sampled_from(queues)))
    return replace(
        made.build(),
        priority=draw(st.sampled_from(priorities)),
        queued_at=NOW - draw(st.integers(0, 5)) * 1_000_000,
        resources=ResourceRequest(
            gpu_count=gpus,
            gpu_model=draw(st.sampled_from([None, None, None, H100, A100])),
            gpu_milli=milli,
            mig_profile=mig,
            cpu_milli=draw(st.sampled_from([500, 1_000, 9_000])),
            memory_mib=4_096,
            ephemeral_mib=1_024,
        ),
        replicas=ReplicaRequest(count, draw(st.integers(1, count)), count, draw(st.booleans())),
        placement=PlacementRequest(
            links=draw(st.sampled_from([LinkPreference.NONE, LinkPreference.NVLINK])),
            links_required=rarely(draw),
            spreading=draw(st.sampled_from([Spreading.ANY, *Spreading])),
            data=("images",) if rarely(draw) else (),
            network=draw(st.sampled_from(NETWORKS)) if rarely(draw) else None,
        ),
        estimated_duration_s=draw(st.sampled_from([None, 60, 7_200])),
        learned=Durations(30, 600, 9_000, Basis.HISTORY) if rarely(draw) else None,
        hint=draw(st.sampled_from(HINTS)) if rarely(draw) else None,
        preemptible=draw(st.sampled_from([None, None, None, False, True])),
        preempts_others=draw(st.sampled_from([None, None, None, False])),
        inherited_priority=draw(st.sampled_from(list(Priority))) if rarely(draw) else None,
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw an installation with work pending, half of it after a first wave has started."""
    if draw(st.integers(0, 3)):
        queues = [unlimited_cluster_queue("default")]
    else:
        strategies = st.sampled_from(list(QueueingStrategy))
        queues = [a_queue("a", 4, draw(strategies)), a_queue("b", 8, draw(strategies))]
    names = [queue.name for queue in queues]
    world = World(draw(nodes()), queues)
    first = draw(st.integers(3, 10))
    world.pending = [draw(workloads(i, names, list(Priority)[1:])) for i in range(first)]
    started = NOW - draw(st.sampled_from([10, 4_000, 4_000])) * 1000
    world.apply(decide(world.snapshot(), Policy(), started, 0), started)
    world.pending = [
        draw(workloads(100 + i, names, list(Priority))) for i in range(draw(st.integers(1, 7)))
    ]
    return world


policies = st.builds(
    Policy,
    placement=st.sampled_from(list(PlacementPolicy)),
    backfill=st.sampled_from(list(Backfill)),
)


def free_after(world: World, decision: Decision) -> World:
    """Return the world after the decision; building its fleet refuses every overdraft of a GPU."""
    after = World(world.nodes, world.queues, list(world.pending), list(world.running), world.quota)
    after.apply(decision)
    return after


@given(worlds(), policies)
def test_no_node_gives_more_than_it_has(world: World, policy: Policy) -> None:
    after = free_after(world, decide(world.snapshot(), policy, NOW, 1))
    fleet = after.snapshot().fleets[0]
    assert fleet.cpu_free.min() >= 0
    assert fleet.memory_free.min() >= 0
    assert fleet.ephemeral_free.min() >= 0


@given(worlds(), policies)
def test_no_cordoned_node_gets_new_work(world: World, policy: Policy) -> None:
    cordoned = {node.node_id for node in world.nodes if node.cordoned}
    for placed in decide(world.snapshot(), policy, NOW, 1).placed:
        assert not cordoned & {replica.node_id for replica in placed.replicas}


@given(worlds(), policies)
def test_every_pending_workload_gets_exactly_one_verdict(world: World, policy: Policy) -> None:
    decision = decide(world.snapshot(), policy, NOW, 1)
    given_ids = Counter(verdict.job_id for verdict in decision.verdicts)
    assert given_ids == Counter(workload.job_id for workload in world.pending)


@given(worlds(), policies, st.randoms(use_true_random=False))
def test_the_order_of_the_input_is_irrelevant(world: World, policy: Policy, random: Random) -> None:
    first = decide(world.snapshot(), policy, NOW, 1).to_json()
    for listed in (world.pending, world.running, world.queues):
        random.shuffle(listed)
    world.nodes = sorted(world.nodes, key=lambda node: str(an_id(node.name)))
    assert decide(world.snapshot(), policy, NOW, 1).to_json() == first


@given(worlds(), policies)
def test_the_same_snapshot_gives_the_same_bytes_and_is_left_as_it_was(
    world: World, policy: Policy
) -> None:
    snapshot = world.snapshot()
    first = decide(snapshot, policy, NOW, 7).to_json()
    assert decide(snapshot, policy, NOW, 7).to_json() == first
    fresh = world.snapshot().fleets[0]
    used = snapshot.fleets[0]
    assert (used.gpu_free_milli == fresh.gpu_free_milli).all()
    assert (used.gpu_free_mask == fresh.gpu_free_mask).all()
    assert (used.cpu_free == fresh.cpu_free).all()
    for queue in world.queues:
        assert snapshot.quotas.usage_of(queue.name) == world.snapshot().quotas.usage_of(queue.name)


@given(worlds(), policies)
def test_a_gang_is_placed_whole_or_not_at_all(world: World, policy: Policy) -> None:
    by_id = {workload.job_id: workload for workload in world.pending}
    for placed in decide(world.snapshot(), policy, NOW, 1).placed:
        replicas = by_id[placed.job_id].replicas
        assert needed_replicas(replicas) <= len(placed.replicas) <= replicas.count
        assert [each.rank for each in placed.replicas] == list(range(len(placed.replicas)))


@given(worlds(), policies)
def test_replicas_lie_as_the_job_asked(world: World, policy: Policy) -> None:
    facts = {node.node_id: node for node in world.nodes}
    by_id = {workload.job_id: workload for workload in world.pending}
    for placed in decide(world.snapshot(), policy, NOW, 1).placed:
        on_nodes = Counter(each.node_id for each in placed.replicas)
        spreading = by_id[placed.job_id].placement.spreading
        if spreading is Spreading.SAME_NODE:
            assert len(on_nodes) == 1
        if spreading is Spreading.SPREAD:
            assert max(on_nodes.values()) == 1
        network = by_id[placed.job_id].placement.network
        if network is not None and network.mode is NetworkMode.REQUIRED and len(on_nodes) > 1:
            parts = {getattr(facts[node], network.level.value) for node in on_nodes}
            assert len(parts) == 1
            assert "" not in parts


@examples(120)
@given(worlds(), policies)
def test_planning_again_after_applying_changes_nothing(world: World, policy: Policy) -> None:
    decision = decide(world.snapshot(), policy, NOW, 1)
    world.apply(decision)
    again = decide(world.snapshot(), policy, NOW, 1)
    if not decision.preempting:
        # Where several wait for what stops, the one it was stopped for goes first from now on, and
        # what another had counted on meanwhile may turn out to be free.
        assert not again.placed
    if len(world.queues) == 1:
        # Between queues the right to reclaim comes and goes with who borrows: what started in the
        # first cycle may be a borrower in the second.
        assert not again.preempting


@given(worlds(), policies)
def test_nobody_is_stopped_by_an_equal_or_lower_class_or_against_his_will(
    world: World, policy: Policy
) -> None:
    running = {each.workload.job_id: each for each in world.running}
    pending = {workload.job_id: workload for workload in world.pending}
    for verdict in decide(world.snapshot(), policy, NOW, 1).preempting:
        preemptor = pending[verdict.job_id]
        assert preemptor.preempts_others is not False
        for receipt in verdict.receipts:
            victim = running[receipt.job_id]
            assert victim.workload.priority is not Priority.CRITICAL
            assert victim.workload.preemptible is not False
            assert victim_value(victim.workload) < PRIORITY_VALUES[preemptor.priority]
            assert NOW - victim.started_at >= policy.preemption.min_run_s * 1000


@given(worlds(), policies)
def test_a_preemptor_starts_once_its_victims_are_gone(world: World, policy: Policy) -> None:
    decision = decide(world.snapshot(), policy, NOW, 1)
    by_id = {workload.job_id: workload for workload in world.pending}
    for verdict in decision.preempting:
        # One that starts with fewer replicas than it asks for takes more when there is more.
        replicas = by_id[verdict.job_id].replicas
        assume(needed_replicas(replicas) == replicas.count)
    world.apply(decision)
    world.running = [each for each in world.running if not each.stopping]
    wanted = {verdict.job_id for verdict in decision.preempting}
    started = {placed.job_id for placed in decide(world.snapshot(), policy, NOW, 1).placed}
    assert wanted <= started


@given(worlds(), policies)
def test_no_victim_could_have_been_spared(world: World, policy: Policy) -> None:
    """Victims are minimal one by one: without any of them the first preemptor does not fit."""
    # A place that is kept for a head is no room, and would have to be kept in the trials below.
    policy = replace(policy, backfill=Backfill.GREEDY)
    decision = decide(world.snapshot(), policy, NOW, 1)
    if not decision.preempting:
        return
    first = decision.preempting[0]
    victims = set(first.victims)
    alone = [each for each in world.pending if each.job_id == first.job_id]
    started = [_started(world, placed) for placed in decision.placed if _before(decision, placed)]
    for spared in victims:
        kept = [
            each
            for each in [*world.running, *started]
            if each.workload.job_id not in victims - {spared}
        ]
        trial = World(world.nodes, world.queues, list(alone), kept, world.quota)
        assert not decide(trial.snapshot(), policy, NOW, 1).placed


def _before(decision: Decision, placed: Placed) -> bool:
    order = [verdict.job_id for verdict in decision.verdicts]
    return order.index(placed.job_id) < order.index(decision.preempting[0].job_id)


def _started(world: World, placed: Placed) -> RunningWorkload:
    workload = next(each for each in world.pending if each.job_id == placed.job_id)
    return running_of(workload, placed)


@given(worlds(), policies)
def test_a_stored_input_is_decided_on_again_to_the_same_bytes(world: World, policy: Policy) -> None:
    recording = Recording(world.snapshot(), policy, NOW, 7)
    stored = encode_recording(recording)
    again = decode_recording(stored)
    assert again.replay().to_json() == recording.replay().to_json()
    assert encode_recording(again) == stored
