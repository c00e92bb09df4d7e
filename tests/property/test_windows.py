"""What every daily window keeps, whatever the zone does with its clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.scheduling.windows import (
    WITHOUT_END,
    find_current_window,
    find_fitting_window,
    find_next_window,
)
from gpuplane.core.workloads import TimeWindow

_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo")
_CHANGES = (datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC))

windows = st.builds(
    TimeWindow,
    st.integers(0, 1439),
    st.integers(0, 1439),
    st.sampled_from(_ZONES),
    st.lists(st.integers(1, 7), max_size=7, unique=True).map(tuple),
) | st.builds(TimeWindow, st.integers(0, 240), st.integers(0, 240), st.sampled_from(_ZONES))
any_minute = st.integers(0, 365 * 1440).map(
    lambda minutes: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
)
near_a_change = st.builds(
    lambda day, minutes: day + timedelta(minutes=minutes),
    st.sampled_from(_CHANGES),
    st.integers(0, 3 * 1440),
)
instants = (any_minute | near_a_change).map(lambda moment: round(moment.timestamp() * 1000))


@given(windows, instants)
def test_no_window_closes_before_it_opens_and_the_next_one_is_not_over(
    window: TimeWindow, now: int
) -> None:
    span = find_next_window(window, now)
    assert span is not None
    assert span[0] < span[1]
    assert now < span[1]
    current = find_current_window(window, now)
    assert (current == span) is (span[0] <= now)


@given(windows, instants)
def test_a_window_opens_and_closes_at_its_wall_times_as_the_zone_maps_them(
    window: TimeWindow, now: int
) -> None:
    span = find_next_window(window, now)
    assert span is not None
    for at, minute in zip(span, (window.start_minute, window.end_minute), strict=True):
        if at == WITHOUT_END:
            assert window.start_minute == window.end_minute
            continue
        shown = datetime.fromtimestamp(at / 1000, ZoneInfo(window.zone))
        days = (shown.date() + timedelta(days=offset) for offset in (-1, 0, 1))
        walls = (
            datetime(day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=shown.tzinfo)
            for day in days
        )
        assert at in {round(wall.timestamp() * 1000) for wall in walls}


@given(windows, instants, st.integers(60, 86_400))
def test_work_fits_its_window_or_gets_the_open_or_next_one(
    window: TimeWindow, now: int, duration_s: int
) -> None:
    span = find_fitting_window(window, now, duration_s)
    assert span is not None
    is_fitting = max(now, span[0]) + duration_s * 1000 <= span[1]
    assert is_fitting or span == find_next_window(window, now)
