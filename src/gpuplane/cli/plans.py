"""The plan of a job in a few lines: where, when, what it costs, what would be cheaper. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from gpuplane.cli.words import money_text, when

CHEAPER_SHOWN = 2


def plan_lines(estimate: Mapping[str, Any], at: datetime | None = None) -> list[str]:
    """Return an estimate as lines for people.

    Args:
        estimate: The answer of `POST /jobs/estimate`.
        at: The present instant.
    """
    lines = [f"plan: {_where(estimate)}, {_start(estimate, at)}, {_cost(estimate)}"]
    workers = estimate.get("by_worker") or []
    if len({_cost(each) for each in workers}) > 1:
        lines += [f"      on {each['cluster']}: {_cost(each)}" for each in workers]
    if not estimate["fits_now"] and estimate["sentence"]:
        reason = f"{estimate['reason']}: " if estimate["reason"] else ""
        lines.append(f"      {reason}{estimate['sentence']}")
    expected = estimate.get("prediction")
    if expected is not None and expected["durations_seconds"] is not None:
        lines.append(f"      expected: {expected['sentence']}")
    for option in estimate["cheaper"][:CHEAPER_SHOWN]:
        saving = money_text(option["saving"], estimate["currency"])
        less = f" ({saving} an hour less)" if saving else ""
        lines.append(f"      cheaper: {option['sentence']}{less}")
    return lines


def _where(estimate: Mapping[str, Any]) -> str:
    cluster = estimate["cluster"]
    if cluster is None:
        return "no cluster takes it now"
    simulated = " (simulated: nothing is executed)" if estimate["simulated"] else ""
    nodes = estimate["nodes"]
    if not nodes:
        return f"{cluster}{simulated}"
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"{cluster}{simulated} on {', '.join(nodes[:3])}{more}"


def _range(workers: Sequence[Mapping[str, Any]]) -> str:
    """Return the least and the most that a job costs an hour, unknown where one has no price."""
    hourly = [each["hourly_cost"] for each in workers]
    currencies = {each["currency"] for each in workers}
    if None in hourly or len(currencies) > 1:
        return "cost unknown"
    least, most = sorted(hourly, key=Decimal)[:: len(hourly) - 1]
    return f"{money_text(least)} to {money_text(most, *currencies)} an hour"


def _start(estimate: Mapping[str, Any], at: datetime | None) -> str:
    if estimate["fits_now"]:
        return "now"
    if estimate["reason"] == "WaitingForAdmission":
        return "starts when its Kueue admits it"
    if estimate["earliest_start"] is None:
        return "start unknown"
    return f"starts {when(estimate['earliest_start'], at)} by estimate"


def _cost(estimate: Mapping[str, Any]) -> str:
    """Return what a job would cost; where a worker will run it, from the least to the most."""
    workers = estimate.get("by_worker") or []
    if len({_cost(each) for each in workers}) > 1:
        return f"{_range(workers)}, by the worker that takes it"
    currency = estimate["currency"]
    hourly = estimate["hourly_cost"]
    rate = "" if hourly is None else f"{money_text(hourly, currency)} an hour"
    if estimate["estimated_cost"] is not None:
        total = f"about {money_text(estimate['estimated_cost'], currency)}"
        return f"{total} ({rate})" if rate else total
    if estimate["max_cost"] is not None:
        return f"at most {money_text(estimate['max_cost'], currency)}"
    if hourly is None:
        return "no price known"
    return "free of charge" if float(hourly) == 0 else rate
