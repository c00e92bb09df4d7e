"""The Philly trace as jobs that teach and are predicted in the order in which they came.

The trace (Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training
Workloads", USENIX ATC 2019; data CC BY 4.0) names neither users nor jobs, so only the rungs
tenant-class and class of the ladder can be measured on it.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from gpuplane.core.prediction.classes import WorkloadClass
from gpuplane.core.prediction.durations import Basis, Durations, Quantile, outlived_ms
from gpuplane.core.prediction.experience import (
    NOTHING,
    Ending,
    Key,
    Measure,
    Record,
    Rung,
    Sample,
    key_of,
    merge_records,
    record_of,
)
from gpuplane.core.prediction.predicting import predict
from gpuplane.core.prediction.requests import RequestFacts
from gpuplane.core.prediction.sketches import (
    EMPTY,
    Sketch,
    find_quantile,
    merge_sketches,
    sketch_values,
)
from gpuplane.core.workloads import JobType

LEARN_EVERY_MS = 600_000
"""What ended is learned so often: the product does so within seconds, and no slower matters."""


ALL = slice(None)


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of the trace; it starts when it comes, because the trace keeps no waiting."""

    arrived_at: int
    duration_s: int
    gpu_count: int
    virtual_cluster: str

    @property
    def ended_at(self) -> int:
        """Return when it ended, in ms."""
        return self.arrived_at + self.duration_s * 1000


@dataclass(slots=True)
class Score:
    """How a predictor did: errors of the median as |ln(said / was)|, and how often p90 held."""

    errors: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)

    def note(self, median_s: int, high_s: int, was_s: int) -> None:
        """Count one prediction and its truth."""
        self.errors.append(abs(math.log(max(1, median_s) / max(1, was_s))))
        self.held.append(was_s <= high_s)

    def median_error(self, part: slice = ALL) -> float:
        """Return the median absolute log error of a part of the predictions."""
        return statistics.median(self.errors[part])

    def coverage(self, part: slice = ALL) -> float:
        """Return the share of jobs that ended within the ninetieth percentile told."""
        return sum(self.held[part]) / len(self.held[part])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours and the naive global quantiles on the same jobs, in the order in which they came.

    Attributes:
        late: How much longer jobs run that have run 1.5 times as long as expected.
        late_naive: The same if they are taken to last a tenth longer than they have.
    """

    ours: Score
    naive: Score
    late: Score
    late_naive: Score
    jobs: int


def trace_file() -> Path:
    """Return where the trace lies, whether or not it does."""
    root = Path(__file__).resolve().parents[1]
    data = Path(os.environ.get("GPUPLANE_DATA", root.parent / "shared" / "data"))
    return data / "philly" / "philly_jobs.csv.gz"


def read_trace(path: Path, limit: int | None = None) -> list[TraceJob]:
    """Return the jobs of the trace by arrival, the first ones up to a limit."""
    with gzip.open(path, "rt", newline="") as file:
        jobs = [
            TraceJob(
                int(datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp())
                * 1000,
                round(float(row["duration"])),
                int(row["num_gpus"]),
                row["cluster"],
            )
            for row in csv.DictReader(file)
        ]
    jobs.sort(key=lambda job: (job.arrived_at, job.virtual_cluster, job.gpu_count, job.duration_s))
    return jobs[:limit]


class Learned:
    """What is remembered of the jobs that ended, by the product's own records.

    Attributes:
        everything: All durations since the beginning, whosever: the naive predictor.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._records: dict[Key, Record] = {}
        self.everything: Sketch = EMPTY

    def learn(self, jobs: Sequence[TraceJob]) -> None:
        """Learn from jobs that ended."""
        durations = sketch_values(job.duration_s for job in jobs)
        self.everything = merge_sketches([self.everything, durations])
        taught: dict[Key, list[Sample]] = defaultdict(list)
        for job in jobs:
            sample = Sample(job.ended_at, {Measure.DURATION_S: job.duration_s}, Ending.ITSELF)
            for key in keys_of(job):
                taught[key].append(sample)
        for key, samples in taught.items():
            known = self._records.get(key, NOTHING)
            self._records[key] = merge_records([known, record_of(samples)])

    def remember(self, key: Key) -> Record:
        """Return what is known under a key."""
        return self._records.get(key, NOTHING)


def facts_of(job: TraceJob) -> RequestFacts:
    """Return what the trace knows of a job."""
    return RequestFacts(
        tenant=job.virtual_cluster,
        project="",
        user="",
        simulated=False,
        stem="",
        job_type=JobType.TRAINING,
        words=frozenset(),
        gpu_count=job.gpu_count,
    )


def keys_of(job: TraceJob) -> tuple[Key, ...]:
    """Return the keys of the rungs that the trace can say something of."""
    facts = facts_of(job)
    rungs = (Rung.TENANT_CLASS, Rung.CLASS)
    return tuple(key_of(rung, facts, WorkloadClass.TRAINING) for rung in rungs)


def compare(jobs: Sequence[TraceJob]) -> Comparison:
    """Play the jobs in order; predict each from those that ended before it came."""
    learned, ours, naive, late, late_naive = Learned(), Score(), Score(), Score(), Score()
    ends = iter(sorted(jobs, key=lambda job: job.ended_at))
    waiting = next(ends, None)
    due = 0
    for job in jobs:
        if job.arrived_at >= due:
            due = job.arrived_at + LEARN_EVERY_MS
            ended: list[TraceJob] = []
            while waiting is not None and waiting.ended_at <= job.arrived_at:
                ended.append(waiting)
                waiting = next(ends, None)
            learned.learn(ended)
        found = predict(facts_of(job), learned.remember).durations
        if found is None:
            continue
        ours.note(found.median, found.high, job.duration_s)
        naive.note(
            find_quantile(learned.everything, 500) or 1,
            find_quantile(learned.everything, 900) or 1,
            job.duration_s,
        )
        elapsed_ms = max(1, found.median) * 1500
        left_s = job.duration_s - elapsed_ms // 1000
        if left_s > 0:
            known = Durations(found.low, found.median, found.high, Basis.HISTORY)
            middle, most = (
                (outlived_ms(elapsed_ms, known, each) - elapsed_ms) // 1000
                for each in (Quantile.MEDIAN, Quantile.HIGH)
            )
            late.note(middle, most, left_s)
            late_naive.note(elapsed_ms // 10_000, elapsed_ms // 10_000, left_s)
    return Comparison(ours, naive, late, late_naive, len(jobs))
