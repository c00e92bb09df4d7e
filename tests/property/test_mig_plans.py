"""MIG tables and plans against the slow way: every set of placements, every way to make room."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.fleet.facts import MigSlot
from gpuplane.core.ids import GpuId
from gpuplane.core.lifecycle.mig import HELD, MigState
from gpuplane.core.mig.layouts import (
    MigInstance,
    compute_loss,
    find_problem,
    free_placements,
    list_full_layouts,
    mig_rules,
)
from gpuplane.core.mig.profiles import KNOWN_TABLES, MigProfile, MigTable
from gpuplane.core.mig.rebalance import GpuChange, MigGpu, plan_room, plan_shares
from gpuplane.core.scheduling.bench import Bench
from gpuplane.core.scheduling.devices import choose_devices
from gpuplane.core.scheduling.fragmentation import compute_typical_mix
from gpuplane.core.scheduling.policy import Policy
from tests.builders import A100, NOW, a_fleet, a_node, a_workload
from tests.examples import examples

TABLES = list(KNOWN_TABLES.values())
tables = st.sampled_from(TABLES)


def plain(table: MigTable) -> list[MigProfile]:
    return [profile for profile in table.profiles if not profile.is_variant]


def every_set(table: MigTable) -> list[tuple[MigInstance, ...]]:
    """Return every legal set of plain instances, found by trying all sets of placements."""
    places = [MigInstance(start, p.name) for p in plain(table) for start in p.starts]
    found: list[tuple[MigInstance, ...]] = []
    for size in range(table.memory_slices + 1):
        for chosen in combinations(places, size):
            masks = [_profile(table, one).mask_at(one.start) for one in chosen]
            if sum(mask.bit_count() for mask in masks) > table.memory_slices:
                continue
            if sum(_profile(table, one).compute_slices for one in chosen) > table.compute_slices:
                continue
            if sum(masks).bit_count() == sum(m.bit_count() for m in masks) and not any(
                a & b for a, b in combinations(masks, 2)
            ):
                found.append(chosen)
    return found


def _profile(table: MigTable, instance: MigInstance) -> MigProfile:
    profile = table.find_profile(instance.profile)
    assert profile is not None
    return profile


@pytest.mark.parametrize("model", ["nvidia-a30", "nvidia-a100-80gb", "nvidia-rtx-pro-6000"])
def test_all_reachable_masks_and_full_layouts_are_those_of_trying_every_set(model: str) -> None:
    table = KNOWN_TABLES[model]
    sets = every_set(table)
    masks = {sum(_profile(table, one).mask_at(one.start) for one in each) for each in sets}
    assert mig_rules(table).reachable == tuple(sorted(masks))
    known = {frozenset(each) for each in sets}
    full = {
        each
        for each in known
        if not any(each < other and len(other) == len(each) + 1 for other in known)
    }
    assert {frozenset(layout.instances) for layout in list_full_layouts(table)} == full


STATES = (MigState.AVAILABLE, MigState.ALLOCATED, MigState.IN_USE)


@st.composite
def gpus_of(draw: st.DrawFn, table: MigTable, name: str) -> MigGpu:
    """Return a GPU with any legal instances in any settled states."""
    instances: list[MigInstance] = []
    for _ in range(draw(st.integers(0, 7))):
        options = [
            MigInstance(start, profile.name)
            for profile in table.profiles
            for start in profile.starts
            if find_problem(table, [*instances, MigInstance(start, profile.name)]) is None
        ]
        if not options:
            break
        instances.append(draw(st.sampled_from(options)))
    states = draw(st.lists(st.sampled_from(STATES), min_size=7, max_size=7))
    return MigGpu(GpuId(name), table, tuple(zip(instances, states, strict=False)))


@st.composite
def fleets_of(draw: st.DrawFn) -> list[MigGpu]:
    table = draw(tables)
    return [draw(gpus_of(table, f"GPU-{i}")) for i in range(draw(st.integers(1, 3)))]


def after(gpu: MigGpu, changes: tuple[GpuChange, ...]) -> list[MigInstance]:
    there = [one for one, _ in gpu.instances]
    for change in changes:
        if change.gpu_id == gpu.gpu_id:
            assert set(change.destroy) <= set(there)
            there = [one for one in there if one not in change.destroy] + list(change.create)
    return there


@given(fleets_of(), st.data())
@examples(80)
def test_room_is_made_legally_and_only_from_what_is_free(
    gpus: list[MigGpu], data: st.DataObject
) -> None:
    table = gpus[0].table
    profile = data.draw(st.sampled_from(table.profiles))
    count = data.draw(st.integers(1, 3))
    changes = plan_room(gpus, profile.name, count)
    if changes is None:
        return
    created = [one for change in changes for one in change.create]
    assert [one.profile for one in created] == [profile.name] * count
    for gpu in gpus:
        there = after(gpu, changes)
        assert find_problem(table, there) is None
        assert {one for one, state in gpu.instances if state in HELD} <= set(there)
        kept = {one for one, _ in gpu.instances if one.profile == profile.name}
        assert kept <= set(there)


@given(fleets_of(), st.data())
@examples(80)
def test_one_instance_costs_the_fewest_slices_of_any_way_to_make_it(
    gpus: list[MigGpu], data: st.DataObject
) -> None:
    table = gpus[0].table
    profile = data.draw(st.sampled_from(table.profiles))
    cheapest: int | None = None
    for gpu in gpus:
        free = [one for one in gpu.available if one.profile != profile.name]
        for size in range(len(free) + 1):
            for gone in combinations(free, size):
                kept = [one for one, _ in gpu.instances if one not in gone]
                for start in profile.starts:
                    if find_problem(table, [*kept, MigInstance(start, profile.name)]) is None:
                        cost = sum(_profile(table, one).memory_slices for one in gone)
                        cheapest = cost if cheapest is None else min(cheapest, cost)
    changes = plan_room(gpus, profile.name, 1)
    if cheapest is None:
        assert changes is None
        return
    assert changes is not None
    spent = sum(_profile(table, one).memory_slices for c in changes for one in c.destroy)
    assert spent == cheapest


@given(fleets_of(), st.data())
@examples(60)
def test_shares_are_planned_legally_around_what_is_held(
    gpus: list[MigGpu], data: st.DataObject
) -> None:
    table = gpus[0].table
    names = data.draw(
        st.lists(st.sampled_from([p.name for p in plain(table)]), min_size=1, unique=True)
    )
    shares = {name: data.draw(st.integers(1, 9)) for name in names}
    layouts, changes = plan_shares(gpus, shares)
    for gpu, layout in zip(gpus, layouts, strict=True):
        assert set(gpu.held) <= set(layout.instances)
        assert set(after(gpu, changes)) == set(layout.instances)
        for name in names:
            profile = table.find_profile(name)
            assert profile is not None
            assert not [
                start
                for start in profile.starts
                if find_problem(table, [*layout.instances, MigInstance(start, name)]) is None
            ]
    turned, _ = plan_shares(gpus, dict(reversed(shares.items())))
    assert turned == layouts


@given(st.data())
@examples(60)
def test_the_instance_given_out_keeps_most_future_placements(data: st.DataObject) -> None:
    table = KNOWN_TABLES[A100]
    gpus = [data.draw(gpus_of(table, f"GPU-{i}")) for i in range(3)]
    mig = {i: [(one.profile, one.start) for one, _ in gpu.instances] for i, gpu in enumerate(gpus)}
    fleet = a_fleet(a_node("node", 3, model=A100, mig=mig))
    held = [0, 0, 0]
    for i, gpu in enumerate(gpus):
        for one in gpu.held:
            fleet.mig_free[one.profile][i, 0] ^= np.uint16(1 << one.start)
            held[i] |= _profile(table, one).mask_at(one.start)
    free = [(i, one) for i, gpu in enumerate(gpus) for one in gpu.available]
    if not free:
        return
    name = data.draw(st.sampled_from(sorted({one.profile for _, one in free})))
    workload = a_workload().mig(name).build()
    mix = compute_typical_mix([workload], share=0.95, max_classes=8)
    bench = Bench(fleet, Policy(), mix, NOW, 0)
    chosen = choose_devices(bench.row(workload), 0).mig
    assert chosen is not None
    index, profile, start = chosen
    assert MigSlot(profile, start) in fleet.nodes[0].gpus[index].mig_instances

    def kept(at: int, one: MigInstance) -> int:
        """Return the placements open on the node once this instance is taken."""
        mask = held[at] | _profile(table, one).mask_at(one.start)
        return sum(
            len(free_placements(mask if i == at else held[i], p))
            for i in range(3)
            for p in plain(table)
        )

    options = [(i, one) for i, one in free if one.profile == name]
    best = max(kept(i, one) for i, one in options)
    assert kept(index, MigInstance(start, profile)) == best


@given(tables, st.data())
def test_a_loss_is_what_is_open_before_and_not_after(table: MigTable, data: st.DataObject) -> None:
    occupied = data.draw(st.sampled_from(mig_rules(table).reachable))
    profile = data.draw(st.sampled_from(plain(table)))
    for start in free_placements(occupied, profile):
        lost, shrunk = compute_loss(table, occupied, profile, start)
        after_mask = occupied | profile.mask_at(start)
        opened = [sum(len(free_placements(m, p)) for p in plain(table))
                  for m in (occupied, after_mask)]  # fmt: skip
        assert lost == opened[0] - opened[1] > 0
        assert 0 <= shrunk <= table.memory_slices
