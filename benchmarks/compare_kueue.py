"""The same workloads through `core.quota` and through a real Kueue, step by step.

    python -m benchmarks.compare_kueue [--mode MODE] [--cohorts 40] [--workloads 1000] [--quiet 0.7]

A rig of its own is started, without nodes: quotas alone decide. In each step one job arrives or
ends in every cohort; when Kueue has settled, its admissions, flavors and evictions are compared
with those of `core.quota` from the same state before, and Kueue's state is where both go on from.
So a difference is counted once, where it arises. Prints the figures and every difference.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml

from benchmarks.figures import print_machine
from benchmarks.kueue_cycle import Holding, Item, KueueLoop, Queues
from gpuplane.core.quota import (
    GPU,
    AdmissionMode,
    BorrowWithinCohortPolicy,
    ClusterQueueSpec,
    CohortSpec,
    FlavorFungibility,
    FlavorFungibilityPolicy,
    FlavorResource,
    PreemptionPolicy,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
)
from gpuplane.core.workloads import PRIORITY_VALUES
from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.informers import Informer
from gpuplane.kube.kueue.flavors import priority_class_objects
from gpuplane.kube.kueue.names import UNCOUNTED_FLAVOR, ApiVersion
from gpuplane.kube.kueue.queues import cluster_queue_object, cohort_object
from gpuplane.kube.shapes import Condition, ObjectMeta
from rig.rigs import RigPlan, running_rig

NAMESPACE = "compared"
UNTOLD = "?"
FLAVORS = ("flavor-a", "flavor-b")
QUIET_S = 0.7
"""Kueue has settled when nobody got or lost quota for so long and nothing is under way; a busy
machine takes longer to think (`--quiet`)."""
SETTLE_S = 90.0
"""A step that takes longer is counted as unsettled and not compared: the machine is too busy, or
Kueue evicts in a circle."""
TICK_S = 1.05
"""Time stamps of the API have whole seconds: steps are at least one apart."""
CIRCLE = 3
"""Evictions of one workload within one step from which on it counts as going round."""
Version = ApiVersion.V1BETA2


class Assignment(msgspec.Struct):
    """Flavors of a pod set."""

    flavors: dict[str, str] | None = None


class Admission(msgspec.Struct, rename="camel"):
    """What a workload was given."""

    pod_set_assignments: list[Assignment] | None = None


class Eviction(msgspec.Struct):
    """How often a workload was evicted for one reason."""

    reason: str = ""
    count: int = 0


class Stats(msgspec.Struct):
    """What Kueue counted of a workload."""

    evictions: list[Eviction] | None = None


class WorkloadStatus(msgspec.Struct, rename="camel"):
    """Where a workload stands."""

    conditions: list[Condition] | None = None
    admission: Admission | None = None
    scheduling_stats: Stats | None = None


class WorkloadShape(msgspec.Struct):
    """A Workload as far as it is compared."""

    metadata: ObjectMeta
    status: WorkloadStatus | None = None

    @property
    def job(self) -> str:
        """Return the name of its Job."""
        owners = self.metadata.owner_references or []
        return owners[0].name if owners else ""

    def condition(self, kind: str) -> Condition | None:
        """Return a condition."""
        found = (self.status.conditions or []) if self.status else []
        return next((each for each in found if each.type == kind), None)

    def holds(self) -> bool:
        """Tell whether its quota is reserved."""
        reserved = self.condition("QuotaReserved")
        return reserved is not None and reserved.status == "True"

    def is_settled(self) -> bool:
        """Tell whether nothing is under way with it.

        One behind a blocked head of a StrictFIFO queue was never looked at and says nothing.
        """
        evicted = self.condition("Evicted")
        return not self.holds() or evicted is None or evicted.status != "True"

    def evictions(self) -> int:
        """Return how often it was preempted."""
        stats = self.status.scheduling_stats if self.status else None
        rows = (stats.evictions or []) if stats else []
        return sum(each.count for each in rows if each.reason == "Preempted")

    def cause(self) -> str:
        """Return why it was preempted last in Kueue's word, `UNTOLD` once it is admitted again."""
        preempted = self.condition("Preempted")
        # It is told anew once the workload has quota again.
        is_told = preempted is not None and preempted.status == "True"
        return preempted.reason if preempted is not None and is_told else UNTOLD


