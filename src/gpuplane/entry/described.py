"""How a setting is described: its unit, its reason and what it may be."""

from dataclasses import field
from typing import Any


class SettingsError(Exception):
    """A setting that cannot hold; the text names it, says why and what to do."""


def setting(
    default: Any,
    unit: str,
    reason: str,
    *,
    within: tuple[float, float] | None = None,
    among: tuple[str, ...] = (),
) -> Any:
    """Return a field of a settings group with its unit and its reason.

    Args:
        default: What holds when nobody sets it.
        unit: What it counts, or how it is written.
        reason: Why it is there, or why it is so large.
        within: The least and the most that a number may be; every number has them.
        among: The words that it may be, where only some have a meaning.
    """
    told = {"unit": unit, "reason": reason, "within": within, "among": tuple(map(str, among))}
    return field(default=default, metadata=told)
