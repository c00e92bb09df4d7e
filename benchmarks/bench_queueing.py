"""What the queueing simulator gives and how fast it is, beside the published rows.

Run from the root: `PYTHONPATH=src:. .venv/bin/python -m benchmarks.bench_queueing`. The Philly
trace lies where `GPUPLANE_DATA` says (`philly/philly_jobs.csv.gz`); without it a trace of the same
size is made up, and only the speed is printed. Times are of the processor, so that a busy machine
changes them little; the collector of cycles is off while a run is timed, as it has nothing to do.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import os
import statistics
import time
from pathlib import Path

from benchmarks.figures import Limit, print_figure, print_machine
from gpuplane.core.simulation.queueing.orders import Order, Skip
from gpuplane.core.simulation.queueing.outcomes import Figures, Outcome, compute_figures
from gpuplane.core.simulation.queueing.pools import PoolShape
from gpuplane.core.simulation.queueing.simulator import QueuePolicy, simulate_queueing
from gpuplane.core.simulation.queueing.traces import Trace, TraceFilter, read_trace

DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"
CLUSTERS = "6214e9 7f04ca 11cb48 b436b2 ee9e8c e13805 6c71a0 2869ce ed69ec 103959 0e4a51"
WINDOW = TraceFilter("2017-10-01", "2017-12-01", frozenset(CLUSTERS.split()))
POOL = PoolShape(80)
JOBS = 68_503

GOLDEN = {
    ("fifo", "strict"): "30605.3 19124.6 1683 67714 148326 171282",
    ("sjf", "strict"): "13292.5 1811.9 0 3464 26306 479362",
    ("ssf", "strict"): "12891.5 1410.8 0 3135 21831 443195",
    ("fifo", "greedy"): "15290.0 3809.3 0 7604 64775 486752",
    ("sjf", "greedy"): "12774.1 1293.4 0 2634 21245 473608",
    ("ssf", "greedy"): "12846.2 1365.5 0 2674 20866 929840",
}
"""Published: mean JCT, mean wait, its 50th, 90th, 99th percentile and the longest, in seconds."""
OURS = [("fifo", "backfill"), ("sjf", "backfill"), ("ssf", "backfill"), ("bounded", "backfill")]
SPEED = Limit("at least", 200_000)
MEAN_JCT = Limit("at most", round(1.1 * 12_774.1, 1))
MAX_QUEUE = Limit("at most", 120_000)


def load_trace() -> Trace | None:
    """Return the Philly trace, or None where it is not."""
    file = Path(os.environ.get("GPUPLANE_DATA", DEFAULT)) / "philly" / "philly_jobs.csv.gz"
    if not file.is_file():
        return None
    with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
        return read_trace(lines, WINDOW)


def made_up_trace(jobs: int) -> Trace:
    """Return bursts of jobs with the sizes of Philly and run times of all magnitudes."""
    sizes = [1] * 94 + [2, 2, 4, 4, 8, 8]
    numbers = [(job * 2_654_435_761) % (1 << 32) for job in range(jobs)]
    return Trace(
        names=tuple(map(str, range(jobs))),
        arrival_ms=tuple(1000 * (job // 2000 * 200_000 + job % 2000 * 5) for job in range(jobs)),
        duration_ms=tuple(1000 * round(10 ** (number % 1009 / 175)) for number in numbers),
        gpus=tuple(sizes[number % 997 % 100] for number in numbers),
    )


def timed(trace: Trace, order: str, skip: str, rounds: int) -> tuple[Outcome, list[float]]:
    """Return what comes of it, and the events a second of processor time of each round."""
    speeds = []
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        began = time.process_time()
        outcome = simulate_queueing(trace, POOL, QueuePolicy(Order(order), Skip(skip)))
        speeds.append(outcome.events / max(1e-9, time.process_time() - began))
        gc.enable()
    return outcome, speeds


def row(found: Figures) -> str:
    """Return figures as the published table prints them."""
    return (
        f"{found.mean_jct_s:.1f} {found.mean_queue_s:.1f} {found.p50_queue_s:.0f} "
        f"{found.p90_queue_s:.0f} {found.p99_queue_s:.0f} {found.max_queue_s:.0f}"
    )


def main() -> None:
    """Print every row with its reference, then the speed of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="Times that each row is worked out.")
    rounds = parser.parse_args().rounds
    print_machine()
    trace = load_trace()
    print(f"trace: {'Philly, 11 virtual clusters, 2017-10 and -11' if trace else 'made up'}")
    golden, speeds = GOLDEN if trace else {}, []
    trace = trace or made_up_trace(JOBS)
    for order, skip in (*GOLDEN, *OURS):
        is_ours = (order, skip) in OURS
        outcome, samples = timed(trace, order, skip, 1 if order == "bounded" else rounds)
        found = compute_figures(outcome)
        published = golden.get((order, skip))
        verdict = "" if published is None else f"; published {published}: "
        verdict += "" if published is None else "equal" if row(found) == published else "DIFFERENT"
        print(f"{order} {skip}: {row(found)}, p99.9 {found.p999_queue_s:.0f}{verdict}")
        print_figure(f"{order} {skip} speed", samples, "events/s", None if is_ours else SPEED)
        speeds += [] if is_ours else [statistics.median(samples)]
    print_figure("slowest of the published rows", [min(speeds)], "events/s", SPEED)
    if golden:
        best = ("published best row", 12_774.1)
        print_figure("bounded mean JCT", [found.mean_jct_s], "s", MEAN_JCT, best)
        print_figure(
            "bounded longest wait", [found.max_queue_s], "s", MAX_QUEUE, (best[0], 473_608)
        )


if __name__ == "__main__":
    main()
