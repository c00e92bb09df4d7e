"""The same workloads through `core.quota` and through a real Kueue, step by step.

    python -m benchmarks.compare_kueue [--mode MODE] [--cohorts 40] [--workloads 1000] [--seed 1]

A rig of its own is started, without nodes: quotas alone decide. In each step one job arrives or
ends in every cohort. When Kueue is done (`kueue_settling`: proved, not guessed), its admissions,
flavors and evictions are compared with those of `core.quota` from the same state before, and the
state of Kueue is where both go on from: a difference is counted once, where it arises. Every
scheduling cycle that Kueue ran is decided again from its own snapshot too (`kueue_replay`). Prints
the figures and every difference with its class; ends with status 1 where one belongs to none.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.figures import print_machine
from benchmarks.kueue_cycle import Holding, KueueLoop, Queues
from benchmarks.kueue_plans import NAMESPACE, Plan, job_object, make_plan, priority_of, set_up
from benchmarks.kueue_replay import Known, Replay
from benchmarks.kueue_settling import Settling
from benchmarks.kueue_trace import VERBOSITY, Cycle, Trace
from benchmarks.kueue_workloads import Workload
from gpuplane.core.quota import GPU, AdmissionMode, FlavorResource
from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.errors import NotThere
from gpuplane.kube.informers import Change, Informer
from rig.clusters import Cluster
from rig.rigs import RigPlan, running_rig

CIRCLE = 6
"""Evictions of one workload within one step from which on it counts as going round."""
EVICTIONS_TAKE_TIME = "evictions take time"
"""Kueue decided while somebody that it evicts still had its quota; `core.quota` evicts at once."""
UNEXPLAINED = "NOT EXPLAINED"
Moves = Counter[tuple[str, str]]


@dataclass
class Report:
    """What was found.

    Attributes:
        cycles: Scheduling cycles of Kueue that were decided again, cohort by cohort. `decisions`:
            heads in them. `wrong`: those that `core.quota` decides otherwise.
    """

    steps: int = 0
    equal: int = 0
    admissions: int = 0
    preemptions: Counter[str] = field(default_factory=Counter)
    borrowing: int = 0
    cycles: int = 0
    decisions: int = 0
    wrong: list[str] = field(default_factory=list)
    circles: list[str] = field(default_factory=list)
    differences: list[tuple[str, str]] = field(default_factory=list)

    @property
    def unexplained(self) -> list[str]:
        """Return what differs and belongs to no class that is known."""
        return self.wrong + [text for kind, text in self.differences if kind == UNEXPLAINED]


class Comparison:
    """Both sides of one run."""

    def __init__(
        self,
        client: KubeClient,
        plans: list[Plan],
        mode: AdmissionMode,
        trace: Trace,
        find_pid: Callable[[], int],
    ) -> None:
        self._client = client
        self._plans = plans
        self._trace = trace
        self._loops = {plan.name: KueueLoop(plan.queues, plan.cohorts, mode) for plan in plans}
        self._jobs: dict[str, dict[str, tuple[str, int]]] = {plan.name: {} for plan in plans}
        self._known: dict[str, Known] = {}
        self._plan_of: dict[str, str] = {}
        self._stamps: dict[str, list[int]] = {}
        self._holding: set[str] = set()
        self._assumed: dict[str, list[tuple[int, str]]] = {}
        self._replays = {
            plan.name: Replay(
                plan, KueueLoop(plan.queues, plan.cohorts, mode), self._known, self._reserved
            )
            for plan in plans
        }
        self._workloads: Informer[Workload] = Informer(
            client, kinds.WORKLOAD, namespace=NAMESPACE, decode=Workload
        )
        self._workloads.on_change(self._note)
        self._settling = Settling(client, trace, find_pid, self._workloads.items)
        self._out: set[str] = set()
        self.report = Report()

    async def run(self) -> Report:
        """Play every step."""
        self._workloads.start()
        await self._workloads.wait_synced(30)
        before: list[Workload] = []
        for index in range(max(len(plan.steps) for plan in self._plans)):
            now = [plan for plan in self._playing() if index < len(plan.steps)]
            await _leave_second(before)
            self._trace.read()
            self._trace.forget()
            states = {plan.name: self._read(plan, before) for plan in now}
            await asyncio.gather(*(self._do(plan, index) for plan in now))
            before = await self._settle(now, index, states)
            for plan in now:
                if plan.name not in self._out:
                    self._compare(plan, index, states[plan.name], before)
        await self._workloads.stop()
        return self.report

    def _playing(self) -> list[Plan]:
        return [plan for plan in self._plans if plan.name not in self._out]

    # What happens.

    async def _do(self, plan: Plan, index: int) -> None:
        act, job, queue, gpus = plan.steps[index]
        if act == "arrive":
            self._jobs[plan.name][job] = (queue, gpus)
            self._plan_of[job] = plan.name
            await self._client.create(job_object(job, queue, gpus), NAMESPACE)
        else:
            self._jobs[plan.name].pop(job, None)
            await self._client.delete(kinds.JOB, job, NAMESPACE)

    async def _settle(
        self, now: list[Plan], index: int, states: dict[str, Queues]
    ) -> list[Workload]:
        """Wait until Kueue is done; cohorts in which it never will be are taken out."""
        while True:
            wanted = [job for jobs in self._jobs.values() for job in jobs]
            found = await self._settling.wait(self._playing(), wanted, lambda: bool(self._round()))
            self._watch(found)
            going_round = self._round()
            if not going_round:
                return found
            for plan in now:
                if plan.name in going_round:
                    self._note_circle(plan, index, states[plan.name], found)
                    await self._clear(plan)

    def _round(self) -> set[str]:
        """Return the cohorts in which workloads evict one another without end."""
        self._trace.read()
        counts = Counter(name for name, _ in self._trace.evictions)
        found = {self._plan_of[self._known[name].job] for name, n in counts.items() if n >= CIRCLE}
        return found - self._out

    async def _clear(self, plan: Plan) -> None:
        """End every job of a cohort that circles: it would circle on."""
        self._out.add(plan.name)
        jobs, self._jobs[plan.name] = list(self._jobs[plan.name]), {}
        for job in jobs:
            with suppress(NotThere):
                await self._client.delete(kinds.JOB, job, NAMESPACE)

    # What is known.

    def _note(self, change: Change[Workload]) -> None:
        if change.new is not None:
            self._watch([change.new])

    def _watch(self, found: list[Workload]) -> None:
        """Take in Workloads as they are now, in the order in which they changed."""
        for each in found:
            name = each.metadata.name
            if name not in self._known:
                self._learn(each)
            if each.holds and name not in self._holding:
                self._holding.add(name)
                self._stamps.setdefault(name, []).append(each.reserved_at)
            elif not each.holds:
                self._holding.discard(name)

    def _learn(self, each: Workload) -> None:
        job, name = each.job, each.metadata.name
        plan = self._plan_of.get(job)
        if plan is None or job not in self._jobs[plan]:
            return
        queue, gpus = self._jobs[plan][job]
        self._known[name] = Known(
            each.metadata.uid, job, queue, gpus, priority_of(job), each.created_at
        )

    def _reserved(self, name: str, cycle: int) -> tuple[str, int]:
        """Return (flavor, since when in ms) of what a workload holds in a cycle."""
        times = [place for place, (at, _) in enumerate(self._assumed[name]) if at < cycle]
        place = times[-1]
        stamps = self._stamps.get(name, [])
        return self._assumed[name][place][1], stamps[min(place, len(stamps) - 1)] if stamps else 0

    def _read(self, plan: Plan, found: list[Workload]) -> Queues:
        """Return a cohort's state as Kueue has it."""
        state = Queues()
        for each in found:
            if each.job not in self._jobs[plan.name]:
                continue
            item = self._known[each.metadata.name].as_item()
            state.items[item.uid] = item
            if each.holds:
                pair = FlavorResource(each.flavor, GPU)
                state.holdings[item.uid] = Holding({pair: item.request[GPU]}, each.reserved_at)
            elif each.metadata.name in self._trace.dump.active.get(item.queue, ()):
                # A head that others hinder stays in its queue's heap, before who comes later.
                state.active.add(item.uid)
        return state

    # What differs.

    def _begin(self, plan: Plan, index: int, state: Queues, after: Queues) -> None:
        """Bring what happens in a step into the state before it."""
        act, job, _, _ = plan.steps[index]
        if act == "arrive":
            item = next(item for item in after.items.values() if item.name == job)
            state.items[item.uid] = item
            state.active.add(item.uid)
        else:
            uid = next((uid for uid, item in state.items.items() if item.name == job), "")
            state.items.pop(uid, None)
            state.active.discard(uid)
            if state.holdings.pop(uid, None) is not None:
                state.active = set(state.pending)

    def _compare(self, plan: Plan, index: int, state: Queues, found: list[Workload]) -> None:
        """Compare what a step did."""
        after = self._read(plan, found)
        self._begin(plan, index, state, after)
        started = {uid for uid in after.holdings if uid not in state.holdings}
        self._settle_ours(plan, state, after)
        theirs, ours = self._evictions(plan), Counter(state.evictions)
        wrong = self._replay(plan)
        report = self.report
        report.steps += 1
        if state.circles:
            self._note_circle(plan, index, None, found)
            return
        report.admissions += len(started)
        for (_, reason), count in theirs.items():
            report.preemptions[reason] += count
        report.borrowing += _count_borrowing(plan, after)
        held_by_us = {state.items[uid].name: _flavor(h) for uid, h in state.holdings.items()}
        held_by_kueue = {after.items[uid].name: _flavor(h) for uid, h in after.holdings.items()}
        if held_by_us == held_by_kueue and ours == theirs:
            report.equal += 1
            return
        act, job, _, _ = plan.steps[index]
        text = (
            f"{plan.name} step {index} ({act} {job}): "
            f"only Kueue holds {_only(held_by_kueue, held_by_us)}, "
            f"only core.quota {_only(held_by_us, held_by_kueue)}; "
            f"evicted by Kueue {sorted(theirs.elements())}, by core.quota "
            f"{sorted(ours.elements())}"
        )
        report.differences.append((self._kind(plan, wrong), text))

    def _settle_ours(self, plan: Plan, state: Queues, after: Queues) -> None:
        now = max((item.queued_at for item in after.items.values()), default=0) + 1
        self._loops[plan.name].settle(state, now)

    def _evictions(self, plan: Plan) -> Moves:
        found = ((self._known[name].job, reason) for name, reason in self._trace.evictions)
        return Counter((job, why) for job, why in found if self._plan_of[job] == plan.name)

    def _cycles(self, plan: Plan) -> list[Cycle]:
        queues = {spec.name for spec in plan.queues}
        return [
            cycle
            for cycle in self._trace.cycles
            if any(entry.queue in queues for entry in cycle.entries)
        ]

    def _replay(self, plan: Plan) -> bool:
        """Decide Kueue's cycles of this step again; return whether something was wrong."""
        is_wrong = False
        for cycle in self._cycles(plan):
            count, found = self._replays[plan.name].compare(cycle)
            self.report.cycles += count > 0
            self.report.decisions += count
            self.report.wrong += found
            is_wrong |= bool(found)
            for entry in cycle.entries:
                if entry.status == "assumed" and self._is_of(entry.workload, plan):
                    self._assumed.setdefault(entry.workload, []).append(
                        (cycle.number, entry.flavor)
                    )
        return is_wrong

    def _is_of(self, name: str, plan: Plan) -> bool:
        return name in self._known and self._plan_of[self._known[name].job] == plan.name

    def _kind(self, plan: Plan, is_wrong: bool) -> str:  # noqa: FBT001 - one caller
        """Return the class of a difference, told by Kueue's own log."""
        overlaps = any(
            self._is_of(name, plan) for cycle in self._cycles(plan) for name in cycle.evicted
        )
        return EVICTIONS_TAKE_TIME if overlaps and not is_wrong else UNEXPLAINED

    def _note_circle(
        self, plan: Plan, index: int, state: Queues | None, found: list[Workload]
    ) -> None:
        """Note workloads that evict one another without end; None where only `core.quota` does."""
        act, job, _, _ = plan.steps[index]
        theirs, ours, is_wrong = state is not None, True, False
        if state is not None:
            is_wrong = self._replay(plan)
            after = self._read(plan, found)
            if act == "end" or any(item.name == job for item in after.items.values()):
                self._begin(plan, index, state, after)
                self._settle_ours(plan, state, after)
            ours = state.circles
        text = (
            f"{plan.name} step {index} ({act} {job}): Kueue {_circling(theirs)}, core.quota "
            f"{_circling(ours)}"
        )
        if theirs and ours:
            self.report.circles.append(text)
        else:
            self.report.differences.append((self._kind(plan, is_wrong), text))


