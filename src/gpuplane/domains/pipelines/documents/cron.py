"""When a cron expression fires next in a zone.

A local time that a change of clocks leaves out fires right after it, one that comes twice fires
once (Debian's cron, which the library follows).
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError


class CronError(ValueError):
    """A cron expression or zone that cannot be meant; the text is a sentence."""


def read_cron(expression: str, zone: str) -> None:
    """Check a cron expression and its zone.

    Raises:
        CronError: If it cannot be read, never fires, or the zone is unknown.
    """
    start = datetime(2026, 1, 1, tzinfo=UTC)
    if next_fire(expression, zone, round(start.timestamp() * 1000)) is None:
        raise CronError("The cron expression never fires.")


def next_fire(expression: str, zone: str, after: int) -> int | None:
    """Return the first firing after an instant in milliseconds, None if there is none.

    Raises:
        CronError: If the expression cannot be read or the zone is unknown.
    """
    if len(expression.split()) not in (5, 6) or any(sign in expression for sign in "\n\r\x00"):
        raise CronError("A cron expression has five fields, such as '0 2 * * *'.")
    try:
        known = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise CronError(f"There is no time zone {zone!r}.") from error
    at = datetime.fromtimestamp(after / 1000, known)
    try:
        found = next(CronSim(expression, at), None)
    except CronSimError as error:
        raise CronError(f"The cron expression cannot be read: {error}.") from error
    except OverflowError:
        return None
    return None if found is None else round(found.timestamp() * 1000)


def fires_between(expression: str, zone: str, after: int, until: int, limit: int) -> list[int]:
    """Return the firings after one instant and up to another, the latest `limit` of them."""
    fires: list[int] = []
    at = next_fire(expression, zone, after)
    # Every minute of ten years is five million: whoever was away so long gets the last ones.
    earliest = until - round(timedelta(days=31).total_seconds() * 1000)
    if at is not None and at < earliest:
        at = next_fire(expression, zone, earliest)
    while at is not None and at <= until:
        fires.append(at)
        if len(fires) > limit:
            del fires[0]
        at = next_fire(expression, zone, at)
    return fires
