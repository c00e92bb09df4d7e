"""When waiting work starts: the scheduler's own cycle on an event clock."""

from __future__ import annotations

from dataclasses import replace

from gpuplane.core.forecast.estimates import ForecastLimits, durations_of, expected_end
from gpuplane.core.forecast.forecasting import earliest_start, forecast
from gpuplane.core.prediction.durations import Basis, Durations, Quantile
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.workloads import Priority, TimeWindow
from tests.builders import NOW, WorkloadBuilder, World, a_node, a_workload

HOUR = 3_600_000


def lasting(name: str, hours: int, gpus: int = 8) -> WorkloadBuilder:
    return a_workload(name).gpus(gpus).having(estimated_duration_s=hours * 3600)


def exactly(hours: float) -> Durations:
    seconds = round(hours * 3600)
    return Durations(seconds, seconds, seconds, Basis.HISTORY)


def a_busy_world(hours: int, *pending: WorkloadBuilder) -> World:
    world = World([a_node("a")])
    world.pending = [lasting("busy", hours).build()]
    world.apply(decide(world.snapshot(), Policy(), NOW, 1))
    world.pending = [each.age(100 - n).build() for n, each in enumerate(pending)]
    return world


def test_work_that_fits_starts_now() -> None:
    world = World([a_node("a")], pending=[lasting("w", 1).build()])
    found = forecast(world.snapshot(), Policy(), NOW, 1)
    (estimate,) = found.estimates.values()
    assert (estimate.low, estimate.start, estimate.high) == (NOW, NOW, NOW)
    assert estimate.end == NOW + HOUR
    assert found.is_complete


def test_a_queue_starts_one_after_the_other() -> None:
    first, second = lasting("first", 2), lasting("second", 1)
    world = a_busy_world(1, first, second)
    found = forecast(world.snapshot(), Policy(), NOW, 1)
    starts = [found.estimates[each.build().job_id].start for each in (first, second)]
    assert starts == [NOW + HOUR, NOW + 3 * HOUR]


def test_the_interval_spans_short_and_long_durations() -> None:
    waiting = lasting("w", 2)
    world = a_busy_world(2, waiting)
    estimate = forecast(world.snapshot(), Policy(), NOW, 1).estimates[waiting.build().job_id]
    assert (estimate.low, estimate.start, estimate.high) == (
        NOW + HOUR,
        NOW + 2 * HOUR,
        NOW + 3 * HOUR,
    )
    assert estimate.end_low == NOW + 2 * HOUR
    assert estimate.end_high == NOW + 6 * HOUR
    assert estimate.basis is Basis.ESTIMATE


def test_history_makes_the_estimate_sharp() -> None:
    waiting = a_workload("w").gpus(8).having(learned=exactly(2))
    world = a_busy_world(4, waiting)
    busy = a_workload("busy").gpus(8).having(learned=exactly(1)).build()
    world.running = [replace(each, workload=busy, expected_end=None) for each in world.running]
    found = forecast(world.snapshot(), Policy(), NOW, 1)
    estimate = found.estimates[waiting.build().job_id]
    assert estimate.low == estimate.start == estimate.high == NOW + HOUR
    assert estimate.end == NOW + 3 * HOUR
    assert estimate.basis is Basis.HISTORY


def test_an_estimate_is_worth_no_more_than_what_it_waits_for() -> None:
    waiting = lasting("w", 1)
    world = a_busy_world(1, waiting)
    world.running = [
        replace(each, workload=replace(each.workload, estimated_duration_s=None))
        for each in world.running
    ]
    estimate = forecast(world.snapshot(), Policy(), NOW, 1).estimates[waiting.build().job_id]
    assert estimate.basis is Basis.DEFAULT


def test_work_that_never_fits_has_no_estimate() -> None:
    world = World([a_node("a", 4)], pending=[lasting("large", 1).build()])
    found = forecast(world.snapshot(), Policy(), NOW, 1)
    assert not found.estimates
    assert not found.is_complete


def test_a_scheduled_start_and_a_window_are_waited_for() -> None:
    later = lasting("later", 1).having(not_before=NOW + 2 * HOUR)
    # NOW is 08:53:20 UTC.
    noon = lasting("noon", 1, gpus=0).having(window=TimeWindow(720, 840, "UTC"))
    world = World([a_node("a")], pending=[later.build(), noon.build()])
    found = forecast(world.snapshot(), Policy(), NOW, 1)
    assert found.estimates[later.build().job_id].start == NOW + 2 * HOUR
    assert found.estimates[noon.build().job_id].start == NOW + 11_200_000


def test_a_preemptor_starts_after_the_grace_period_and_its_victim_returns() -> None:
    urgent = lasting("urgent", 1).priority(Priority.HIGH)
    world = a_busy_world(9, urgent)
    world.running = [replace(each, started_at=NOW - HOUR) for each in world.running]
    found = forecast(world.snapshot(), Policy(), NOW, 1)
    assert found.estimates[urgent.build().job_id].start == NOW + 30_000


