"""The fields of instants and durations, as CEL's standard functions count them.

Months, days of the month and of the year begin with 0, getDate with 1, a week with Sunday as 0.
Source: CEL language definition, "Timestamps and durations".
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind
from gpuplane.domains.pipelines.expressions.values import Meter, kind_of

_OFFSET = re.compile(r"([+-]?)([0-9]{1,2}):([0-9]{2})")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(?:/[A-Za-z0-9_+-]{1,31}){0,2}")
_OF_INSTANT: dict[str, Callable[[datetime], int]] = {
    "getFullYear": lambda at: at.year,
    "getMonth": lambda at: at.month - 1,
    "getDate": lambda at: at.day,
    "getDayOfMonth": lambda at: at.day - 1,
    "getDayOfWeek": lambda at: at.isoweekday() % 7,
    "getDayOfYear": lambda at: at.timetuple().tm_yday - 1,
    "getHours": lambda at: at.hour,
    "getMinutes": lambda at: at.minute,
    "getSeconds": lambda at: at.second,
    "getMilliseconds": lambda at: at.microsecond // 1000,
}
_US = {"getHours": 3_600_000_000, "getMinutes": 60_000_000, "getSeconds": 1_000_000}
NAMES = tuple(_OF_INSTANT)


def field_of(name: str) -> Callable[..., int]:
    """Return the function of a name: a field of an instant in a zone, or of a duration."""

    def run(meter: Meter, at: int, value: Any, zone: Any = None) -> int:
        if isinstance(value, datetime):
            try:
                return _OF_INSTANT[name](value.astimezone(_zone_of(at, zone)))
            except OverflowError:
                raise ExpressionError("The instant lies too far away.", at, Kind.TYPE) from None
        if isinstance(value, timedelta) and zone is None and (name in _US or name == NAMES[-1]):
            whole_us = value // timedelta(microseconds=1)
            unit = _US.get(name, 1_000)
            count = abs(whole_us) // unit if name in _US else abs(whole_us) // unit % 1_000
            return count if whole_us >= 0 else -count
        kind = kind_of(value).removesuffix("_type")
        raise ExpressionError(f"{name} does not take {kind}.", at, Kind.TYPE,
                              "Give it timestamp('2026-05-01T09:00:00Z').")  # fmt: skip

    return run


def _zone_of(at: int, zone: Any) -> tzinfo:
    if zone is None:
        return UTC
    offset = _OFFSET.fullmatch(zone) if isinstance(zone, str) else None
    if offset is not None and int(offset[2]) < 24 and int(offset[3]) < 60:
        span = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-span if offset[1] == "-" else span)
    if isinstance(zone, str) and offset is None and _ZONE.fullmatch(zone):
        try:
            return ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise ExpressionError("There is no such time zone.", at, Kind.TYPE,
                          "Such as 'Europe/Berlin' or '+02:00'.")  # fmt: skip
