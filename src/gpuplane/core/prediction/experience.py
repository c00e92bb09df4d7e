"""What is remembered of ended work: sketches of its measures by likeness and by period.

Owns samples, keys and records; a record is bounded in size whatever is learned, forgets what is
older than its periods, and is equal however and in whatever order it was learned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b

from gpuplane.core.prediction.classes import WorkloadClass
from gpuplane.core.prediction.requests import RequestFacts
from gpuplane.core.prediction.sketches import EMPTY, Sketch, merge_sketches, sketch_values

PERIOD_MS = 86_400_000
"""Work is remembered by the day in which it ended."""
KEPT_PERIODS = 84
"""Days after which work is forgotten in any case: twelve weeks, about as long as jobs are kept."""
ENOUGH = 60
"""Runs after which older days are forgotten: recent work tells more than much work (Tsafrir,
Etsion and Feitelson, IEEE TPDS 18(6), 2007; on the Philly trace too, benchmarks/bench_prediction).
"""


class Measure(StrEnum):
    """What is learned of ended work."""

    DURATION_S = "duration_s"
    GPU_MEMORY_MIB = "gpu_memory_mib"
    """Peak memory of its fullest GPU."""
    UTILIZATION_PERMILLE = "utilization_permille"
    """Mean utilisation of its GPUs, in thousandths."""


class Rung(StrEnum):
    """How alike two jobs are, most alike first: the ladder that a prediction goes down."""

    SERIES = "series"
    """Same project, name but for numbers, GPU model and GPU count."""
    USER = "user"
    """Same user, class, GPU model and GPU count."""
    TENANT_CLASS = "tenant-class"
    """Same tenant, class and GPU count."""
    CLASS = "class"
    """Same class and GPU count, of everybody."""


LADDER = tuple(Rung)


@dataclass(frozen=True, slots=True)
class Key:
    """Names the jobs that are alike on one rung.

    Args:
        name: A digest: parts of any length, and no names of people in it.
    """

    rung: Rung
    name: str


@dataclass(frozen=True, slots=True)
class Sample:
    """What one ended run teaches; a measure that was not taken is left out.

    Args:
        ended_at: Instant in ms; says to which period it belongs.
        ending: How it ended.
    """

    ended_at: int
    measures: Mapping[Measure, int]
    ending: "Ending"


class Ending(StrEnum):
    """How a run ended, as far as it says what kind of work it was."""

    ITSELF = "itself"
    """It did its work."""
    BY_HAND = "by-hand"
    """A user stopped it."""
    OTHERWISE = "otherwise"
    """It failed, was preempted or lost."""


@dataclass(frozen=True, slots=True)
class Period:
    """What was learned in one period.

    Args:
        number: Periods since the epoch.
        ended: Runs that ended by themselves after doing their work.
        stopped_by_hand: Runs that a user stopped.
    """

    number: int
    sketches: Mapping[Measure, Sketch] = field(default_factory=dict)
    ended: int = 0
    stopped_by_hand: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """Everything remembered of work that is alike, oldest period first."""

    periods: tuple[Period, ...] = ()

    def sketch(self, measure: Measure) -> Sketch:
        """Return what is remembered of a measure."""
        return merge_sketches(each.sketches.get(measure, EMPTY) for each in self.periods)

    @property
    def ended(self) -> int:
        """Return how many runs ended by themselves."""
        return sum(each.ended for each in self.periods)

    @property
    def stopped_by_hand(self) -> int:
        """Return how many runs a user stopped."""
        return sum(each.stopped_by_hand for each in self.periods)


NOTHING = Record()


def record_of(samples: Iterable[Sample]) -> Record:
    """Return what is remembered of some samples."""
    by_period: dict[int, list[Sample]] = {}
    for sample in samples:
        by_period.setdefault(sample.ended_at // PERIOD_MS, []).append(sample)
    return _newest(
        Period(
            number,
            {
                measure: sketch_values(
                    each.measures[measure] for each in found if measure in each.measures
                )
                for measure in Measure
                if any(measure in each.measures for each in found)
            },
            sum(each.ending is Ending.ITSELF for each in found),
            sum(each.ending is Ending.BY_HAND for each in found),
        )
        for number, found in by_period.items()
    )


def merge_records(records: Sequence[Record]) -> Record:
    """Return what is remembered of everything that any of the records remembers."""
    by_number: dict[int, list[Period]] = {}
    for record in records:
        for period in record.periods:
            by_number.setdefault(period.number, []).append(period)
    return _newest(
        Period(
            number,
            {
                measure: merge_sketches(each.sketches.get(measure, EMPTY) for each in found)
                for measure in Measure
                if any(measure in each.sketches for each in found)
            },
            sum(each.ended for each in found),
            sum(each.stopped_by_hand for each in found),
        )
        for number, found in by_number.items()
    )


def _newest(periods: Iterable[Period]) -> Record:
    """Keep the newest periods, as many as hold enough runs.

    What is dropped for newer runs would be dropped beside any others too: newer runs only become
    more. So it does not matter in what order and in which parts work was learned.
    """
    ordered = sorted(periods, key=lambda each: -each.number)
    kept: list[Period] = []
    runs = 0
    for period in ordered:
        if runs >= ENOUGH or period.number <= ordered[0].number - KEPT_PERIODS:
            break
        kept.append(period)
        runs += period.ended + period.stopped_by_hand
    return Record(tuple(reversed(kept)))


def key_of(rung: Rung, facts: RequestFacts, workload_class: WorkloadClass | None = None) -> Key:
    """Return the key of a job on a rung.

    Raises:
        ValueError: If the rung looks at the class and none is given.
    """
    size = (facts.model, facts.gpu_count, facts.gpu_milli)
    parts: tuple[object, ...]
    if rung is Rung.SERIES:
        parts = (facts.project, facts.stem, facts.job_type.value, size)
    elif workload_class is None:
        raise ValueError(f"the rung {rung.value} looks at the class")
    elif rung is Rung.USER:
        parts = (facts.user, workload_class.value, size)
    elif rung is Rung.TENANT_CLASS:
        parts = (facts.tenant, workload_class.value, facts.gpu_count)
    else:
        parts = (workload_class.value, facts.gpu_count)
    text = repr((rung.value, facts.simulated, parts))
    return Key(rung, blake2b(text.encode(), digest_size=16).hexdigest())


def list_keys(facts: RequestFacts, workload_class: WorkloadClass) -> tuple[Key, ...]:
    """Return the keys of a job on every rung, most alike first."""
    return tuple(key_of(rung, facts, workload_class) for rung in LADDER)
