"""How long work takes: three quantiles and what they rest on.

Owns the one order in which a duration is believed: what the user stated, what similar work took,
the time after which it is stopped, a default. Forecast, cost and placement all ask here.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import isqrt

from gpuplane.core.amounts import MS_PER_S


class Basis(StrEnum):
    """What a duration rests on, best first."""

    HISTORY = "history"
    """Quantiles of similar jobs that ended."""
    ESTIMATE = "estimate"
    """What the user stated."""
    MAXIMUM = "maximum"
    """Only the time after which it is stopped is known."""
    DEFAULT = "default"
    """Nothing is known of it."""


class Quantile(StrEnum):
    """Which duration a run of the clock takes for everyone."""

    LOW = "low"
    MEDIAN = "median"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Durations:
    """How long one workload runs: tenth percentile, median, ninetieth percentile."""

    low_s: int
    median_s: int
    high_s: int
    basis: Basis

    def at(self, quantile: Quantile) -> int:
        """Return the duration at a quantile, in seconds, at least 1."""
        value = {
            Quantile.LOW: self.low_s,
            Quantile.MEDIAN: self.median_s,
            Quantile.HIGH: self.high_s,
        }[quantile]
        return max(1, value)


# Where only one number is known the interval is wide on purpose: users' estimates are bounds more
# often than guesses (Mu'alem and Feitelson, IEEE TPDS 2001, found most jobs end well before them).
_ESTIMATE_SHARES = (0.5, 1.0, 1.5)
_MAXIMUM_SHARES = (0.1, 0.5, 1.0)
_DEFAULT_SHARES = (0.25, 1.0, 4.0)

_LATEST = 31
"""How many times as long late work lasts in all, at the ninetieth percentile."""


def choose_durations(
    estimated_s: int | None, learned: Durations | None, maximum_s: int | None, default_s: int
) -> Durations:
    """Return the durations to count on, by the best of what is known.

    What a user states comes first: only they know that this run differs from those before it.

    Args:
        estimated_s: What the user stated.
        learned: What similar work took, if enough of it ended.
        maximum_s: After which it is stopped: nothing runs longer than that.
        default_s: Taken when nothing is known.
    """
    if estimated_s is not None:
        return _spread(estimated_s, _ESTIMATE_SHARES, Basis.ESTIMATE)
    if learned is not None:
        return learned if maximum_s is None else _cap(learned, maximum_s)
    if maximum_s is not None:
        return _spread(maximum_s, _MAXIMUM_SHARES, Basis.MAXIMUM)
    return _spread(default_s, _DEFAULT_SHARES, Basis.DEFAULT)


def expected_s(
    estimated_s: int | None, learned: Durations | None, maximum_s: int | None
) -> int | None:
    """Return the one duration to plan with, in seconds, None when nothing is known.

    Where only the maximum is known it is that: what is planned behind it must not come too early.
    """
    if estimated_s is not None:
        return estimated_s
    if learned is not None:
        median_s = learned.at(Quantile.MEDIAN)
        return median_s if maximum_s is None else min(median_s, maximum_s)
    return maximum_s


def outlived_ms(elapsed_ms: int, durations: Durations, quantile: Quantile) -> int:
    """Return how long work lasts in all that has outlived its duration, more than it has lasted.

    The longer something has run, the longer it goes on. Where history is known, in the middle to
    the geometric mean of what it has lasted and the ninetieth percentile, and beyond that as long
    again; at the most thirty times. Of the late jobs of the Philly trace, half end before 0.9 to
    1.9 times the middle one, nine tenths within 31 to 93 times (benchmarks/bench_prediction.py).
    Elsewhere a tenth longer.

    Args:
        elapsed_ms: How long it has run.
        durations: What was expected of it.
        quantile: Which of them was outlived.
    """
    if durations.basis is not Basis.HISTORY or quantile is Quantile.LOW:
        return elapsed_ms + max(MS_PER_S, elapsed_ms // 10)
    if quantile is Quantile.HIGH:
        return elapsed_ms * _LATEST
    high_ms = durations.at(Quantile.HIGH) * MS_PER_S
    if 5 * elapsed_ms < 4 * high_ms:
        return isqrt(elapsed_ms * high_ms)
    return 2 * max(elapsed_ms, MS_PER_S)


def _spread(known_s: int, shares: tuple[float, float, float], basis: Basis) -> Durations:
    low, median, high = (round(known_s * share) for share in shares)
    return Durations(low, median, high, basis)


def _cap(learned: Durations, maximum_s: int) -> Durations:
    return Durations(
        min(learned.low_s, maximum_s),
        min(learned.median_s, maximum_s),
        min(learned.high_s, maximum_s),
        learned.basis,
    )
