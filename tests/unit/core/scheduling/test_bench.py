"""What a bench keeps, for how long, and what it forgets."""

from __future__ import annotations

import pickle

import numpy as np

from gpuplane.core.fleet.columns import MAX_LOG, Fleet, Take
from gpuplane.core.scheduling.bench import MIN_ROWS, NOT_FIT, Bench, open_bench
from gpuplane.core.scheduling.fragmentation import compute_typical_mix
from gpuplane.core.scheduling.fragments import TypicalMix
from gpuplane.core.scheduling.placement import place_batch, place_workload
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy
from tests.builders import NOW, a_fleet, a_workload

NO_MIX = TypicalMix((), ())


def a_bench(fleet: Fleet) -> Bench:
    return open_bench(fleet, Policy(), NO_MIX, NOW, 1)


def change_often(fleet: Fleet, times: int) -> None:
    """Lead the first node through as many states as times, and back."""
    for cpu in range(1, times + 1):
        fleet.allocate(Take(0, 0, 0, cpu, 0, 0))
        fleet.release(Take(0, 0, 0, cpu, 0, 0))


def test_a_row_outlives_its_cycle() -> None:
    fleet = a_fleet(count=2)
    bench = a_bench(fleet)
    row = bench.row(a_workload().build())
    bench.close()
    again = a_bench(fleet)
    assert again is bench
    assert again.row(a_workload().build()) is row


def test_a_bench_in_use_is_not_given_to_somebody_else() -> None:
    fleet = a_fleet(count=2)
    first = a_bench(fleet)
    assert a_bench(fleet) is not first


def test_another_policy_gets_a_bench_of_its_own() -> None:
    fleet = a_fleet(count=2)
    first = a_bench(fleet)
    first.close()
    policy = Policy(placement=PlacementPolicy.LEAST_LOADED)
    assert open_bench(fleet, policy, NO_MIX, NOW, 1) is not first


def test_a_node_kept_for_two_heads_is_kept_for_the_earlier_one() -> None:
    bench = a_bench(a_fleet(count=2))
    for first, second in ((1000, 9000), (9000, 1000)):
        bench.hold(1, NOW + first)
        bench.hold(1, NOW + second)
        assert bench.open_nodes(NOW + 2000).tolist() == [True, False]
        assert bench.open_nodes(NOW + 1000).tolist() == [True, True]
        bench.release_holds()


def test_nodes_that_were_held_are_free_again_in_the_next_cycle() -> None:
    fleet = a_fleet(count=2)
    bench = a_bench(fleet)
    bench.hold(1, NOW + 1000)
    assert bench.open_nodes(NOW + 2000).tolist() == [True, False]
    bench.close()
    assert a_bench(fleet).open_nodes(NOW + 2000).tolist() == [True, True]


def test_another_mix_changes_ranks_and_not_who_fits() -> None:
    fleet = a_fleet(count=3)
    fleet.allocate(Take(0, 0b1111_1111, 1000, 0, 0, 0))
    fleet.allocate(Take(1, 0b0000_0111, 500, 0, 0, 0))
    small = a_workload().share(400).build()
    bench = a_bench(fleet)
    row = bench.row(small)
    before, fits = row.ranks.tolist(), row.fits.tolist()
    bench.close()
    mix = compute_typical_mix([a_workload().gpus(8).build(), small], share=1, max_classes=8)
    row = open_bench(fleet, Policy(), mix, NOW, 1).row(small)
    assert row.fits.tolist() == fits == [False, True, True]
    assert row.ranks.tolist() != before
    assert row.find_best() == (1, int(row.ranks[1]))


def test_states_that_no_node_is_in_are_forgotten_and_rows_stay_right() -> None:
    fleet = a_fleet(count=2)
    workload = a_workload().gpus(4).build()
    bench = a_bench(fleet)
    expected = bench.row(workload).ranks.tolist()
    change_often(fleet, MAX_LOG + 100)
    seen = len(fleet.states)
    fleet.settle()
    assert len(fleet.states) <= 2 < MAX_LOG < seen
    assert bench.row(workload).ranks.tolist() == expected
    assert len(place_batch(workload, 5, bench)) == 4
    assert bench.row(workload).ranks.tolist() == [NOT_FIT, NOT_FIT]


def test_who_looks_late_still_learns_which_nodes_changed() -> None:
    fleet = a_fleet(count=3)
    before = fleet.clock
    fleet.allocate(Take(2, 0b1, 1000, 0, 0, 0))
    change_often(fleet, MAX_LOG)
    assert set(fleet.list_changed(before)) == {0, 2}
    assert set(fleet.list_changed(fleet.clock)) == set()


def test_rows_are_bounded_and_the_oldest_go_first() -> None:
    fleet = a_fleet(count=1)
    bench = Bench(fleet, Policy(), NO_MIX, NOW, 1)
    bench.max_rows = MIN_ROWS
    first = bench.row(a_workload().gpus(0, cpu_milli=1).build())
    for cpu in range(2, MIN_ROWS + 2):
        bench.row(a_workload().gpus(0, cpu_milli=cpu).build())
    assert bench.row(a_workload().gpus(0, cpu_milli=2).build()).need.resources.cpu_milli == 2
    assert bench.row(a_workload().gpus(0, cpu_milli=1).build()) is not first


def test_a_fleet_that_is_sent_away_leaves_what_it_keeps_behind() -> None:
    fleet = a_fleet(count=2)
    bench = a_bench(fleet)
    place_workload(a_workload().build(), bench, None)
    sent: Fleet = pickle.loads(pickle.dumps(fleet))
    assert sent.find_pinned("bench") is None
    assert np.array_equal(sent.gpu_free_milli, fleet.gpu_free_milli)
    spots = place_workload(a_workload().build(), a_bench(sent), None)
    assert spots == place_workload(a_workload().build(), bench, None)
