"""The meters: the job metrics of spec 12.4.3 by name, counted from the relayed events.

Counting events, not changes, gives every metric the same source as the audit trail. Counters
begin at zero with the process, as Prometheus expects.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpuplane.db.database import Database
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import Event
from gpuplane.domains.jobs import service as jobs
from gpuplane.kit.clock import Clock

BATCH = 2_000
WAIT_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
RUN_BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 14400, 43200, 86400, 259200, 604800)
STATUSES = frozenset(
    "pending queued scheduled running completed failed cancelled preempted".split()
)
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
RUN_ENDS = frozenset({"completed", "failed", "cancelled", "preempted"})


class JobMeters:
    """The metrics themselves, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register every metric."""
        self.transitions = Counter(
            "job_state_transitions", "Changes of a job's status", registry=registry,
            labelnames=("job_type", "from_state", "to_state"),
        )  # fmt: skip
        self.wait = Histogram(
            "job_queue_wait_seconds", "Time from standing in line to admission",
            ("job_type", "priority", "cluster_queue"), registry=registry, buckets=WAIT_BUCKETS,
        )  # fmt: skip
        self.duration = Histogram(
            "job_duration_seconds", "Time an attempt ran",
            ("job_type", "status", "source_type"), registry=registry, buckets=RUN_BUCKETS,
        )  # fmt: skip
        self.requested = Gauge(
            "job_resource_requested", "Held by jobs now: GPUs, cores, MiB",
            ("job_type", "resource"), registry=registry,
        )  # fmt: skip
        self.used = Gauge(
            "job_resource_used", "Of that, held by attempts that are running and not idle",
            ("job_type", "resource"), registry=registry,
        )  # fmt: skip
        self.efficiency = Gauge(
            "job_resource_efficiency_ratio", "GPUs of running attempts by GPUs held",
            ("job_type",), registry=registry,
        )  # fmt: skip
        # Gauges that only grow: counters end in _total, the names of the specification do not.
        self.estimated_cost = Gauge(
            "job_estimated_cost_dollars", "Estimated cost of ended jobs",
            ("job_type", "source_type"), registry=registry,
        )  # fmt: skip
        self.actual_cost = Gauge(
            "job_actual_cost_dollars", "Cost of ended jobs by the ledger",
            ("job_type", "source_type", "status"), registry=registry,
        )  # fmt: skip
        self.failures = Counter(
            "job_failures", "Attempts that ended badly", ("job_type", "failure_reason"),
            registry=registry,
        )  # fmt: skip
        self.retries = Counter(
            "job_retries", "Attempts after the first", ("job_type",), registry=registry
        )
        self.expected = Counter(
            "job_durations_expected", "Completed runs of which a duration was expected: within "
            "the ninetieth percentile told, or beyond", ("basis", "outcome"), registry=registry,
        )  # fmt: skip
        self.accuracy = Histogram(
            "job_duration_expected_ratio", "Time a completed run took by the median expected",
            ("basis",), registry=registry, buckets=RATIO_BUCKETS,
        )  # fmt: skip
        self.preemptions = Counter(
            "job_preemptions", "Attempts stopped for others", ("job_type", "preemption_reason"),
            registry=registry,
        )  # fmt: skip
        self.jobs = Counter(
            "jobs", "Jobs that reached a status", ("source_type", "job_type", "status"),
            registry=registry,
        )  # fmt: skip

    def count(self, event: Event) -> None:
        """Count one event of a job; other events are passed over."""
        status = event.kind.removeprefix("job.")
        if status not in STATUSES:
            return
        data = event.data
        job_type, source = str(data.get("job_type", "")), str(data.get("source_type", ""))
        before = str(data.get("from_status", "")) or ("pending" if status == "queued" else "")
        if before:
            self.transitions.labels(job_type, before, _named(status)).inc()
        self.jobs.labels(source.upper(), job_type, _named(status)).inc()
        if status == "scheduled":
            self._count_admission(event, job_type)
        if before in ("scheduled", "running") and status != "running":
            self._count_end(event, status, job_type, source)

    def _count_admission(self, event: Event, job_type: str) -> None:
        data = event.data
        labels = (job_type, str(data.get("priority", "")), str(data.get("cluster_queue", "")))
        self.wait.labels(*labels).observe(max(0, int(data.get("wait_ms", 0))) / 1000)
        if int(data.get("attempt", 1)) > 1:
            self.retries.labels(job_type).inc()

    def _count_end(self, event: Event, status: str, job_type: str, source: str) -> None:
        data = event.data
        ended = status if status in RUN_ENDS else "failed"
        self.duration.labels(job_type, ended, source).observe(int(data.get("ran_ms", 0)) / 1000)
        self._count_expected(data)
        if status == "preempted" or data.get("intent") == "preempt":
            self.preemptions.labels(job_type, event.reason).inc()
        elif data.get("intent", "") in ("", "fail") and status != "completed":
            self.failures.labels(job_type, event.reason).inc()
        if status in RUN_ENDS and data.get("currency") == "USD":
            cost = int(data.get("cost_micro") or 0) / 1e6
            self.actual_cost.labels(job_type, source, status).inc(cost)
            self.estimated_cost.labels(job_type, source).inc(
                int(data.get("estimated_micro") or 0) / 1e6
            )

    def _count_expected(self, data: Mapping[str, Any]) -> None:
        """Compare what a run took with what was expected of it when it was admitted."""
        basis = data.get("expected_basis")
        if not basis:
            return
        ran_s = int(data.get("ran_ms", 0)) / 1000
        held = ran_s <= int(data["expected_high_s"])
        self.expected.labels(basis, "within" if held else "beyond").inc()
        self.accuracy.labels(basis).observe(ran_s / max(1, int(data["expected_s"])))


class MetersLoop:
    """Counts what was relayed since the last turn; wakes with the event stream."""

    name = "meters"
    period_s = 15.0

    def __init__(self, database: Database, clock: Clock, meters: JobMeters) -> None:
        """Make the loop; what was relayed before it first ran is not counted."""
        self._database = database
        self._clock = clock
        self._meters = meters
        self._position: int | None = None

    async def run_once(self) -> bool:
        """Count one batch; True when there may be more."""
        if self._position is None:
            self._position = await self._database.read(events.last_position)
        found = await self._database.read(
            partial(events.load_relayed, after=self._position, kinds=("job.",), limit=BATCH)
        )
        for event in found:
            self._meters.count(event)
            self._position = event.position or self._position
        for held in await self._database.read(jobs.sum_held):
            self._show(held)
        return len(found) == BATCH

    def _show(self, held: jobs.HeldResources) -> None:
        kind = held.job_type
        for resource, requested, used in (
            ("gpu", held.gpu_milli / 1000, held.gpu_milli_running / 1000),
            ("cpu", held.cpu_milli / 1000, held.cpu_milli_running / 1000),
            ("memory", held.memory_mib, held.memory_mib_running),
        ):
            self._meters.requested.labels(kind, resource).set(requested)
            self._meters.used.labels(kind, resource).set(used)
        if held.gpu_milli:
            self._meters.efficiency.labels(kind).set(held.gpu_milli_running / held.gpu_milli)


def _named(status: str) -> str:
    """Return the metric's word for a status: the specification calls `scheduled` admitted."""
    return "ADMITTED" if status == "scheduled" else status.upper()