@dataclass(frozen=True)
class Plan:
    """One cohort with its queues, and what happens in it, step by step."""

    name: str
    queues: tuple[ClusterQueueSpec, ...]
    cohorts: tuple[CohortSpec, ...]
    steps: tuple[tuple[str, str, str, int], ...]
    """(arrive or end, job, queue, GPUs); the priority's word is in the job's name."""


def make_plan(number: int, arrivals: int, seed: int) -> Plan:
    """Return one cohort: queues, policies and events by chance of a seed."""
    chance = random.Random(f"{seed}/{number}")
    name = f"cohort-{number}"
    flavors = FLAVORS[: chance.choice((1, 1, 2))]
    parents = [name]
    cohorts = [CohortSpec(name)]
    if number % 4 == 3:
        # Two cohorts under one: quotas are lent across.
        parents = [f"{name}-left", f"{name}-right"]
        cohorts += [CohortSpec(each, parent=name) for each in parents]
    queues = tuple(_make_queue(f"{name}-q{i}", parents[i % len(parents)], flavors, chance)
                   for i in range(chance.randint(2, 4)))  # fmt: skip
    steps: list[tuple[str, str, str, int]] = []
    alive: list[str] = []
    for index in range(arrivals):
        word = chance.choice(("critical", "high", "normal", "normal", "low", "spot"))
        job = f"{name}-{word}-{index}"
        queue = chance.choice(queues).name
        steps.append(("arrive", job, queue, chance.choice((1, 1, 2, 2, 3, 4, 6, 8))))
        alive.append(job)
        if len(alive) > 8 and chance.random() < 0.45:
            steps.append(("end", alive.pop(chance.randrange(len(alive))), "", 0))
    return Plan(name, queues, tuple(cohorts), tuple(steps))


