"""Questions to the decision core as values: each carries all that it needs and answers itself.

They are asked in this process or sent to another one, with the same answer. Never loads anything:
what is imported here is imported by the child too, which must stay small and without a database.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from gpuplane.core.forecast.estimates import Forecast, ForecastLimits, StartEstimate
from gpuplane.core.forecast.forecasting import DEFAULT_LIMITS, earliest_start, forecast
from gpuplane.core.ids import JobId
from gpuplane.core.prediction.durations import Quantile
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision, Placed, Verdict, Waiting
from gpuplane.core.scheduling.memory import Memory
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.protection import MAX_INSTANTS, list_protection_ends
from gpuplane.core.scheduling.why import Why, explain_limit, explain_protection, explain_workload

A_co = TypeVar("A_co", covariant=True)

NODE_US = 0.004
"""What one node costs one waiting job in a decision: its share of the columns."""
WORKLOAD_US = 70.0
"""What one waiting job costs in a decision besides: quota, order, explanation. Measured with
benchmarks/bench_decide.py: 20 to 1,000 nodes, 50 to 1,000 jobs of 20 classes, CPU time."""
KNOWN_WORKLOAD_US = 6.0
"""The same for a job that the cycle before knew: 40 to 60 ms for 10,000 (bench_decide, warm)."""
TRAVEL_NODE_US = 25.0
TRAVEL_WORKLOAD_US = 12.0
"""What packing a node of eight GPUs, and a job, costs this process on the way to another."""
RUNS = len(Quantile)
"""A forecast plays the ends of what runs and waits once for each quantile of their durations."""
EVENT_US = 100.0
EVENT_WORKLOAD_US = 8.0
"""What one end costs, and what each waiting job adds to it: it may start then. Measured from 20 to
1,000 nodes with 1 to 500 jobs waiting; the true cost lies within five times of it."""


class Question(Protocol[A_co]):
    """What can be asked; equal questions have equal answers."""

    @property
    def cost_ms(self) -> float:
        """Return about how long the answer takes, in ms of one core."""
        ...

    @property
    def travel_ms(self) -> float:
        """Return about how long this process packs the question for another, in ms."""
        ...

    def answer(self) -> A_co:
        """Return the answer; pure."""
        ...


@dataclass(frozen=True, slots=True)
class WhatToStart:
    """What one turn of the scheduler asks.

    Args:
        memory: What the turn before left; it stays in this process. Where most of what waits is
            known from then, the answer costs little, and less than packing the question.
    """

    snapshot: Snapshot
    policy: Policy
    now: int
    seed: int
    memory: Memory | None = field(default=None, compare=False)

    def __reduce__(self) -> tuple[type["WhatToStart"], tuple[Snapshot, Policy, int, int]]:
        """Leave the memory behind when the question travels."""
        return WhatToStart, (self.snapshot, self.policy, self.now, self.seed)

    @property
    def cost_ms(self) -> float:
        """Return about how long one decision takes."""
        known = 0 if self.memory is None else self.memory.count_known(self.snapshot.pending)
        unknown = len(self.snapshot.pending) - known
        return decision_ms(self.snapshot, unknown) + known * KNOWN_WORKLOAD_US / 1000

    @property
    def travel_ms(self) -> float:
        """Return about how long it is packed."""
        return travel_ms(self.snapshot)

    def answer(self) -> Decision:
        """Return a verdict for every waiting job."""
        return decide(self.snapshot, self.policy, self.now, self.seed, self.memory)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is known of one waiting job.

    Args:
        estimate: None when it starts now, or not within the limits of the forecast.
        why: None when it starts now, or nobody asked what would change that.
    """

    verdict: Verdict
    estimate: StartEstimate | None = None
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class WhatOfJob:
    """What becomes of one job of the snapshot, and if it waits, until when.

    Args:
        wants_change: Whether the smallest change that would start it is looked for as well.
    """

    snapshot: Snapshot
    job_id: JobId
    policy: Policy
    now: int
    seed: int
    limits: ForecastLimits
    wants_change: bool

    @property
    def cost_ms(self) -> float:
        """Return about how long it takes if the job waits."""
        ahead_ms = forecast_ms(self.snapshot, self.limits, self.policy, self.now)
        return decision_ms(self.snapshot) + ahead_ms

    @property
    def travel_ms(self) -> float:
        """Return about how long it is packed."""
        return travel_ms(self.snapshot)

    def answer(self) -> Prospect:
        """Return its verdict, its estimated start and what would change it.

        Raises:
            LookupError: If the job is not among the pending of the snapshot.
        """
        workload = next((w for w in self.snapshot.pending if w.job_id == self.job_id), None)
        if workload is None:
            raise LookupError(f"job {self.job_id} is not among the pending")
        decision = decide(self.snapshot, self.policy, self.now, self.seed)
        verdict = next(each for each in decision.verdicts if each.job_id == self.job_id)
        found = Prospect(verdict)
        if isinstance(verdict, Placed):
            return found
        asked = (self.snapshot, workload, self.policy, self.now, self.seed)
        if isinstance(verdict, Waiting):
            held_up = explain_limit(*asked) or explain_protection(*asked)
            if held_up is not None:
                found = Prospect(verdict._replace(reason=held_up))
        found = replace(found, estimate=earliest_start(*asked, limits=self.limits))
        return replace(found, why=explain_workload(*asked)) if self.wants_change else found


@dataclass(frozen=True, slots=True)
class WhenEachStarts:
    """When everything that waits is expected to run."""

    snapshot: Snapshot
    policy: Policy
    now: int
    seed: int
    limits: ForecastLimits = DEFAULT_LIMITS

    @property
    def cost_ms(self) -> float:
        """Return about how long the forecast takes."""
        return forecast_ms(self.snapshot, self.limits, self.policy, self.now)

    @property
    def travel_ms(self) -> float:
        """Return about how long it is packed."""
        return travel_ms(self.snapshot)

    def answer(self) -> Forecast:
        """Return an estimate for each waiting job that starts within the limits."""
        return forecast(self.snapshot, self.policy, self.now, self.seed, limits=self.limits)


def decision_ms(snapshot: Snapshot, pending: int | None = None) -> float:
    """Return about how long one decision over a snapshot takes, in ms of one core.

    Args:
        snapshot: What is decided on.
        pending: How many of those that wait count; None for all.
    """
    nodes = sum(len(fleet) for fleet in snapshot.fleets)
    count = len(snapshot.pending) if pending is None else pending
    return count * (WORKLOAD_US + NODE_US * nodes) / 1000


def travel_ms(snapshot: Snapshot) -> float:
    """Return about how long packing a snapshot takes, in ms of one core."""
    nodes = sum(len(fleet) for fleet in snapshot.fleets)
    workloads = len(snapshot.pending) + len(snapshot.running)
    return (nodes * TRAVEL_NODE_US + workloads * TRAVEL_WORKLOAD_US) / 1000


def forecast_ms(snapshot: Snapshot, limits: ForecastLimits, policy: Policy, now: int) -> float:
    """Return about how long a forecast over a snapshot takes, in ms of one core."""
    pending = min(len(snapshot.pending), limits.max_pending)
    events = min(len(snapshot.running) + pending, limits.max_events) * RUNS
    young = min(len(list_protection_ends(snapshot, snapshot.pending, policy, now)), MAX_INSTANTS)
    decisions_ms = (1 + young) * decision_ms(snapshot)
    return decisions_ms + events * (EVENT_US + EVENT_WORKLOAD_US * pending) / 1000