def test_a_preemptor_of_young_work_starts_when_that_is_old_enough_and_the_victim_returns() -> None:
    urgent = lasting("urgent", 1).priority(Priority.HIGH)
    world = a_busy_world(9, urgent)
    world.running = [replace(each, started_at=NOW - 100_000) for each in world.running]
    found = forecast(world.snapshot(), Policy(), NOW, 1).estimates[urgent.build().job_id]
    assert found.start == found.high == NOW + 200_000 + 30_000
    behind = earliest_start(world.snapshot(), lasting("behind", 1).build(), Policy(), NOW, 1)
    assert behind is not None
    # The victim is the older of the two, and stands in line again for all of its nine hours.
    assert behind.start == found.end + 9 * HOUR
    equal = replace(urgent.build(), priority=Priority.NORMAL)
    calm = earliest_start(world.snapshot(), equal, Policy(), NOW, 1)
    assert calm is not None
    assert calm.start > NOW + HOUR, "nobody is stopped for it at any time"


def test_the_bounds_end_a_long_forecast() -> None:
    pending = [lasting(f"w{n}", 1) for n in range(6)]
    world = a_busy_world(1, *pending)
    limits = ForecastLimits(max_events=2)
    found = forecast(world.snapshot(), Policy(), NOW, 1, limits=limits)
    assert not found.is_complete
    assert len(found.estimates) == 2
    near = forecast(world.snapshot(), Policy(), NOW, 1, limits=ForecastLimits(horizon_s=3 * 3600))
    assert len(near.estimates) == 3


def test_the_earliest_start_of_new_work_is_behind_the_queue() -> None:
    world = a_busy_world(1, lasting("first", 2))
    found = earliest_start(world.snapshot(), lasting("new", 1).build(), Policy(), NOW, 1)
    assert found is not None
    assert found.start == NOW + 3 * HOUR
    never = earliest_start(world.snapshot(), lasting("huge", 1, gpus=9).build(), Policy(), NOW, 1)
    assert never is None


def test_a_forecast_leaves_the_snapshot_as_it_was() -> None:
    world = a_busy_world(1, lasting("first", 2), lasting("second", 1))
    snapshot = world.snapshot()
    forecast(snapshot, Policy(), NOW, 1)
    assert decide(snapshot, Policy(), NOW, 1) == decide(world.snapshot(), Policy(), NOW, 1)


def test_without_history_the_stated_number_decides_how_wide_the_interval_is() -> None:
    stated = durations_of(lasting("w", 2).build(), 60)
    assert (stated.low_s, stated.median_s, stated.high_s) == (3600, 7200, 10_800)
    capped = durations_of(a_workload().having(max_duration_s=1000).build(), 60)
    assert (capped.low_s, capped.high_s, capped.basis) == (100, 1000, Basis.MAXIMUM)
    unknown = durations_of(a_workload().build(), 60)
    assert (unknown.median_s, unknown.basis) == (60, Basis.DEFAULT)


def test_late_work_is_taken_to_last_a_tenth_longer_than_it_has() -> None:
    world = a_busy_world(1)
    late = replace(world.running[0], started_at=NOW - 10 * HOUR)
    durations = durations_of(late.workload, 60)
    assert expected_end(late, durations, Quantile.MEDIAN, NOW) == NOW + HOUR


def test_who_has_a_gpu_cut_keeps_nothing_from_the_forecast_of_others() -> None:
    mig = {0: [("1g.10gb", start) for start in range(7)]}
    world = World([a_node("a", 1, mig=mig, cpu_milli=8000)])
    world.pending = [
        a_workload("cut").mig("3g.40gb").age(60).having(estimated_duration_s=3600).build(),
        a_workload("small").mig("1g.10gb").age(30).having(estimated_duration_s=3600).build(),
        a_workload("next").mig("1g.10gb").age(10).having(estimated_duration_s=3600).build(),
    ]
    assert decide(world.snapshot(), Policy(), NOW, 1).repartitioning
    found = forecast(world.snapshot(), Policy(), NOW, 1)
    estimates = [found.estimates[workload.job_id] for workload in world.pending]
    assert [each.start for each in estimates] == [NOW, NOW, NOW]
    # Nobody knows how long a cut may take.
    assert [each.high for each in estimates] == [None, NOW, NOW]


def test_late_work_with_a_history_lasts_towards_its_p90_and_then_as_long_again() -> None:
    known = Durations(600, 3600, 4 * 3600, Basis.HISTORY)
    late = replace(a_busy_world(1).running[0], started_at=NOW - HOUR, expected_end=None)
    assert expected_end(late, known, Quantile.LOW, NOW) == NOW + HOUR // 10
    assert expected_end(late, known, Quantile.MEDIAN, NOW) == NOW + HOUR
    assert expected_end(late, known, Quantile.HIGH, NOW) == NOW + 3 * HOUR
    later = replace(late, started_at=NOW - 5 * HOUR)
    assert expected_end(later, known, Quantile.MEDIAN, NOW) == NOW + 5 * HOUR
    assert expected_end(later, known, Quantile.HIGH, NOW) == NOW + 150 * HOUR
    capped = replace(late.workload, max_duration_s=90 * 60)
    assert expected_end(replace(late, workload=capped), known, Quantile.MEDIAN, NOW) == (
        NOW + HOUR // 2
    )
