"""What earlier runs of a model teach about the next one.

Owns the sums and the advice. What it rests on is said with it; below `ENOUGH` runs nothing is
advised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ENOUGH = 3
KEPT_RUNS = 50
"""Runs kept by model: older ones were of another image as often as not."""
_SLOWER = 125
"""A kind of GPU is called slower from this many percent of the fastest one's median on."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a model that is over.

    Attributes:
        duration_s: From the Job's start to its end.
        product: The kind of GPU it ran on, empty where the node did not say.
        failure: Empty for a success.
    """

    workload: str
    gpus: int
    duration_s: int
    product: str
    failure: str


def compute_profile(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the sums of a model's runs for the status of its workloads."""
    good = sorted(run.duration_s for run in runs if not run.failure)
    profile: dict[str, Any] = {"runs": len(runs), "succeeded": len(good)}
    if good:
        profile["durationSecondsP50"] = good[(len(good) - 1) // 2]
        profile["durationSecondsP90"] = good[(len(good) * 9 - 1) // 10]
    return profile


def list_recommendations(runs: Sequence[Run], gpus: int) -> list[str]:
    """Return sentences of advice for a workload of a model that asks for so many GPUs."""
    if len(runs) < ENOUGH:
        return []
    told: list[str] = []
    killed = sum("OOMKilled" in run.failure for run in runs)
    if killed:
        told.append(
            f"{killed} of the last {len(runs)} runs were killed for memory; "
            "give the model's image a larger memory limit"
        )
    told += _slower_products(runs)
    by_count = _medians(runs, lambda run: str(run.gpus))
    fewer = [int(count) for count in by_count if int(count) < gpus]
    if str(gpus) in by_count and fewer:
        few = max(fewer)
        gain = by_count[str(few)] * 100 // max(1, by_count[str(gpus)])
        if gain * few < 60 * gpus:
            told.append(
                f"{gpus} GPUs are {gain / 100:.1f} times as fast as {few} "
                f"(medians of {len(runs)} runs); {few} would use them better"
            )
    return told


def _slower_products(runs: Sequence[Run]) -> list[str]:
    medians = _medians([run for run in runs if run.product], lambda run: run.product)
    if len(medians) < 2:
        return []
    best = min(medians, key=lambda name: (medians[name], name))
    slow = [
        name for name in sorted(medians) if medians[name] * 100 >= max(1, medians[best]) * _SLOWER
    ]
    if not slow:
        return []
    return [f"runs on {best} end soonest; {', '.join(slow)} took longer (median of {len(runs)})"]


def _medians(runs: Sequence[Run], name: Any) -> Mapping[str, int]:
    groups: dict[str, list[int]] = {}
    for run in runs:
        if not run.failure:
            groups.setdefault(name(run), []).append(run.duration_s)
    return {
        key: sorted(group)[(len(group) - 1) // 2]
        for key, group in groups.items()
        if len(group) >= ENOUGH
    }
