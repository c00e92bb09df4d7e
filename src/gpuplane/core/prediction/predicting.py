"""What to expect of a job: its class, how long it runs and what it uses, and on what that rests.

Owns the way down the ladder of likeness, with the least number of samples on each rung; never
learns: what is remembered is given.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpuplane.core.prediction.classes import (
    Classification,
    Past,
    WorkloadClass,
    classify,
)
from gpuplane.core.prediction.durations import Basis, Durations
from gpuplane.core.prediction.experience import (
    LADDER,
    Key,
    Measure,
    Record,
    Rung,
    key_of,
)
from gpuplane.core.prediction.requests import RequestFacts
from gpuplane.core.prediction.sketches import Sketch, find_quantile

LOW, MEDIAN, HIGH = 100, 500, 900
"""The quantiles that are told, in thousandths."""

HIGH_OF_OTHERS = 940
"""The rank at which the ninetieth percentile of the next job lies among jobs that are less alike:
work comes in waves, and a new wave is not like the last one. Chosen on the first half of the Philly
trace, where 90.5 % of jobs end within it; of the second half 91.4 % do, and of the plain ninetieth
percentile 84.7 % and 86.8 % (benchmarks/bench_prediction.py)."""

MIN_SAMPLES: dict[Rung, int] = {
    Rung.SERIES: 3,
    Rung.USER: 5,
    Rung.TENANT_CLASS: 9,
    Rung.CLASS: 9,
}
"""Ended runs below which a rung is passed over. From nine on the ninetieth percentile of the next
run is among those seen (`find_quantile`); the same work again is worth more than the number, so
three runs of a series outweigh any number of others."""

Remember = Callable[[Key], Record]
"""Gives what is remembered under a key; nothing known is an empty record."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The quantiles of one measure, in its unit.

    Args:
        samples: Ended runs that they come from.
    """

    low: int
    median: int
    high: int
    rung: Rung
    samples: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """What to expect of one job.

    Args:
        durations: None when too little like it has ended.
        gpu_memory_mib: Peak memory of its fullest GPU, None when never measured.
        utilization_permille: Mean utilisation of its GPUs, None when never measured.
    """

    classification: Classification
    durations: Expected | None = None
    gpu_memory_mib: Expected | None = None
    utilization_permille: Expected | None = None

    @property
    def workload_class(self) -> WorkloadClass:
        """Return the class it is taken for."""
        return self.classification.workload_class

    @property
    def learned(self) -> Durations | None:
        """Return its durations as forecasts use them."""
        found = self.durations
        if found is None:
            return None
        return Durations(found.low, found.median, found.high, Basis.HISTORY)


def predict(facts: RequestFacts, remember: Remember) -> Prediction:
    """Return what to expect of a job from what is remembered of its like.

    Each measure goes down the ladder by itself: durations are known long before memory is.
    """
    series = remember(key_of(Rung.SERIES, facts))
    classification = classify(facts, past_of(series))
    workload_class = classification.workload_class
    records: dict[Rung, Record] = {Rung.SERIES: series}

    def record(rung: Rung) -> Record:
        if rung not in records:
            records[rung] = remember(key_of(rung, facts, workload_class))
        return records[rung]

    def expected(measure: Measure) -> Expected | None:
        for rung in LADDER:
            sketch = record(rung).sketch(measure)
            if sketch.count >= MIN_SAMPLES[rung]:
                return _expected(sketch, rung)
        return None

    # A service runs until it is stopped: how long others ran says nothing of it.
    is_endless = workload_class is WorkloadClass.SERVING
    has_gpus = facts.gpu_count > 0
    return Prediction(
        classification,
        None if is_endless else expected(Measure.DURATION_S),
        expected(Measure.GPU_MEMORY_MIB) if has_gpus else None,
        expected(Measure.UTILIZATION_PERMILLE) if has_gpus else None,
    )


def past_of(record: Record) -> Past:
    """Return what a record says of earlier runs of the same work."""
    durations = record.sketch(Measure.DURATION_S)
    return Past(
        runs=record.ended,
        median_s=find_quantile(durations, MEDIAN),
        utilization_permille=find_quantile(record.sketch(Measure.UTILIZATION_PERMILLE), MEDIAN),
        stopped_by_hand=record.stopped_by_hand,
    )


def _expected(sketch: Sketch, rung: Rung) -> Expected:
    top = HIGH if rung is Rung.SERIES else HIGH_OF_OTHERS
    low, median, high = (find_quantile(sketch, each) or 0 for each in (LOW, MEDIAN, top))
    return Expected(low, median, high, rung, sketch.count)
