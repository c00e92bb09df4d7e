"""How right durations are that were learned online, and what learning and predicting cost.

Every job of the Philly trace is predicted from those that ended before it came, then learned from.
The reference is the naive predictor on the same jobs: the median (ninetieth percentile) of
everything that ended so far. Errors are |ln(told / was)|: 0.69 is twice too long or too short.
Costs are process CPU time, because a shared machine changes every wall-clock time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.figures import Limit, print_figure, print_machine
from benchmarks.philly import Comparison, TraceJob, compare, facts_of, read_trace, trace_file
from gpuplane.core.prediction.classes import classify
from gpuplane.core.prediction.experience import (
    Ending,
    Measure,
    Record,
    Sample,
    merge_records,
    record_of,
)
from gpuplane.core.prediction.predicting import predict

CALLS = 2_000


def main() -> None:
    """Print accuracy on the whole trace and its halves, then costs."""
    print_machine()
    path = trace_file()
    if not path.exists():
        print(f"left out: the Philly trace is not at {path} (GPUPLANE_DATA names its folder)")
    else:
        jobs = read_trace(path)
        began = time.process_time()
        found = compare(jobs)
        spent_s = time.process_time() - began
        print(
            f"{found.jobs} jobs, {len(found.ours.errors)} predicted from jobs before them, "
            f"{spent_s:.0f} s of CPU"
        )  # fmt: skip - one sentence
        half = len(found.ours.errors) // 2
        for name, part in (
            ("all", slice(None)),
            ("first half", slice(None, half)),
            ("second half", slice(half, None)),
        ):
            _print_accuracy(name, found, part)
        late, tenth = found.late, found.late_naive
        print_figure(
            f"median |ln(told / was)| of what is left of {len(late.errors)} late jobs",
            [late.median_error()],
            "",
            reference=("a tenth longer", tenth.median_error()),
        )
        print_figure(
            "late jobs that end within p90",
            [100 * late.coverage()],
            "%",
            reference=("a tenth longer", 100 * tenth.coverage()),
        )
    _print_costs()


def _print_accuracy(name: str, found: Comparison, part: slice) -> None:
    ours, naive = found.ours, found.naive
    print_figure(
        f"median |ln(told / was)|, {name}",
        [ours.median_error(part)],
        "",
        reference=("naive", naive.median_error(part)),
    )
    print_figure(
        f"jobs that end within p90, {name}",
        [100 * ours.coverage(part)],
        "%",
        Limit("at least", 90),
        reference=("naive", 100 * naive.coverage(part)),
    )


def _print_costs() -> None:
    """Print what one call costs with 60 runs on as many days: the most that a record has."""
    facts = FACTS
    one = record_of([Sample(60 * DAY_MS, {Measure.DURATION_S: 600}, Ending.ITSELF)])
    print_figure("predict a job", _cpu_us(lambda: predict(facts, lambda _: FULL)), "µs")
    print_figure("classify a job", _cpu_us(lambda: classify(facts)), "µs")
    print_figure("learn one run", _cpu_us(lambda: merge_records([FULL, one])), "µs")


DAY_MS = 86_400_000
FULL: Record = record_of(
    Sample(day * DAY_MS, {Measure.DURATION_S: 60 + 7 * day}, Ending.ITSELF) for day in range(60)
)
FACTS = facts_of(TraceJob(0, 600, 8, "vc"))


def _cpu_us(work: Callable[[], object]) -> list[float]:
    """Return the CPU time of a call in µs, five measurements."""
    found = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(CALLS):
            work()
        found.append((time.process_time() - began) / CALLS * 1e6)
    return found


if __name__ == "__main__":
    main()
