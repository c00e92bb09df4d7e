"""What is remembered, looked up or done in one call is what straight work would find."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.fleet.facts import GpuFacts, NodeFacts, Taint
from gpuplane.core.ids import ReservationId
from gpuplane.core.prediction.classes import WorkloadClass
from gpuplane.core.prediction.hints import Length, PlacementHint
from gpuplane.core.scheduling.bench import (
    MIN_ROWS,
    NOT_FIT,
    Bench,
    Row,
    expected_s,
    open_bench,
)
from gpuplane.core.scheduling.devices import choose_devices
from gpuplane.core.scheduling.filters import EVERYWHERE, FILTERS, count_refused
from gpuplane.core.scheduling.fragmentation import (
    choose_share_gpu,
    compute_gradient_scores,
    compute_typical_mix,
)
from gpuplane.core.scheduling.fragments import TypicalMix
from gpuplane.core.scheduling.needs import OR, Need
from gpuplane.core.scheduling.placement import place_batch, place_workload
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy
from gpuplane.core.scheduling.reservations import Reservation, Upcoming
from gpuplane.core.scheduling.scores import compute_ranks
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.topology.named import named_topology
from gpuplane.core.workloads import Toleration
from tests.builders import A100, CLUSTER, H100, NOW, WorkloadBuilder, a_node, a_workload, an_id
from tests.examples import examples

OURS = ReservationId(an_id("ours"))
THEIRS = ReservationId(an_id("theirs"))
DATA = {"data.gpuplane.io/set": "cached"}
HINTS = [
    PlacementHint(WorkloadClass.INTERACTIVE, Length.SHORT, 20),
    PlacementHint(WorkloadClass.TRAINING, Length.LONG, 70),
    PlacementHint(None, Length.UNKNOWN, 60),
    PlacementHint(None, Length.LONG),
]


def rarely(draw: st.DrawFn) -> bool:
    return draw(st.integers(0, 5)) == 5


@st.composite
def a_kind_of_node(draw: st.DrawFn) -> dict[str, Any]:
    """Draw all of a node but its name."""
    count = draw(st.sampled_from([0, 2, 8, 8]))
    reserved = {g: draw(st.sampled_from([OURS, THEIRS])) for g in range(count) if rarely(draw)}
    slots = (("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4))
    return {
        "gpu_count": count,
        "model": draw(st.sampled_from([H100, H100, A100])),
        "cpu_milli": draw(st.sampled_from([6_000, 32_000])),
        "memory_mib": 65_536,
        "labels": DATA if rarely(draw) else {},
        "taints": (Taint("team", "a"),) if rarely(draw) else (),
        "topology": named_topology("nvswitch-8", 8) if count == 8 and rarely(draw) else None,
        "mig": {0: slots} if count and rarely(draw) else {},
        "unhealthy": (count - 1,) if count and rarely(draw) else (),
        "reserved": reserved,
        "cordoned": rarely(draw),
        "ready": not rarely(draw),
        "maintenance_at": NOW + 3_600_000 * draw(st.integers(1, 3)) if rarely(draw) else None,
        "price_micro_per_gpu_hour": draw(st.integers(0, 2)) * 1_000_000,
        "has_a_smaller_gpu": count > 0 and rarely(draw),
    }


@st.composite
def some_nodes(draw: st.DrawFn) -> tuple[NodeFacts, ...]:
    """Draw nodes of a few kinds, so that some of them come into the same state."""
    kinds = draw(st.lists(a_kind_of_node(), min_size=1, max_size=3))
    return tuple(
        a_random_node(f"node-{index}", **draw(st.sampled_from(kinds)))
        for index in range(draw(st.integers(1, 5)))
    )


def a_random_node(name: str, *, has_a_smaller_gpu: bool, **kind: Any) -> NodeFacts:
    node = a_node(name, **kind)
    if has_a_smaller_gpu:
        return replace(node, gpus=(_smaller(node.gpus[0]), *node.gpus[1:]))
    return node


def _smaller(gpu: GpuFacts) -> GpuFacts:
    return replace(gpu, memory_mib=gpu.memory_mib // 2, model="nvidia-t4")


@st.composite
def a_random_class(draw: st.DrawFn) -> Workload:
    asked = a_workload().resources(
        cpu_milli=draw(st.sampled_from([0, 500, 3_000, 7_000])),
        memory_mib=draw(st.sampled_from([1_024, 20_000])),
        ephemeral_mib=0,
    )
    kind = draw(st.sampled_from(["whole", "whole", "share", "share", "mig", "cpu"]))
    if kind == "whole":
        asked = asked.gpus(draw(st.sampled_from([1, 1, 2, 4])))
        if rarely(draw):
            asked = asked.links(LinkPreference.NVLINK, required=draw(st.booleans()))
    elif kind == "share":
        asked = asked.share(draw(st.sampled_from([100, 300, 500, 700])))
    elif kind == "mig":
        asked = asked.mig(draw(st.sampled_from(["1g.10gb", "3g.40gb"])))
    else:
        asked = asked.gpus(0)
    return draw(with_rest(asked)).build()


@st.composite
def with_rest(draw: st.DrawFn, asked: WorkloadBuilder) -> WorkloadBuilder:
    """Draw what a request may say besides how much."""
    if rarely(draw):
        asked = asked.resources(gpu_model=draw(st.sampled_from([H100, A100, f"{H100}|{A100}"])))
    if rarely(draw):
        asked = asked.resources(gpu_memory_mib=60_000)
    if rarely(draw):
        asked = asked.tolerating(Toleration("team", "Exists"))
    if rarely(draw):
        asked = asked.placement(node_selector=DATA)
    if rarely(draw):
        asked = asked.placement(data=("set", "other"))
    if rarely(draw):
        asked = asked.having(reservation_id=OURS)
    if rarely(draw):
        asked = asked.having(estimated_duration_s=7_200)
    if rarely(draw):
        asked = asked.having(hint=draw(st.sampled_from(HINTS)))
    return asked


alike = st.integers(2, 4).flatmap(
    lambda count: st.sampled_from([2, 4]).map(
        lambda gpus: tuple(a_node(f"node-{index}", gpus) for index in range(count))
    )
)
fleets = st.one_of(alike, some_nodes())
classes = st.lists(a_random_class(), min_size=1, max_size=4)
seen_mixes = st.lists(a_random_class(), max_size=6).map(
    lambda some: compute_typical_mix(some, share=1.0, max_classes=8)
)


def of_gpus_alone(mix: TypicalMix) -> TypicalMix:
    """Return a mix that says nothing of CPU and memory, as a given one does."""
    return mix._replace(
        classes=tuple(each._replace(cpu_milli=0) for each in mix.classes),
        large=tuple((each._replace(cpu_milli=0, memory_mib=0), n) for each, n in mix.large),
    )


mixes = st.one_of(seen_mixes, seen_mixes.map(of_gpus_alone))
policies = st.builds(Policy, placement=st.sampled_from(list(PlacementPolicy)))
steps = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=25)
Clear = tuple[list[int], int, str]
"""GPUs that are kept clear by node, hours until their reservation begins, its project."""
clears = st.lists(
    st.tuples(
        st.lists(st.sampled_from([0, 0b1, 0b11, 0xF0]), min_size=5, max_size=5),
        st.sampled_from([0, 0, 1]),
        st.sampled_from(["lab", "lab", "default"]),
    ),
    max_size=2,
)


def keep_clear(fleet: Fleet, asked: Sequence[Clear]) -> list[Upcoming]:
    """Return reservations that have not begun, with some GPUs of some nodes kept clear for each."""
    found = []
    for number, (by_node, hours, project) in enumerate(asked):
        start_at = NOW + hours * 3_600_000 + 1
        reservation = Reservation(
            ReservationId(an_id(f"clear-{number}")), CLUSTER, H100, 1, start_at,
            start_at + 3_600_000, "default", project,
        )  # fmt: skip
        masks = np.array(by_node[: len(fleet)], dtype=np.uint16) & fleet.present_mask
        found.append(Upcoming(reservation, masks))
    return found


def fresh_row(
    nodes: Sequence[NodeFacts],
    held: Sequence[Take],
    policy: Policy,
    mix: TypicalMix,
    asked: Workload,
    clear: Sequence[Clear],
) -> Row:
    """Return the row of a fleet that has no past: every filter and score is asked of every node."""
    fleet = Fleet(CLUSTER, nodes)
    for take in held:
        fleet.allocate(take)
    bench = Bench(fleet, policy, mix, NOW, 3)
    bench.upcoming = keep_clear(fleet, clear)
    return bench.row(asked)


def straight_ranks(row: Row) -> list[int]:
    """Ask each filter in its order, then rank all nodes at once."""
    fits = np.ones(len(row.fleet), dtype=np.bool_)
    for each in FILTERS:
        if each.applies(row.need):
            fits &= each.passes(row.need, row.fleet, EVERYWHERE)
    return np.where(fits, compute_ranks(row.context, EVERYWHERE), NOT_FIT).tolist()


@examples(150)
@given(
    fleets,
    classes,
    st.lists(mixes, min_size=1, max_size=2),
    policies,
    steps,
    st.lists(clears, min_size=1, max_size=2),
    st.sampled_from([2, MIN_ROWS]),
)
def test_a_bench_with_a_past_ranks_as_one_without(
    nodes: tuple[NodeFacts, ...],
    asked: list[Workload],
    some_mixes: list[TypicalMix],
    policy: Policy,
    history: list[tuple[int, int]],
    some_clears: list[list[Clear]],
    most_rows: int,
) -> None:
    fleet = Fleet(CLUSTER, nodes)
    mix, clear = some_mixes[0], some_clears[0]
    bench = open_bench(fleet, policy, mix, NOW, 3)
    bench.max_rows = most_rows
    bench.upcoming = keep_clear(fleet, clear)
    held: list[Take] = []
    for verb, number in history:
        workload = asked[number % len(asked)]
        if verb == 0:
            mix = some_mixes[number % len(some_mixes)]
            clear = some_clears[number % len(some_clears)]
            bench.close()
            bench = open_bench(fleet, policy, mix, NOW, 3)
            bench.upcoming = keep_clear(fleet, clear)
        elif verb == 1:
            mark = fleet.checkpoint()
            place_workload(workload, bench, None)
            row = bench.row(workload)
            row.count_refused() if number % 2 else row.ranks  # looked at while it is counted
            fleet.rollback(mark)
        elif verb == 2 and held:
            fleet.release(held.pop(number % len(held)))
        elif verb == 3:
            fleet.settle()
        else:
            spots = place_workload(workload, bench, None)
            held += spots.takes if spots is not None else ()
    for workload in asked:
        row = bench.row(workload)
        straight = fresh_row(nodes, held, policy, mix, workload, clear)
        expected = straight_ranks(straight)
        assert row.fits.tolist() == [rank != NOT_FIT for rank in expected]
        assert row.fits_any == (max(expected) != NOT_FIT)
        assert row.ranks.tolist() == expected
        assert row.count_refused() == count_refused(row.need, fleet)[0]
        for allowed in (None, np.arange(len(nodes)) % 2 == 1):
            left = [r if allowed is None or allowed[i] else NOT_FIT for i, r in enumerate(expected)]
            best = left.index(max(left))
            assert row.find_best(allowed) == (None if max(left) == NOT_FIT else (best, max(left)))
        for node in np.flatnonzero(row.fits).tolist():
            assert choose_devices(row, node) == choose_devices(straight, node)
            assert row.rank_on(node) == expected[node]


@given(fleets, classes, steps)
def test_the_columns_are_what_is_there_less_what_is_taken(
    nodes: tuple[NodeFacts, ...], asked: list[Workload], history: list[tuple[int, int]]
) -> None:
    empty, fleet = Fleet(CLUSTER, nodes), Fleet(CLUSTER, nodes)
    bench = Bench(fleet, Policy(), TypicalMix((), ()), NOW, 1)
    held: list[Take] = []
    for verb, number in history:
        if verb < 3 and held:
            fleet.release(held.pop(number % len(held)))
            continue
        mark = fleet.checkpoint()
        spots = place_workload(asked[number % len(asked)], bench, None)
        if verb == 9:
            fleet.rollback(mark)
        else:
            held += spots.takes if spots is not None else ()
    milli = empty.gpu_free_milli.astype(int)
    cpu = empty.cpu_free.astype(int)
    for take in held:
        cpu[take.node] -= take.cpu_milli
        for gpu in range(fleet.gpu_count_max):
            if take.mig is None and take.gpu_mask >> gpu & 1:
                milli[gpu, take.node] -= take.gpu_milli
    assert fleet.gpu_free_milli.tolist() == milli.tolist()
    assert fleet.cpu_free.tolist() == cpu.tolist()
    assert fleet.gpu_idle_milli.tolist() == milli.sum(axis=0).tolist()
    assert fleet.gpu_free_most.tolist() == milli.max(axis=0).tolist()
    assert fleet.gpu_free_count.tolist() == (milli == 1000).sum(axis=0).tolist()
    whole = [sum(1 << g for g in range(len(milli)) if column[g] == 1000) for column in milli.T]
    assert fleet.gpu_free_mask.tolist() == whole
    instances = {profile: column.copy() for profile, column in empty.mig_free.items()}
    for take in held:
        if take.mig is not None:
            gpu, profile, start = take.mig
            instances[profile][gpu, take.node] ^= 1 << start
    for profile, column in instances.items():
        assert fleet.mig_free[profile].tolist() == column.tolist()


def plain_fragment(mix: TypicalMix, models: set[str], shares: Sequence[int], cpu: int) -> int:
    """Return the fragment of one node by its definition, times the total weight of the mix.

    Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 3.
    """
    total = 0
    for each, weight in zip(mix.classes, mix.weights, strict=True):
        fits = [free for free in shares if free >= each.gpu_milli]
        is_model = not each.gpu_model or models & set(each.gpu_model.split(OR))
        is_hosted = each.gpu_count and models and is_model and len(fits) >= each.gpu_count
        usable = sum(fits) if is_hosted and cpu >= each.cpu_milli else 0
        total += weight * (sum(shares) - usable)
    return total


def plain_choices(
    need: Need, fleet: Fleet, node: int, mix: TypicalMix
) -> list[tuple[int, int, int]]:
    """Return (fragment after, free share, GPU) of every way to take the devices on a node."""
    shares = fleet.gpu_free_milli[:, node].tolist()
    models = {gpu.model for gpu in fleet.nodes[node].gpus}
    cpu = int(fleet.cpu_free[node]) - need.resources.cpu_milli
    granted = [g for g in range(len(shares)) if int(need.granted_mask[node]) >> g & 1]
    if need.is_share:
        milli = need.resources.gpu_milli
        ways = [[g] for g in granted if shares[g] >= milli]
    else:
        milli = 1000
        count = need.resources.gpu_count if need.wants_gpus else 0
        ways = [[g for g in granted if shares[g] == 1000][:count]]
    choices = []
    for way in ways:
        after = [free - milli * (g in way) for g, free in enumerate(shares)]
        free = shares[way[0]] if way else 0
        choices.append((plain_fragment(mix, models, after, cpu), free, way[0] if way else 0))
    return choices


@examples(150)
@given(fleets, classes, mixes, steps)
def test_fragments_are_those_of_the_definition(
    nodes: tuple[NodeFacts, ...],
    asked: list[Workload],
    mix: TypicalMix,
    history: list[tuple[int, int]],
) -> None:
    fleet = Fleet(CLUSTER, nodes)
    bench = Bench(fleet, Policy(), mix, NOW, 1)
    for _, number in history:
        place_workload(asked[number % len(asked)], bench, None)
    total = max(1, sum(mix.weights))
    limits = [math.ceil(1000 * math.log(s / (100 - s)) * total) for s in range(1, 100)]
    for workload in asked:
        row = bench.row(workload)
        where = np.flatnonzero(row.fits)
        many = compute_gradient_scores(row.need, fleet, where, row.context.mix)
        for node, score in zip(where.tolist(), many.tolist(), strict=True):
            choices = plain_choices(row.need, fleet, node, mix)
            models = {gpu.model for gpu in fleet.nodes[node].gpus}
            shares = fleet.gpu_free_milli[:, node].tolist()
            before = plain_fragment(mix, models, shares, int(fleet.cpu_free[node]))
            gradient = before - min(choices)[0]
            expected = sum(gradient >= limit for limit in limits)
            assert score == expected
            assert compute_gradient_scores(row.need, fleet, node, row.context.mix) == expected
            if row.need.is_share:
                chosen = choose_share_gpu(row.need, fleet, node, row.context.mix)
                assert chosen == min(choices)[2]


@given(fleets, classes, mixes, policies, st.integers(1, 12), clears)
def test_a_batch_is_placed_as_one_after_the_other(
    nodes: tuple[NodeFacts, ...],
    asked: list[Workload],
    mix: TypicalMix,
    policy: Policy,
    count: int,
    clear: list[Clear],
) -> None:
    batch = Bench(Fleet(CLUSTER, nodes), policy, mix, NOW, 1)
    single = Bench(Fleet(CLUSTER, nodes), policy, mix, NOW, 1)
    batch.upcoming = keep_clear(batch.fleet, clear)
    single.upcoming = keep_clear(single.fleet, clear)
    for workload in asked:
        together = place_batch(workload, count, batch)
        spots = [place_workload(workload, single, None) for _ in range(count)]
        assert together == [each for each in spots if each is not None]


@given(fleets, classes, mixes, policies, clears)
def test_gpus_that_are_kept_clear_are_taken_by_nobody_who_might_not_be_gone_in_time(
    nodes: tuple[NodeFacts, ...],
    asked: list[Workload],
    mix: TypicalMix,
    policy: Policy,
    clear: list[Clear],
) -> None:
    bench = Bench(Fleet(CLUSTER, nodes), policy, mix, NOW, 1)
    bench.upcoming = keep_clear(bench.fleet, clear)
    for workload in asked:
        length_ms = expected_s(workload, policy) * MS_PER_S
        kept = [
            each
            for each in bench.upcoming
            if each.reservation.project != "default" and NOW + length_ms > each.reservation.start_at
        ]
        for spots in place_batch(workload, 4, bench):
            for take in spots.takes:
                held = take.gpu_mask if take.mig is None else 1 << take.mig[0]
                assert not any(int(each.masks[take.node]) & held for each in kept)


@examples(30)
@given(alike, classes, mixes, policies, clears, st.lists(st.integers(0, 3), max_size=8))
def test_nodes_of_one_state_are_not_alike_where_gpus_are_kept_clear(
    nodes: tuple[NodeFacts, ...],
    asked: list[Workload],
    mix: TypicalMix,
    policy: Policy,
    clear: list[Clear],
    touched: list[int],
) -> None:
    bench = Bench(Fleet(CLUSTER, nodes), policy, mix, NOW, 3)
    bench.upcoming = keep_clear(bench.fleet, clear)
    for each in asked:
        bench.row(each).ranks  # noqa: B018 - looked at before anything changes
    for place in touched:
        mark = bench.fleet.checkpoint()
        bench.fleet.allocate(Take(place % len(nodes), 0, 0, 500, 0, 0))
        bench.fleet.rollback(mark)
        for each in asked:
            straight = fresh_row(nodes, [], policy, mix, each, clear)
            assert bench.row(each).ranks.tolist() == straight_ranks(straight)
