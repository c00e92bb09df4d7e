"""A production trace gives the published figures to the last printed digit.

Trace: Microsoft Philly, "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training
Workloads", ATC'19, eleven virtual clusters in October and November 2017 as one pool of 80 nodes
of 8 GPUs. The figures were worked out by a separate simulator.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from gpuplane.core.simulation.queueing.orders import Order, Skip
from gpuplane.core.simulation.queueing.outcomes import compute_figures
from gpuplane.core.simulation.queueing.pools import PoolShape
from gpuplane.core.simulation.queueing.simulator import QueuePolicy, simulate_queueing
from gpuplane.core.simulation.queueing.traces import Trace, TraceFilter, read_trace

DEFAULT = Path(__file__).resolve().parents[6] / "shared" / "data"
FILE = Path(os.environ.get("GPUPLANE_DATA", DEFAULT)) / "philly" / "philly_jobs.csv.gz"
CLUSTERS = "6214e9 7f04ca 11cb48 b436b2 ee9e8c e13805 6c71a0 2869ce ed69ec 103959 0e4a51"
WINDOW = TraceFilter("2017-10-01", "2017-12-01", frozenset(CLUSTERS.split()))
POOL = PoolShape(80)

GOLDEN = [
    ("fifo", "strict", "30605.3 19124.6 1683 67714 148326 171282"),
    ("sjf", "strict", "13292.5 1811.9 0 3464 26306 479362"),
    ("ssf", "strict", "12891.5 1410.8 0 3135 21831 443195"),
    ("fifo", "greedy", "15290.0 3809.3 0 7604 64775 486752"),
    ("sjf", "greedy", "12774.1 1293.4 0 2634 21245 473608"),
    ("ssf", "greedy", "12846.2 1365.5 0 2674 20866 929840"),
]
"""Order, skip; mean JCT, mean wait, its 50th, 90th and 99th percentile, and the longest wait."""


@pytest.fixture(scope="module")
def philly() -> Trace:
    if not FILE.is_file():
        pytest.skip("the Philly trace is not here (set GPUPLANE_DATA)")
    with gzip.open(FILE, "rt", encoding="utf-8", newline="") as lines:
        return read_trace(lines, WINDOW)


@pytest.mark.parametrize(("order", "skip", "printed"), GOLDEN)
def test_the_published_rows_come_out(philly: Trace, order: str, skip: str, printed: str) -> None:
    outcome = simulate_queueing(philly, POOL, QueuePolicy(Order(order), Skip(skip)))
    found = compute_figures(outcome)
    assert (found.jobs, found.events) == (68_503, 137_006)
    assert printed == (
        f"{found.mean_jct_s:.1f} {found.mean_queue_s:.1f} {found.p50_queue_s:.0f} "
        f"{found.p90_queue_s:.0f} {found.p99_queue_s:.0f} {found.max_queue_s:.0f}"
    )


def test_the_bounded_order_cuts_the_longest_wait_to_a_quarter_for_a_tenth_of_the_mean(
    philly: Trace,
) -> None:
    found = compute_figures(
        simulate_queueing(philly, POOL, QueuePolicy(Order.BOUNDED, Skip.BACKFILL))
    )
    assert found.jobs == 68_503
    assert found.mean_jct_s <= 1.1 * 12_774.1
    assert found.max_queue_s <= 120_000
    assert found.p999_queue_s <= 91_285, "no worse than shortest first up to there"