def _make_queue(
    name: str, cohort: str, flavors: tuple[str, ...], chance: random.Random
) -> ClusterQueueSpec:
    quotas = {}
    for flavor in flavors:
        nominal = chance.choice((2, 4, 6, 8)) * 1000
        borrowing = chance.choice((None, None, 0, 2000, 4000))
        lending = chance.choice((None, None, 0, nominal // 2))
        quotas[FlavorResource(flavor, GPU)] = ResourceQuota(nominal, borrowing, lending)
    reclaim = chance.choice(list(ReclaimWithinCohort))
    borrow = BorrowWithinCohortPolicy.NEVER
    threshold = None
    if reclaim is not ReclaimWithinCohort.NEVER and chance.random() < 0.4:
        borrow = BorrowWithinCohortPolicy.LOWER_PRIORITY
        threshold = chance.choice((None, 1, 10))
    fungible = list(FlavorFungibilityPolicy)
    return ClusterQueueSpec(
        name,
        cohort=cohort,
        resource_groups=(ResourceGroup((GPU,), flavors),),
        quotas=quotas,
        queueing_strategy=chance.choice(
            (QueueingStrategy.BEST_EFFORT_FIFO,) * 3 + (QueueingStrategy.STRICT_FIFO,)
        ),
        fair_weight_milli=chance.choice((1000, 1000, 2000, 500)),
        preemption=PreemptionPolicy(
            chance.choice(list(WithinClusterQueue)), reclaim, borrow, threshold
        ),
        flavor_fungibility=FlavorFungibility(chance.choice(fungible), chance.choice(fungible)),
    )


def job_object(job: str, queue: str, gpus: int) -> dict[str, Any]:
    """Return a suspended Job that asks Kueue for GPUs and never ends by itself."""
    asked = {GPU: str(gpus)}
    container = {
        "name": "main",
        "image": "busybox",
        "resources": {"requests": asked, "limits": asked},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job,
            "namespace": NAMESPACE,
            "labels": {
                "kueue.x-k8s.io/queue-name": queue,
                "kueue.x-k8s.io/priority-class": job.split("-")[-2],
            },
        },
        "spec": {
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


@dataclass
class Report:
    """What was found."""

    steps: int = 0
    equal: int = 0
    admissions: int = 0
    preemptions: Counter[str] = field(default_factory=Counter)
    borrowing: int = 0
    unsettled: int = 0
    circles: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


class Comparison:
    """Both sides of one run."""

    def __init__(
        self, client: KubeClient, plans: list[Plan], mode: AdmissionMode, quiet_s: float
    ) -> None:
        self._client = client
        self._quiet_s = quiet_s
        self._plans = plans
        self._loops = {plan.name: KueueLoop(plan.queues, plan.cohorts, mode) for plan in plans}
        self._items: dict[str, dict[str, tuple[str, int, int]]] = {p.name: {} for p in plans}
        self._workloads: Informer[WorkloadShape] = Informer(
            client, kinds.WORKLOAD, namespace=NAMESPACE, decode=WorkloadShape
        )
        self._counted: dict[str, int] = {}
        self._out: set[str] = set()
        self._behind: set[str] = set()
        self.report = Report()

    async def run(self) -> Report:
        """Play every step."""
        self._workloads.start()
        await self._workloads.wait_synced(30)
        for index in range(max(len(plan.steps) for plan in self._plans)):
            began = time.monotonic()
            now = [
                plan
                for plan in self._plans
                if index < len(plan.steps) and plan.name not in self._out
            ]
            before = {plan.name: self._read(plan) for plan in now}
            await asyncio.gather(*(self._do(plan, index) for plan in now))
            if not await self._wait_settled():
                # What is under way is no answer: the next step begins from where Kueue is then.
                for plan in now:
                    self._new_evictions(plan)
                continue
            for plan in now:
                if self._compare(plan, index, before[plan.name]):
                    self._out.add(plan.name)
                    await self._clear(plan)
            await asyncio.sleep(max(0.0, TICK_S - (time.monotonic() - began)))
        await self._workloads.stop()
        return self.report

    async def _do(self, plan: Plan, index: int) -> None:
        act, job, queue, gpus = plan.steps[index]
        if act == "arrive":
            value = next(v for w, v in PRIORITY_VALUES.items() if w.value == job.split("-")[-2])
            self._items[plan.name][job] = (queue, gpus, value)
            spec = next(each for each in plan.queues if each.name == queue)
            if spec.queueing_strategy is QueueingStrategy.STRICT_FIFO:
                self._behind.add(job)
            await self._client.create(job_object(job, queue, gpus), NAMESPACE)
        else:
            self._items[plan.name].pop(job, None)
            await self._client.delete(kinds.JOB, job, NAMESPACE)

    async def _clear(self, plan: Plan) -> None:
        """End every job of a cohort that circles: it would circle on."""
        jobs, self._items[plan.name] = list(self._items[plan.name]), {}
        await asyncio.gather(*(self._client.delete(kinds.JOB, job, NAMESPACE) for job in jobs))

    async def _wait_settled(self) -> bool:
        """Wait until each job has its workload, none is under way, and who holds what stays so."""
        wanted = {job for items in self._items.values() for job in items}
        deadline = time.monotonic() + SETTLE_S
        seen, since = self._signature(), time.monotonic()
        while time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            now = self._signature()
            if now != seen:
                seen, since = now, time.monotonic()
            shapes = self._workloads.items()
            is_whole = {shape.job for shape in shapes} == wanted
            is_quiet = time.monotonic() - since >= self._quiet_s
            if is_whole and is_quiet and not any(map(self._is_under_way, shapes)):
                return True
        self.report.unsettled += 1
        return False

    def _is_under_way(self, shape: WorkloadShape) -> bool:
        """Tell whether Kueue has not come to an end with a workload."""
        if not shape.is_settled():
            return True
        reserved = shape.condition("QuotaReserved")
        if reserved is None:
            return shape.job not in self._behind
        return not shape.holds() and "Pending the preemption" in reserved.message

    def _signature(self) -> frozenset[tuple[str, str, int]]:
        """Return who holds what, and how often each was evicted."""
        return frozenset(
            (
                shape.job,
                _flavor_of(shape) if shape.holds() else "",
                shape.evictions(),
            )
            for shape in self._workloads.items()
        )

    def _read(self, plan: Plan) -> Queues:
        """Return a cohort's state as Kueue has it."""
        found = Queues()
        for shape in self._shapes(plan):
            queue, gpus, priority = self._items[plan.name][shape.job]
            uid = shape.metadata.uid
            at = _ms(shape.metadata.creation_timestamp)
            found.items[uid] = Item(uid, shape.job, queue, {GPU: gpus * 1000}, priority, at)
            if shape.holds():
                reserved = shape.condition("QuotaReserved")
                assert reserved is not None
                pair = FlavorResource(_flavor_of(shape), GPU)
                since = _ms(reserved.last_transition_time or "")
                found.holdings[uid] = Holding({pair: gpus * 1000}, since)
        return found

    def _shapes(self, plan: Plan) -> Iterator[WorkloadShape]:
        return (shape for shape in self._workloads.items() if shape.job in self._items[plan.name])

    def _compare(self, plan: Plan, index: int, state: Queues) -> bool:
        """Compare what a step did; return whether workloads evict one another without end."""
        act, job, _, _ = plan.steps[index]
        after = self._read(plan)
        if act == "arrive":
            item = next((item for item in after.items.values() if item.name == job), None)
            if item is None:
                # Kueue has not seen the job in time; the next step begins from where it is then.
                return False
            state.items[item.uid] = item
            state.active = {item.uid}
        else:
            uid = next((uid for uid, item in state.items.items() if item.name == job), "")
            state.items.pop(uid, None)
            held = state.holdings.pop(uid, None)
            state.active = set(state.pending) if held is not None else set()
        now = max((item.queued_at for item in after.items.values()), default=0) + 1
        started = {uid for uid in after.holdings if uid not in state.holdings}
        self._loops[plan.name].settle(state, now)
        theirs = self._new_evictions(plan)
        ours = Counter(state.evictions)
        report = self.report
        report.steps += 1
        is_circling = max(theirs.values(), default=0) >= CIRCLE
        if state.circles or is_circling:
            report.circles.append(
                f"{plan.name} step {index} ({act} {job}): Kueue "
                f"{'circles' if is_circling else 'does not circle'}, core.quota "
                f"{'circles' if state.circles else 'does not circle'}; evicted by Kueue "
                f"{dict(theirs)}, by core.quota {sorted(ours)}"
            )
            return True
        report.admissions += len(started)
        for (_, reason), count in theirs.items():
            report.preemptions[reason] += count
        report.borrowing += self._count_borrowing(plan, after)
        held_by_us = {state.items[uid].name: _flavor(h) for uid, h in state.holdings.items()}
        held_by_kueue = {after.items[uid].name: _flavor(h) for uid, h in after.holdings.items()}
        if held_by_us == held_by_kueue and _are_alike(ours, theirs):
            report.equal += 1
            return False
        report.differences.append(
            f"{plan.name} step {index} ({act} {job}): "
            f"only Kueue holds {_only(held_by_kueue, held_by_us)}, "
            f"only core.quota {_only(held_by_us, held_by_kueue)}; "
            f"evicted by Kueue {sorted(theirs.elements())}, by core.quota "
            f"{sorted(ours.elements())}; Kueue says of it: {self._said_of(plan, job)}"
        )
        return False

    def _said_of(self, plan: Plan, job: str) -> str:
        for shape in self._shapes(plan):
            reserved = shape.condition("QuotaReserved")
            if shape.job == job and reserved is not None:
                return reserved.message
        return "nothing"

    def _new_evictions(self, plan: Plan) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for shape in self._shapes(plan):
            now, before = shape.evictions(), self._counted.get(shape.metadata.uid, 0)
            if now > before:
                found[shape.job, shape.cause()] = now - before
            self._counted[shape.metadata.uid] = now
        return found

    def _count_borrowing(self, plan: Plan, state: Queues) -> int:
        used: Counter[tuple[str, FlavorResource]] = Counter()
        for uid, holding in state.holdings.items():
            for pair, amount in holding.usage.items():
                used[state.items[uid].queue, pair] += amount
        specs = {spec.name: spec for spec in plan.queues}
        return sum(
            amount > specs[queue].quotas[pair].nominal for (queue, pair), amount in used.items()
        )


def _are_alike(ours: Counter[tuple[str, str]], theirs: Counter[tuple[str, str]]) -> bool:
    """Tell whether the same workloads were evicted, for the same reasons where Kueue tells them."""
    untold = {job for job, reason in theirs if reason == UNTOLD}

    def plain(found: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
        told: Counter[tuple[str, str]] = Counter()
        for (job, reason), count in found.items():
            told[job, UNTOLD if job in untold else reason] += count
        return told

    return plain(ours) == plain(theirs)


def _only(one: dict[str, str], other: dict[str, str]) -> list[tuple[str, str]]:
    return sorted(one.items() - other.items())


def _flavor(holding: Holding) -> str:
    return next(iter(holding.usage)).flavor


def _flavor_of(shape: WorkloadShape) -> str:
    assert shape.status is not None
    assert shape.status.admission is not None
    assignments = shape.status.admission.pod_set_assignments or []
    return next(flavor for each in assignments for flavor in (each.flavors or {}).values())


def _ms(text: str) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(text).timestamp() * 1000) if text else 0


async def set_up(client: KubeClient, plans: list[Plan]) -> None:
    """Make flavors, priorities, cohorts, queues and the namespace."""
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for flavor in (*FLAVORS, UNCOUNTED_FLAVOR):
        await client.create(
            {
                "apiVersion": Version.group_version,
                "kind": "ResourceFlavor",
                "metadata": {"name": flavor},
            }
        )
    for each in priority_class_objects(Version):
        name = each["metadata"]["name"].rpartition("-")[2].lower()
        await client.create({**each, "metadata": {"name": name}})
    for plan in plans:
        for cohort in plan.cohorts:
            await client.create(cohort_object(cohort, Version))
        for queue in plan.queues:
            await client.create(cluster_queue_object(queue, Version))
            await client.create(
                {
                    "apiVersion": Version.group_version,
                    "kind": "LocalQueue",
                    "metadata": {"name": queue.name, "namespace": NAMESPACE},
                    "spec": {"clusterQueue": queue.name},
                },
                NAMESPACE,
            )


async def compare(
    kubeconfig: str, plans: list[Plan], mode: AdmissionMode, quiet_s: float
) -> Report:
    """Play all plans on the Kueue of a cluster."""
    async with KubeClient(read_kubeconfig(kubeconfig)) as client:
        await set_up(client, plans)
        return await Comparison(client, plans, mode, quiet_s).run()


def run(mode: AdmissionMode, arguments: argparse.Namespace) -> None:
    """Start a rig, compare, and print what was found."""
    each = max(1, arguments.workloads // arguments.cohorts)
    plans = [make_plan(number, each, arguments.seed) for number in range(arguments.cohorts)]
    with running_rig(RigPlan(nodes=[], process_nodes=[])) as rig:
        rig.manager.parts["kube-scheduler"].stop()
        if mode is AdmissionMode.FAIR_SHARING:
            _share_fairly(rig.manager)
        report = asyncio.run(
            compare(rig.manager.kubeconfig.read_text(), plans, mode, arguments.quiet)
        )
    print(
        f"{mode.value}: {report.steps} steps ({each * len(plans)} workloads), "
        f"{report.equal} equal, {len(report.differences)} different, {len(report.circles)} in "
        "which workloads evict one another without end; Kueue made "
        f"{report.admissions} admissions, {dict(sorted(report.preemptions.items()))} preemptions; "
        f"queues above nominal after a step: {report.borrowing}; "
        f"steps after which Kueue did not settle: {report.unsettled}"
    )
    for line in (*report.circles, *report.differences):
        print(f"  {line}")


def _share_fairly(cluster: Any) -> None:
    """Switch fair sharing on and start Kueue again."""
    path = cluster.folder / "kueue" / "configuration.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    strategies = ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]
    document["fairSharing"] = {"preemptionStrategies": strategies}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    cluster.parts["kueue"].stop()
    cluster.parts["kueue"].start_again()


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=[mode.value for mode in AdmissionMode])
    parser.add_argument("--cohorts", type=int, default=40)
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quiet", type=float, default=QUIET_S)
    arguments = parser.parse_args()
    print_machine()
    for mode in AdmissionMode:
        if arguments.mode in (None, mode.value):
            run(mode, arguments)


if __name__ == "__main__":
    main()
