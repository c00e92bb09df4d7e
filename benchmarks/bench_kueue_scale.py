"""Kueue's own scale test on virtual time: 15,000 workloads in 30 queues that borrow and reclaim.

Kueue plays it on a real API server, so that its time is that of the whole control loop; here the
clock is virtual, and what is measured is the makespan on it and the processor time of the cycles.

Run from the root: `PYTHONPATH=src:. .venv/bin/python -m benchmarks.bench_kueue_scale`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

from benchmarks.figures import Limit, print_figure, print_machine, quantile
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.memory import Memory
from gpuplane.core.scheduling.policy import Policy, PreemptionLimits, Snapshot
from gpuplane.core.simulation import kueue_scale
from gpuplane.core.simulation.live import LiveCluster

BEGAN_AT = 1_760_000_000_000
RACKS = 10
KUEUE = ("Kueue's makespan, its scale test at commit ff69552,", 351.0)
KUEUE_WITH_TOPOLOGY = ("Kueue's makespan with topology on 640 nodes", 401.0)


@dataclass
class Watch:
    """The processor time of every cycle."""

    cycles_s: list[float] = field(default_factory=list)

    def decide(
        self, snapshot: Snapshot, policy: Policy, now: int, seed: int, memory: Memory
    ) -> Decision:
        """Decide, and note what that took."""
        began = time.process_time()
        decision = decide(snapshot, policy, now, seed, memory)
        self.cycles_s.append(time.process_time() - began)
        return decision


def measure(arguments: argparse.Namespace, racks: int, min_run_s: int) -> None:
    """Play the scenario and print its makespan and what deciding took."""
    makespans, decisions = [], []
    for _ in range(arguments.runs):
        watch = Watch()
        fleet = kueue_scale.make_racks(racks) if racks else kueue_scale.make_one_large_node()
        cluster = LiveCluster(
            fleet,
            kueue_scale.make_quotas(),
            kueue_scale.make_policy(min_run_s),
            seed=1,
            deciding=watch.decide,
        )
        arrivals = list(kueue_scale.list_arrivals(BEGAN_AT, share=arguments.share))
        played = cluster.play(arrivals, BEGAN_AT)
        makespans.append(played.makespan_ms / 1000)
        decisions.append(sum(watch.cycles_s))
    spared = f"who ran less than {min_run_s} s is spared" if min_run_s else "as Kueue, all may stop"
    print(
        f"{spared}, {len(fleet)} nodes: {len(played.ended)} of {len(arrivals)} workloads ended, "
        f"{played.cycles} cycles, {played.stopped} preemptions, at most {played.most_pending} "
        f"pending; a cycle: median {1000 * quantile(watch.cycles_s, 0.5):.2f} ms, "
        f"p99 {1000 * quantile(watch.cycles_s, 0.99):.2f} ms of processor time"
    )
    reference = KUEUE_WITH_TOPOLOGY if racks else KUEUE
    print_figure("makespan", makespans, "s of virtual time", Limit("at most", 75), reference)
    print_figure("decisions", decisions, "s of processor time", Limit("at most", 18))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="part of each kind's count")
    arguments = parser.parse_args()
    print_machine()
    for min_run_s in (PreemptionLimits().min_run_s, 0):
        measure(arguments, 0, min_run_s)
    measure(arguments, RACKS, PreemptionLimits().min_run_s)


if __name__ == "__main__":
    main()
