"""How values are written for people: instants, durations, sizes, money, ids. Pure."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
CENT = Decimal("0.01")
NO_PRICE = "no price"
"""What is shown where something was used that has no price: it is not free."""
DURATION_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def instant_of(text: str | None) -> datetime | None:
    """Return an RFC 3339 instant of the API as an aware datetime."""
    return None if text is None else datetime.fromisoformat(text)


def now() -> datetime:
    """Return the present instant."""
    return datetime.now(UTC)


def duration_text(seconds: float) -> str:
    """Return seconds as the two largest units that say something: `2h5m`, `45s`, `0.3s`."""
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if 0 < seconds < 1:
        return f"{seconds:.1f}s"
    left, parts = round(seconds), []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def age(text: str | None, at: datetime | None = None) -> str:
    """Return how long ago an instant of the API was."""
    instant = instant_of(text)
    return "" if instant is None else duration_text(((at or now()) - instant).total_seconds())


def when(text: str | None, at: datetime | None = None) -> str:
    """Return an instant near now as a distance (`in 5m`, `3m ago`) and a far one as a date."""
    instant = instant_of(text)
    if instant is None:
        return ""
    distance = (instant - (at or now())).total_seconds()
    if abs(distance) < 1:
        return "now"
    if abs(distance) > 2 * 86_400:
        return instant.astimezone().strftime("%Y-%m-%d %H:%M")
    return f"in {duration_text(distance)}" if distance > 0 else f"{duration_text(-distance)} ago"


def clock_text(text: str | None) -> str:
    """Return an instant in the local zone, to the second."""
    instant = instant_of(text)
    return "" if instant is None else instant.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def seconds_between(start: str | None, end: str | None) -> float | None:
    """Return the seconds between two instants of the API; until now without an end."""
    first = instant_of(start)
    if first is None:
        return None
    return ((instant_of(end) or now()) - first).total_seconds()


def money_text(amount: str | None, currency: str = "") -> str:
    """Return an amount with its currency, always with two decimals; less than a cent says so."""
    if amount is None:
        return ""
    exact = Decimal(amount)
    shown = f"{exact:.2f}"
    if exact and abs(exact) < CENT:
        shown = "<0.01" if exact > 0 else ">-0.01"
    return f"{shown} {currency}".rstrip()


def cost_text(job: Mapping[str, Any]) -> str:
    """Return what a job has cost; nothing before it starts, and that no price is known."""
    if job["actual_cost"] is None and job["actual_start"] is not None:
        return NO_PRICE
    return money_text(job["actual_cost"], job["currency"])


def price_text(amount: str | None, currency: str) -> str:
    """Return a price with its currency, as exact as it is."""
    return "" if amount is None else f"{amount} {currency}"


def costs_text(costs: Mapping[str, str], currency: str, unpriced: Collection[str] = ()) -> str:
    """Return amounts by currency in one line; nothing in a currency where there is none.

    Where what was used has no price at all, that is said: it did not cost nothing.
    """
    told = ", ".join(money_text(each, name) for name, each in sorted(costs.items()))
    return told or (NO_PRICE if unpriced else money_text("0", currency))


def short_id(value: str | None) -> str:
    """Return the end of an id: ids begin with their instant, so beginnings look alike."""
    return "" if value is None else value[-8:]


def first_line(text: str) -> str:
    """Return a text as far as a table has room for it: its first line, marked where more follow."""
    line, _, rest = text.strip().partition("\n")
    return f"{line.rstrip()} …" if rest else line


def project_text(job: Mapping[str, Any]) -> str:
    """Return where a job lies: tenant and project, of which each may have been deleted since."""
    return "/".join(job[name] or "(deleted)" for name in ("tenant", "project"))


def gpus_text(job: Mapping[str, Any]) -> str:
    """Return what GPUs a job asks: `4x8 H100-80GB`; a service that scales, those wanted now."""
    count, wanted = job["gpu_count"], job.get("replicas_wanted")
    replicas = job["replica_count"] if wanted is None else wanted
    share = (job.get("resources") or {}).get("gpu_share", 1)
    profile = (job.get("resources") or {}).get("mig_profile")
    if profile:
        each = profile
    elif not count:
        each = "0"
    else:
        each = f"{share:g}" if share < 1 else str(count)
    times = "" if replicas == 1 else f"{replicas}x"
    return f"{times}{each} {model_text(job.get('gpu_type'))}".rstrip()


def model_text(model: str | None) -> str:
    """Return the name of a GPU model as people say it: `H100-80GB` for `nvidia-h100-80gb`."""
    return (model or "").removeprefix("nvidia-").upper()


def size_text(count: float, unit: str = "B") -> str:
    """Return a count of bytes with a binary prefix."""
    for prefix in ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(count) < 1024 or prefix == "Ti":
            return f"{count:.0f} {prefix}{unit}" if count >= 10 else f"{count:.3g} {prefix}{unit}"
        count /= 1024
    return ""


def parse_duration(text: str) -> int:
    """Return the seconds that `90`, `90s`, `15m`, `2h30m` or `1d` stand for.

    Raises:
        ValueError: If it is none of these.
    """
    if text.isdigit():
        return int(text)
    total, digits = 0, ""
    for char in text:
        if char.isdigit():
            digits += char
        elif digits and char in DURATION_UNITS:
            total += int(digits) * DURATION_UNITS[char]
            digits = ""
        else:
            raise ValueError(f"{text!r} is no duration")
    if digits or not total:
        raise ValueError(f"{text!r} is no duration")
    return total


def parse_instant(text: str, at: datetime | None = None) -> str:
    """Return an instant as RFC 3339: `+2h`, `-30m`, or a date and time (local without a zone).

    Raises:
        ValueError: If it is neither.
    """
    base = at or now()
    if text[:1] in "+-" and text[1:]:
        try:
            distance = timedelta(seconds=parse_duration(text[1:]))
            return (base + distance if text[0] == "+" else base - distance).isoformat()
        except OverflowError as error:
            raise ValueError(f"{text!r} lies outside of the years 1 to 9999") from error
    instant = datetime.fromisoformat(text.replace("t", "T").replace("z", "Z"))
    return (instant if instant.tzinfo else instant.astimezone()).isoformat()


def parse_gib(text: str) -> float:
    """Return the GiB that `8`, `8G`, `8Gi`, `512M` or `1.5T` stand for.

    Raises:
        ValueError: If it is none of these.
    """
    number = text.removesuffix("B").removesuffix("b").removesuffix("i")
    sizes = {"K": 1 / 1_048_576, "M": 1 / 1024, "G": 1.0, "T": 1024.0}
    unit = number[-1:].upper()
    value = float(number[:-1]) * sizes[unit] if unit in sizes else float(number)
    if not 0 <= value < 1e9:
        raise ValueError(text)
    return value


def policy_lines(policy: dict[str, Any], cluster: str) -> list[str]:
    """Return the preemption policy of a cluster, or who preempts there in its place."""
    if policy["is_in_force"]:
        told = ("is_in_force", "decided_by")
        return [f"{name}: {value}" for name, value in policy.items() if name not in told]
    return [
        "by the ClusterQueues of Kueue",
        f"whom each preempts and reclaims: gpuplane quotas ls --cluster {cluster} -o wide",
    ]
