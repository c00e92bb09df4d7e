"""An installation on virtual time: work arrives, is decided on, runs, is stopped for others, ends.

Owns the event clock around the real cycle: at every instant at which something arrives or ends it
decides, applies and goes on. Nothing is decided here, and nothing is measured but virtual time.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.fleet.facts import Allocation
from gpuplane.core.ids import JobId
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision, NeedsPreemption, Placed
from gpuplane.core.scheduling.memory import Memory
from gpuplane.core.scheduling.policy import Flavor, Policy, Snapshot
from gpuplane.core.scheduling.workload import RunningWorkload, Workload

MAX_CYCLES_AN_INSTANT = 16
"""Cycles at one instant: each stops somebody for whom the next one starts; more is a defect."""

Deciding = Callable[[Snapshot, Policy, int, int, Memory], Decision]
"""The cycle, or something around it that measures."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A workload, when it comes, and how long it runs; both in ms."""

    at: int
    workload: Workload
    runs_ms: int


@dataclass(slots=True)
class Played:
    """What happened, in ms of virtual time.

    Attributes:
        first_started: By job, when it started first.
        ended: By job, when it ended for good.
        cycles: Decisions made.
        stopped: Victims: each lost what it had done and queued again.
        most_pending: Longest queue that a cycle saw.
    """

    began_at: int
    first_started: dict[JobId, int] = field(default_factory=dict)
    ended: dict[JobId, int] = field(default_factory=dict)
    cycles: int = 0
    stopped: int = 0
    most_pending: int = 0

    @property
    def makespan_ms(self) -> int:
        """Return how long it took from the beginning to the last end."""
        return max(self.ended.values(), default=self.began_at) - self.began_at


@dataclass(slots=True)
class _Run:
    running: RunningWorkload
    takes: tuple[Take, ...]
    ends_at: int


class LiveCluster:
    """One cluster with its queues, changed in place by what is played on it."""

    def __init__(
        self,
        fleet: Fleet,
        quotas: QuotaTree,
        policy: Policy,
        seed: int,
        *,
        flavors: Mapping[str, Flavor] | None = None,
        deciding: Deciding = decide,
    ) -> None:
        """Make a cluster on which nothing waits or runs yet."""
        self._fleet = fleet
        self._quotas = quotas
        self._policy = policy
        self._seed = seed
        self._flavors = flavors or {}
        self._deciding = deciding
        self._memory = Memory()
        self._durations: dict[JobId, int] = {}
        self._pending: dict[JobId, Workload] = {}
        self._runs: dict[JobId, _Run] = {}
        self._ends: list[tuple[int, int, JobId]] = []
        self._generation = 0

    def play(self, arrivals: Iterable[Arrival], began_at: int) -> Played:
        """Let work arrive until all of it has ended, or what waits can never start.

        At equal instants ends come before arrivals. Victims stop at once, lose what they have
        done and queue again as of then.
        """
        played = Played(began_at)
        coming = sorted(arrivals, key=lambda each: (each.at, each.workload.job_id.int))
        index = 0
        while index < len(coming) or self._ends:
            times = [coming[index].at] if index < len(coming) else []
            if self._ends:
                times.append(self._ends[0][0])
            now = min(times)
            self._end_due(now, played)
            while index < len(coming) and coming[index].at <= now:
                arrival = coming[index]
                index += 1
                self._pending[arrival.workload.job_id] = arrival.workload
                self._durations[arrival.workload.job_id] = arrival.runs_ms
            self._settle(now, played)
        return played

    @property
    def pending(self) -> tuple[Workload, ...]:
        """Return what waits."""
        return tuple(self._pending.values())

    def _settle(self, now: int, played: Played) -> None:
        """Decide until nobody is stopped for anyone any more."""
        for _ in range(MAX_CYCLES_AN_INSTANT):
            if not self._pending:
                return
            played.most_pending = max(played.most_pending, len(self._pending))
            played.cycles += 1
            self._generation += 1
            decision = self._deciding(self._snapshot(), self._policy, now, self._seed, self._memory)
            for placed in decision.placed:
                self._start(placed, now, played)
            preempting = decision.preempting
            for place, verdict in enumerate(preempting):
                self._preempt(verdict, place, now, played)
            if not preempting:
                return
        raise RuntimeError(f"work is still being stopped after {MAX_CYCLES_AN_INSTANT} cycles")

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            generation=self._generation,
            pending=tuple(self._pending.values()),
            running=tuple(run.running for run in self._runs.values()),
            fleets=(self._fleet,),
            quotas=self._quotas,
            flavors=self._flavors,
        )

    def _start(self, placed: Placed, now: int, played: Played) -> None:
        workload = self._pending.pop(placed.job_id)
        ends_at = now + self._durations[workload.job_id]
        running = _running_of(workload, placed, now)
        takes = tuple(self._fleet.take_of(each) for each in running.allocations)
        for take in takes:
            self._fleet.allocate(take)
        self._fleet.settle()
        self._quotas.add_usage(workload.queue, running.usage, workload.local_queue)
        self._runs[workload.job_id] = _Run(running, takes, ends_at)
        heapq.heappush(self._ends, (ends_at, workload.job_id.int, workload.job_id))
        played.first_started.setdefault(workload.job_id, now)

    def _preempt(self, verdict: NeedsPreemption, place: int, now: int, played: Played) -> None:
        for job_id in verdict.victims:
            workload = self._stop(job_id)
            self._pending[job_id] = replace(workload, queued_at=now, promised_until=None)
            played.stopped += 1
        # What was freed goes to the one it was freed for: promises end one after the other.
        until = now + self._policy.preemption.grace_s * MS_PER_S + place + 1
        waiting = self._pending[verdict.job_id]
        self._pending[verdict.job_id] = replace(waiting, promised_until=until)

    def _end_due(self, now: int, played: Played) -> None:
        while self._ends and self._ends[0][0] <= now:
            ends_at, _, job_id = heapq.heappop(self._ends)
            run = self._runs.get(job_id)
            if run is not None and run.ends_at == ends_at:
                self._stop(job_id)
                played.ended[job_id] = ends_at

    def _stop(self, job_id: JobId) -> Workload:
        run = self._runs.pop(job_id)
        for take in run.takes:
            self._fleet.release(take)
        self._fleet.settle()
        workload = run.running.workload
        self._quotas.remove_usage(workload.queue, run.running.usage, workload.local_queue)
        return workload


def _running_of(workload: Workload, placed: Placed, now: int) -> RunningWorkload:
    resources = workload.resources
    return RunningWorkload(
        workload=workload,
        cluster_id=placed.cluster_id,
        allocations=tuple(
            Allocation(
                job_id=workload.job_id,
                node_id=each.node_id,
                rank=each.rank,
                gpu_ids=each.gpu_ids,
                gpu_milli=each.gpu_milli,
                mig=each.mig,
                cpu_milli=resources.cpu_milli,
                memory_mib=resources.memory_mib,
                ephemeral_mib=resources.ephemeral_mib,
            )
            for each in placed.replicas
        ),
        started_at=now,
        usage={FlavorResource(use.flavor, use.resource): use.amount for use in placed.usage},
    )
