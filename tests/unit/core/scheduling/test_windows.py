"""Daily windows across midnight, weekdays and changes of the clock."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.windows import (
    WITHOUT_END,
    find_current_window,
    find_fitting_window,
    find_next_window,
)
from gpuplane.core.workloads import TimeWindow
from tests.builders import World, a_node, a_workload

BERLIN = "Europe/Berlin"
NIGHT = TimeWindow(22 * 60, 6 * 60, BERLIN)


def at(text: str, zone: str = BERLIN, fold: int = 0) -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return round(moment.timestamp() * 1000)


@pytest.mark.parametrize(
    ("instant", "is_open"),
    [
        ("2025-06-10T21:59", False),
        ("2025-06-10T22:00", True),
        ("2025-06-11T03:00", True),
        ("2025-06-11T05:59", True),
        ("2025-06-11T06:00", False),
        ("2025-06-11T12:00", False),
    ],
)
def test_a_window_across_midnight_is_open_at_night(instant: str, is_open: bool) -> None:
    assert (find_current_window(NIGHT, at(instant)) is not None) is is_open


def test_a_closed_window_tells_when_it_opens_and_closes() -> None:
    assert find_next_window(NIGHT, at("2025-06-11T12:00")) == (
        at("2025-06-11T22:00"),
        at("2025-06-12T06:00"),
    )


def test_a_night_on_which_the_clock_goes_back_is_an_hour_longer() -> None:
    opened, closes = find_current_window(NIGHT, at("2025-10-26T01:00")) or (0, 0)
    assert closes - opened == 9 * 3_600_000


def test_a_night_on_which_the_clock_goes_forward_is_an_hour_shorter() -> None:
    opened, closes = find_current_window(NIGHT, at("2025-03-30T01:00")) or (0, 0)
    assert closes - opened == 7 * 3_600_000


def test_a_start_that_the_clock_jumps_over_is_as_much_later() -> None:
    window = TimeWindow(150, 300, BERLIN)
    opened, _ = find_next_window(window, at("2025-03-30T00:00")) or (0, 0)
    assert opened == at("2025-03-30T03:30")


def test_weekdays_name_the_day_on_which_the_window_opens() -> None:
    friday_night = TimeWindow(22 * 60, 6 * 60, BERLIN, weekdays=(5,))
    assert find_current_window(friday_night, at("2025-06-14T03:00")) is not None
    assert find_current_window(friday_night, at("2025-06-13T03:00")) is None
    assert find_next_window(friday_night, at("2025-06-14T07:00")) == (
        at("2025-06-20T22:00"),
        at("2025-06-21T06:00"),
    )


def test_equal_start_and_end_is_a_whole_day() -> None:
    window = TimeWindow(0, 0, "UTC", weekdays=(1,))
    assert find_current_window(window, at("2025-06-09T23:59", "UTC")) is not None
    assert find_current_window(window, at("2025-06-10T00:00", "UTC")) is None


def test_work_waits_for_its_window_and_starts_inside_it() -> None:
    world = World([a_node()], pending=[a_workload().having(window=NIGHT).build()])
    closed = decide(world.snapshot(), Policy(), at("2025-06-11T12:00"), 1)
    assert closed.waiting[0].reason.word is Word.TIME_WINDOW
    assert decide(world.snapshot(), Policy(), at("2025-06-11T23:00"), 1).placed


def test_a_zone_that_is_not_known_is_a_reason_and_no_error() -> None:
    window = TimeWindow(0, 60, "Mars/Olympus")
    world = World([a_node()], pending=[a_workload().having(window=window).build()])
    verdict = decide(world.snapshot(), Policy(), at("2025-06-11T12:00"), 1).waiting[0]
    assert verdict.reason.word is Word.TIME_WINDOW
    assert "Mars/Olympus" in verdict.reason.sentence


def test_a_window_that_the_clock_would_close_before_it_opens_stays_shut_that_day() -> None:
    # 02:45 is jumped over and becomes 03:45, which is after 03:15.
    window = TimeWindow(2 * 60 + 45, 3 * 60 + 15, BERLIN)
    assert find_current_window(window, at("2026-03-29T03:05")) is None
    assert find_next_window(window, at("2026-03-29T01:00")) == (
        at("2026-03-30T02:45"),
        at("2026-03-30T03:15"),
    )


def test_work_that_is_too_long_for_what_is_left_waits_over_the_change_of_the_clock() -> None:
    window = TimeWindow(2 * 60 + 45, 3 * 60 + 15, BERLIN)
    late = a_workload().having(window=window, estimated_duration_s=20 * 60).build()
    decision = decide(
        World([a_node()], pending=[late]).snapshot(), Policy(), at("2026-03-28T03:00"), 1
    )
    assert decision.waiting[0].reason.word is Word.WINDOW_TOO_SHORT
    assert find_fitting_window(window, at("2026-03-28T03:00"), 20 * 60) == (
        at("2026-03-30T02:45"),
        at("2026-03-30T03:15"),
    )


def test_a_window_of_all_days_has_no_end_so_long_work_starts_at_any_hour() -> None:
    window = TimeWindow(8 * 60, 8 * 60, "UTC")
    now = at("2026-01-01T20:00", "UTC")
    assert (find_current_window(window, now) or (0, 0))[1] == WITHOUT_END
    long = a_workload().having(window=window, estimated_duration_s=13 * 3600).build()
    assert decide(World([a_node()], pending=[long]).snapshot(), Policy(), now, 1).placed


def test_whole_days_one_after_another_are_one_window() -> None:
    weekend = TimeWindow(0, 0, "UTC", weekdays=(6, 7))
    span = find_fitting_window(weekend, at("2026-01-03T20:00", "UTC"), 13 * 3600)
    assert span == (at("2026-01-03T00:00", "UTC"), at("2026-01-05T00:00", "UTC"))