def _circling(is_circling: bool) -> str:  # noqa: FBT001 - two words
    return "circles" if is_circling else "does not circle"


async def _leave_second(found: list[Workload]) -> None:
    """Wait until the second is over in which a Workload was made: stamps have whole seconds."""
    newest = max((each.created_at for each in found), default=0)
    await asyncio.sleep(max(0.0, (newest + 1000) / 1000 - time.time()))


def _only(one: dict[str, str], other: dict[str, str]) -> list[tuple[str, str]]:
    return sorted(one.items() - other.items())


def _flavor(holding: Holding) -> str:
    return next(iter(holding.usage)).flavor


def _count_borrowing(plan: Plan, state: Queues) -> int:
    used: Counter[tuple[str, FlavorResource]] = Counter()
    for uid, holding in state.holdings.items():
        for pair, amount in holding.usage.items():
            used[state.items[uid].queue, pair] += amount
    specs = {spec.name: spec for spec in plan.queues}
    return sum(amount > specs[queue].quotas[pair].nominal for (queue, pair), amount in used.items())


async def compare(cluster: Cluster, plans: list[Plan], mode: AdmissionMode) -> Report:
    """Play all plans on the Kueue of a cluster that `prepare` made ready."""
    part = cluster.parts["kueue"]

    def find_pid() -> int:
        assert part.process is not None, "Kueue runs"
        return part.process.pid

    trace = Trace(part.log)
    try:
        async with KubeClient(read_kubeconfig(cluster.kubeconfig.read_text())) as client:
            await set_up(client, plans)
            return await Comparison(client, plans, mode, trace, find_pid).run()
    finally:
        trace.close()


