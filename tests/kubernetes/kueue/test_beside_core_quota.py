"""A real Kueue and `core.quota` are given the same workloads, and decide the same.

A smaller version of `python -m benchmarks.compare_kueue`, whose recorded result is in
docs/reference/kueue-comparison.md. It has a rig of its own: Kueue has to write its cycles down.
"""

import asyncio

import pytest

from benchmarks.compare_kueue import EVICTIONS_TAKE_TIME, compare, prepare
from benchmarks.kueue_plans import make_plan
from gpuplane.core.quota import AdmissionMode
from rig.binaries import Binaries
from rig.rigs import RigPlan, running_rig

COHORTS = 12
ARRIVALS = 7


@pytest.mark.parametrize("mode", list(AdmissionMode))
def test_every_cycle_of_a_real_kueue_is_decided_alike(
    rig_binaries: Binaries, mode: AdmissionMode
) -> None:
    plans = [make_plan(number, ARRIVALS, seed=3) for number in range(COHORTS)]
    with running_rig(RigPlan(nodes=[], process_nodes=[])) as rig:
        prepare(rig.manager, mode)
        report = asyncio.run(compare(rig.manager, plans, mode))
    assert report.unexplained == []
    told = [kind for kind, _ in report.differences]
    assert told == [EVICTIONS_TAKE_TIME] * len(told)
    assert report.steps - report.equal == len(told)
    # It was not all room: some waited, some borrowed, some were evicted.
    assert report.decisions > report.admissions > COHORTS
    assert report.borrowing > 0
    assert sum(report.preemptions.values()) > 0
