"""The pipeline metrics of spec 12.4.2 by name, counted from the relayed events.

Counters begin at zero with the process, as Prometheus expects. A run's steps are counted when it
is over: a row for each of them in the stream would cost more than the steps.
"""

from functools import partial
from uuid import UUID

from prometheus_client import CollectorRegistry, Counter, Histogram

from gpuplane.core.workloads import SourceType
from gpuplane.db.database import Database
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import Event
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import StepView
from gpuplane.kit.pagination import MAX_LIMIT, PageRequest, decode_cursor

BATCH = 500
BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 43200, 86400, 604800)
RUN_KIND = "pipeline"
HANDLERS = "pipelines."
"""What the names of handlers of steps begin with."""
OVER = frozenset({"completed", "partial", "failed", "cancelled", "skipped"})
MAX_STEPS = 20_000
"""Steps of one run that are counted."""


class PipelineMeters:
    """The metrics themselves, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register every metric."""
        self.executions = Counter(
            "pipeline_executions", "Runs of pipelines that are over", ("status",), registry=registry
        )
        self.duration = Histogram(
            "pipeline_duration_seconds", "Time a run took", ("pipeline_id", "status"),
            registry=registry, buckets=BUCKETS,
        )  # fmt: skip
        self.steps = Counter(
            "step_executions", "Steps of runs that are over", ("step_type", "status"),
            registry=registry,
        )  # fmt: skip
        self.step_duration = Histogram(
            "step_duration_seconds", "Time a step took", ("step_type", "status"),
            registry=registry, buckets=BUCKETS,
        )  # fmt: skip
        self.jobs = Counter(
            "jobs_created_from_steps", "Jobs that steps submitted", ("step_type",),
            registry=registry,
        )  # fmt: skip
        self.wait = Histogram(
            "job_wait_time_seconds", "Time from standing in line to admission", ("source_type",),
            registry=registry, buckets=BUCKETS,
        )  # fmt: skip

    def count_job(self, event: Event) -> None:
        """Count a job's event: that a step submitted it, how long it waited."""
        source = str(event.data.get("source_type", ""))
        if event.kind == "job.scheduled":
            waited = max(0, int(event.data.get("wait_ms", 0))) / 1000
            self.wait.labels(source.upper()).observe(waited)
        is_new = event.kind == "job.pending" and not event.data.get("from_status")
        if is_new and source == SourceType.PIPELINE:
            self.jobs.labels("job").inc()

    def count_run(self, event: Event) -> None:
        """Count a run that is over."""
        status = _named(event.kind.removeprefix("run."))
        self.executions.labels(status).inc()
        pipeline_id = str(event.data.get("source_id", ""))
        ran_s = int(event.data.get("ran_ms", 0)) / 1000
        self.duration.labels(pipeline_id, status).observe(ran_s)

    def count_step(self, step: StepView) -> None:
        """Count a step of a run that is over."""
        if not step.handler.startswith(HANDLERS) or step.status.value not in OVER:
            return
        labels = (step.handler.removeprefix(HANDLERS), _named(step.status.value))
        self.steps.labels(*labels).inc()
        if step.started_at is not None and step.ended_at is not None:
            self.step_duration.labels(*labels).observe((step.ended_at - step.started_at) / 1000)


class PipelineMetersLoop:
    """Counts what was relayed since the last turn; wakes with the event stream."""

    name = "pipeline-meters"
    period_s = 15.0

    def __init__(self, database: Database, meters: PipelineMeters) -> None:
        """Make the loop; what was relayed before it first ran is not counted."""
        self._database = database
        self._meters = meters
        self._position: int | None = None

    async def run_once(self) -> bool:
        """Count one batch; True when there may be more."""
        if self._position is None:
            self._position = await self._database.read(events.last_position)
        kinds = ("job.", "run.")
        found = await self._database.read(
            partial(events.load_relayed, after=self._position, kinds=kinds, limit=BATCH)
        )
        for event in found:
            if event.kind.startswith("job."):
                self._meters.count_job(event)
            elif event.kind.removeprefix("run.") in OVER:
                await self._count_run(event)
            self._position = event.position or self._position
        return len(found) == BATCH

    async def _count_run(self, event: Event) -> None:
        if event.data.get("run_kind") != RUN_KIND:
            return
        self._meters.count_run(event)
        run_id, cursor = UUID(event.subject_id), None
        for _ in range(MAX_STEPS // MAX_LIMIT):
            page = PageRequest(MAX_LIMIT, decode_cursor(cursor, runs.SORT_STEPS))
            steps = await self._database.read(
                partial(runs.list_steps, run_id=run_id, wanted=runs.StepFilter(), page=page)
            )
            for step in steps.items:
                self._meters.count_step(step)
            cursor = steps.next_cursor
            if cursor is None:
                return


def _named(status: str) -> str:
    """Return the metric's word for a status: the specification calls `completed` success."""
    return "success" if status == "completed" else status
