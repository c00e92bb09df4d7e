"""Work that passes a blocked head never delays it: it starts when the forecast said, or before."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, event, given
from hypothesis import strategies as st

from gpuplane.core.quota.specs import (
    GPU,
    ClusterQueueSpec,
    FlavorResource,
    QueueingStrategy,
    ResourceGroup,
    unlimited_cluster_queue,
)
from gpuplane.core.scheduling.bench import expected_s
from gpuplane.core.scheduling.cycle import decide, take_turns
from gpuplane.core.scheduling.judge import Judge
from gpuplane.core.scheduling.ordering import compute_entry, group_entries
from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.policy import Policy, PreemptionLimits
from gpuplane.core.scheduling.trial import Trial
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import Priority
from tests.builders import H100, NOW, World, a_node, a_workload, running_of
from tests.examples import examples
from tests.property.test_scheduling import a_queue, nodes, workloads

CALM = Policy(preemption=PreemptionLimits(enabled=False), default_duration_s=1_800)
"""Nobody is stopped: then a head can only start by what ends by itself."""


def one_flavor(queue: ClusterQueueSpec) -> ClusterQueueSpec:
    """Return the queue with one flavor, so that quota is short as often as nodes are."""
    pair = FlavorResource(H100, GPU)
    group = ResourceGroup((GPU,), (H100,))
    return replace(queue, resource_groups=(group,), quotas={pair: queue.quotas[pair]})


@st.composite
def busy_worlds(draw: st.DrawFn) -> World:
    """Draw a fleet with running work of known length, and more pending than fits."""
    if draw(st.booleans()):
        queues = [unlimited_cluster_queue("default")]
    else:
        sizes = st.sampled_from([4, 8, 12])
        best_effort = QueueingStrategy.BEST_EFFORT_FIFO
        queues = [one_flavor(a_queue(name, draw(sizes), best_effort)) for name in ("a", "b")]
    names = [queue.name for queue in queues]
    world = World(draw(nodes()), queues)
    lengths = st.sampled_from([60, 600, 7_200])
    for wave in range(3):
        world.pending = [
            replace(
                draw(workloads(100 * wave + i, names, list(Priority)[1:])),
                estimated_duration_s=draw(lengths),
            )
            for i in range(draw(st.integers(2, 5)))
        ]
        at = NOW - draw(st.sampled_from([0, 30, 300])) * 1000
        world.apply(decide(world.snapshot(), CALM, at, 0), at)
    world.pending += [
        draw(workloads(1000 + i, names, list(Priority))) for i in range(draw(st.integers(2, 8)))
    ]
    return world


def find_heads(world: World) -> tuple[list[tuple[Workload, int]], list[RunningWorkload]]:
    """Return the heads with their forecast starts, and what was started around them."""
    decision = decide(world.snapshot(), CALM, NOW, 1)
    with Trial(world.snapshot(), CALM, NOW, 1) as trial:
        entries = [compute_entry(each, CALM.boosts, NOW) for each in world.pending]
        take_turns(trial, Judge(trial), group_entries(entries))
        starts = {queue: head.starts_at for queue, head in trial.heads.items()}
    by_id = {each.job_id: each for each in world.pending}
    heads = [
        (by_id[verdict.job_id], starts[by_id[verdict.job_id].queue])
        for verdict in decision.waiting
        if "A place is kept for it" in verdict.reason.sentence
    ]
    started = [running_of(by_id[placed.job_id], placed) for placed in decision.placed]
    return heads, started


@examples(100)
@given(busy_worlds())
def test_what_passes_a_head_does_not_delay_its_forecast_start(world: World) -> None:
    heads, started = find_heads(world)
    assume(heads)
    for head, starts_at in heads:
        event(f"a gang {head.replicas.count > 1}, passed by {bool(started)}")
        still = [
            each
            for each in [*world.running, *started]
            if each.started_at + expected_s(each.workload, CALM) * 1000 > starts_at
        ]
        later = World(world.nodes, world.queues, [head], still, world.quota)
        placed = decide(later.snapshot(), CALM, starts_at, 1).placed
        assert [each.job_id for each in placed] == [head.job_id]
        assert len(placed[0].replicas) >= needed_replicas(head.replicas)


def test_work_of_another_queue_does_not_take_the_quota_that_a_head_counts_on() -> None:
    queues = [
        one_flavor(a_queue("a", 4, QueueingStrategy.BEST_EFFORT_FIFO)),
        one_flavor(a_queue("b", 8, QueueingStrategy.BEST_EFFORT_FIFO)),
    ]
    world = World([a_node(f"n{index}") for index in range(4)], queues)
    for name, lasts_s in (("soon", 60), ("later", 600)):
        world.pending.append(
            a_workload(name, "b").gpus(4).having(estimated_duration_s=lasts_s).build()
        )
    world.apply(decide(world.snapshot(), CALM, NOW, 1))
    head = a_workload("head", "a").gpus(4).gang(3).priority(Priority.HIGH)
    long = a_workload("long", "b").gpus(4).having(estimated_duration_s=7_200)
    short = a_workload("short", "b").gpus(4).having(estimated_duration_s=300)
    world.pending = [each.build() for each in (head, long, short)]
    decision = decide(world.snapshot(), CALM, NOW, 1)
    assert [placed.job_id for placed in decision.placed] == [short.build().job_id]
    assert "A place is kept for it" in decision.waiting[0].reason.sentence


def test_a_second_head_on_a_node_does_not_let_others_delay_the_first() -> None:
    queues = [unlimited_cluster_queue(name) for name in ("a", "b", "c")]
    world = World([a_node()], queues)
    for name, gpus, lasts_s in (("soon", 4, 100), ("later", 3, 1_000)):
        job = a_workload(name, "a").gpus(gpus).having(estimated_duration_s=lasts_s)
        world.pending.append(job.build())
    world.apply(decide(world.snapshot(), CALM, NOW, 1))
    first = a_workload("first", "a").gpus(5).priority(Priority.HIGH).age(100)
    second = a_workload("second", "b").gpus(8).priority(Priority.HIGH)
    long = a_workload("long", "c").gpus(1).having(max_duration_s=500)
    short = a_workload("short", "c").gpus(1).having(max_duration_s=90)
    heads = [first.build(), second.having(max_duration_s=50).build()]
    world.pending = [*heads, long.build()]
    decision = decide(world.snapshot(), CALM, NOW, 1)
    kept = [each for each in decision.waiting if "A place is kept" in each.reason.sentence]
    assert {each.job_id for each in kept} == {each.job_id for each in heads}
    assert decision.placed == ()
    world.pending = [*heads, short.build()]
    placed = decide(world.snapshot(), CALM, NOW, 1).placed
    assert [each.job_id for each in placed] == [short.build().job_id]
