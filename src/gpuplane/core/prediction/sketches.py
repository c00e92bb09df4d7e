"""Quantiles of positive integers from counts in logarithmic buckets: small, mergeable, exact bytes.

Owns the buckets and the ranks; never knows what is counted. Two sketches of the same values are
equal however the values were split and in whatever order they came.

Source:
    Masson, Rim and Lee, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error
    Guarantees", PVLDB 12(12), 2019. Their bucket borders are powers of one number; ours are those
    of HdrHistogram (16 equal parts of every power of two), which need no logarithm: equal counts
    on every machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

_PART_BITS = 4
PARTS = 1 << _PART_BITS
"""Buckets of every power of two."""

MAX_VALUE = (1 << 36) - 1
"""Larger values count as this one: 2,000 years in seconds, 64 PiB in MiB."""

MAX_BUCKETS = (36 - _PART_BITS + 1) * PARTS
"""No sketch has more buckets than this, whatever was counted."""

RELATIVE_ERROR = 1 / (2 * PARTS)
"""A quantile is off by no more than this share of the true one."""

_PERMILLE = 1000


@dataclass(frozen=True, slots=True)
class Sketch:
    """How many values fell into each bucket.

    Args:
        buckets: (bucket, count) in rising order, counts above 0.
    """

    buckets: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """Return how many values were counted."""
        return sum(count for _, count in self.buckets)


EMPTY = Sketch()


def sketch_values(values: Iterable[int]) -> Sketch:
    """Return the sketch of some values; below 0 counts as 0."""
    counts: dict[int, int] = {}
    for value in values:
        bucket = bucket_of(value)
        counts[bucket] = counts.get(bucket, 0) + 1
    return Sketch(tuple(sorted(counts.items())))


def merge_sketches(sketches: Iterable[Sketch]) -> Sketch:
    """Return the sketch of everything that any of the sketches counted."""
    counts: dict[int, int] = {}
    for sketch in sketches:
        for bucket, count in sketch.buckets:
            counts[bucket] = counts.get(bucket, 0) + count
    return Sketch(tuple(sorted(counts.items())))


def bucket_of(value: int) -> int:
    """Return the bucket a value falls into; values below twice `PARTS` have one each."""
    capped = min(max(0, value), MAX_VALUE)
    shift = max(0, capped.bit_length() - 1 - _PART_BITS)
    return shift * PARTS + (capped >> shift)


def middle_of(bucket: int) -> int:
    """Return the value a bucket stands for: its middle."""
    if bucket < 2 * PARTS:
        return bucket
    shift = bucket // PARTS - 1
    lowest = (bucket - shift * PARTS) << shift
    return lowest + ((1 << shift) - 1) // 2


def find_quantile(sketch: Sketch, permille: int) -> int | None:
    """Return a quantile, None of nothing.

    Above the median the rank is rounded up from a sample one larger, below it down: if the next
    value comes from where these came from, it is at most the upper quantile (at least the lower
    one) as often as that says, up to what so few values can promise. This is the one-sided bound
    of conformal prediction (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World",
    2005, chapter 2).

    Args:
        sketch: What was counted.
        permille: The share that lies below, in thousandths, 1 to 999.
    """
    count = sketch.count
    if count == 0:
        return None
    share = (count + 1) * permille
    rank = -(-share // _PERMILLE) if permille > _PERMILLE // 2 else share // _PERMILLE
    rank = min(max(1, rank), count)
    reached = accumulate(count for _, count in sketch.buckets)
    bucket = next(
        bucket for (bucket, _), total in zip(sketch.buckets, reached, strict=True) if total >= rank
    )
    return middle_of(bucket)