def prepare(cluster: Cluster, mode: AdmissionMode) -> None:
    """Have a cluster's Kueue write down its cycles, switch fair sharing on or off, and restart it.

    kube-scheduler is stopped: pods have no part in quotas.
    """
    cluster.parts["kube-scheduler"].stop()
    part = cluster.parts["kueue"]
    kept = [each for each in part.command if not str(each).startswith("--zap-log-level")]
    part.command = [*kept, f"--zap-log-level={VERBOSITY}"]
    path: Path = cluster.folder / "kueue" / "configuration.yaml"
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    document.pop("fairSharing", None)
    if mode is AdmissionMode.FAIR_SHARING:
        strategies = ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]
        document["fairSharing"] = {"preemptionStrategies": strategies}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    part.stop()
    part.start_again()


def run(mode: AdmissionMode, arguments: argparse.Namespace) -> Report:
    """Start a rig, compare, and print what was found."""
    each = max(1, arguments.workloads // arguments.cohorts)
    plans = [make_plan(number, each, arguments.seed) for number in range(arguments.cohorts)]
    with running_rig(RigPlan(nodes=[], process_nodes=[])) as rig:
        prepare(rig.manager, mode)
        report = asyncio.run(compare(rig.manager, plans, mode))
    kinds_found = Counter(kind for kind, _ in report.differences)
    print(
        f"{mode.value}: {report.steps} steps ({each * len(plans)} workloads), "
        f"{report.equal} equal, {len(report.differences)} different {dict(kinds_found)}, "
        f"{len(report.circles)} in which workloads evict one another without end; Kueue made "
        f"{report.admissions} admissions, {dict(sorted(report.preemptions.items()))} preemptions; "
        f"queues above nominal after a step: {report.borrowing}; "
        f"{report.decisions} decisions of {report.cycles} cycles, {len(report.wrong)} otherwise"
    )
    for line in (*report.circles, *report.wrong):
        print(f"  {line}")
    for kind, text in report.differences:
        print(f"  [{kind}] {text}")
    return report


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=[mode.value for mode in AdmissionMode])
    parser.add_argument("--cohorts", type=int, default=40)
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print_machine()
    unexplained = 0
    for mode in AdmissionMode:
        if arguments.mode in (None, mode.value):
            unexplained += len(run(mode, arguments).unexplained)
    sys.exit(1 if unexplained else 0)


if __name__ == "__main__":
    main()
