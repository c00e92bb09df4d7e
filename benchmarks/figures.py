"""How a figure is printed: median, spread, its limit, and the ratio to a reference of the same run.

A shared machine changes every wall-clock time; the ratio to something plain that was measured a
moment before or after changes far less.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limit:
    """What a figure must be: `at most` or `at least` a value in the figure's unit."""

    word: str
    value: float

    def holds(self, value: float) -> bool:
        """Return whether a value is within the limit."""
        return value <= self.value if self.word == "at most" else value >= self.value


def print_machine() -> None:
    """Print what this runs on, and how busy it is with other things."""
    load = os.getloadavg()
    print(
        f"machine {_cpu_name()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"load {load[0]:.1f} {load[1]:.1f}"
    )


def print_figure(
    name: str,
    samples: Sequence[float],
    unit: str,
    limit: Limit | None = None,
    reference: tuple[str, float] | None = None,
    *,
    judged: float | None = None,
) -> None:
    """Print one figure.

    Args:
        name: What was measured.
        samples: Each measurement, in the unit.
        unit: For people.
        limit: What it must be.
        reference: Something plain measured in the same run, and its median in the same unit.
        judged: What is held against the limit when that is not the median, such as a p95.
    """
    median = statistics.median(samples)
    text = f"{name}: median {median:.4g} {unit}, spread {min(samples):.4g}-{max(samples):.4g}"
    value = median if judged is None else judged
    if judged is not None:
        text += f", judged {judged:.4g}"
    if reference is not None:
        text += f"; {reference[0]} {reference[1]:.4g} {unit}, ratio {median / reference[1]:.2f}"
    if limit is not None:
        verdict = "kept" if limit.holds(value) else "MISSED"
        text += f"; {limit.word} {limit.value:g} {unit}: {verdict}"
    print(text, flush=True)


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the value below which this share of the samples lies."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed_ms(work: Callable[[], object]) -> float:
    """Return how long a call takes, in milliseconds."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
