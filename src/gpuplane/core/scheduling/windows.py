"""Daily time windows in a named zone: open now, opens next, closes when.

Owns the arithmetic across midnight and across changes of the clock; the instant is an argument.
A window opens and closes at its wall-clock times, so a night on which the clock goes back is an
hour longer, and a start that the clock jumps over is as much later as the clock jumped. A window
that would close before it opens on such a day does not open on it. Whole days one after another
are one window; one of all days has no end.
"""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.workloads import TimeWindow, WindowEnd

_SEARCH_DAYS = 15
"""Two weeks and a day: a window with weekdays opens at least once a week."""
_WEEK_DAYS = 7
WITHOUT_END = 1 << 62
"""When a window closes that is always open, in ms: after every duration."""


def find_current_window(window: TimeWindow, now: int) -> tuple[int, int] | None:
    """Return (opened at, closes at) in ms of the window that is open now, or None.

    Raises:
        ZoneInfoNotFoundError: If the zone is not in the time zone database.
    """
    today = datetime.fromtimestamp(now / MS_PER_S, UTC).astimezone(ZoneInfo(window.zone)).date()
    for day in (today - timedelta(days=1), today):
        span = _span_of(window, day)
        if span is not None and span[0] <= now < span[1]:
            return span
    return None


def find_next_window(window: TimeWindow, now: int) -> tuple[int, int] | None:
    """Return (opens at, closes at) of the open or next window, None if it opens on no day."""
    current = find_current_window(window, now)
    if current is not None:
        return current
    today = datetime.fromtimestamp(now / MS_PER_S, UTC).astimezone(ZoneInfo(window.zone)).date()
    for offset in range(_SEARCH_DAYS):
        span = _span_of(window, today + timedelta(days=offset))
        if span is not None and span[0] > now:
            return span
    return None


def find_fitting_window(
    window: TimeWindow, now: int, duration_s: int | None
) -> tuple[int, int] | None:
    """Return (opens at, closes at) of the first window, open or next, in which work should start.

    Work whose duration is known starts only where it ends before the window closes, so that it
    neither runs on into the hours it was kept out of nor is stopped with everything lost. It starts
    in the open or next window after all if its duration is not known, if none is long enough, or
    if it writes a checkpoint at the close and goes on in the next one.

    Args:
        window: The window.
        now: The instant from which to look.
        duration_s: How long the work is expected to run, or None.
    """
    first = find_next_window(window, now)
    if first is None or duration_s is None or window.at_end is WindowEnd.CHECKPOINT:
        return first
    found: tuple[int, int] | None = first
    for _ in range(_SEARCH_DAYS):
        if found is None:
            break
        if max(now, found[0]) + duration_s * MS_PER_S <= found[1]:
            return found
        found = find_next_window(window, found[1])
    return first


def _span_of(window: TimeWindow, day: date) -> tuple[int, int] | None:
    """Return the window that opens on a local day, None when it does not open that day."""
    if window.weekdays and day.isoweekday() not in window.weekdays:
        return None
    opens = _instant(day, window.start_minute, window.zone)
    if window.start_minute == window.end_minute:
        return opens, _end_of_days(window, day)
    crosses = window.end_minute < window.start_minute
    last = day + timedelta(days=1) if crosses else day
    closes = _instant(last, window.end_minute, window.zone)
    # A start that the clock jumps over may be later than an end behind the jump.
    return (opens, closes) if opens < closes else None


def _end_of_days(window: TimeWindow, first: date) -> int:
    """Return when whole days, of which this is one, are followed by a day that is none."""
    for days in range(1, _WEEK_DAYS):
        day = first + timedelta(days=days)
        if window.weekdays and day.isoweekday() not in window.weekdays:
            return _instant(day, window.end_minute, window.zone)
    return WITHOUT_END


def _instant(day: date, minute: int, zone: str) -> int:
    local = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone))
    moment = local.replace(hour=minute // 60, minute=minute % 60, fold=0)
    return round(moment.timestamp() * MS_PER_S)
