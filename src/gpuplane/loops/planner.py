"""Answers what would become of a job, by the scheduler's own loading and the decision core.

Reads the world as a turn of the scheduler does and applies nothing. It has columns of its own,
because the scheduler's are advanced while a turn runs; questions are answered one after another.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from gpuplane.core.forecast.estimates import ForecastLimits
from gpuplane.core.ids import ClusterId, JobId
from gpuplane.core.prediction.durations import choose_durations
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.decisions import (
    NeedsPreemption,
    NeedsRepartition,
    Placed,
    Verdict,
    Waiting,
)
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.why import Change
from gpuplane.db.database import Database
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import (
    Forecast,
    Job,
    NewOffer,
    Outlook,
    SmallestChange,
    Submission,
)
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import Unavailable
from gpuplane.loops.deciding.process import DecisionFailed, DecisionProcess
from gpuplane.loops.deciding.questions import Question, WhatOfJob, WhenEachStarts
from gpuplane.loops.scheduler.kueue_queues import (
    describe_line,
    fitting_models,
    is_short_of_quota,
)
from gpuplane.loops.scheduler.loading import (
    ClusterView,
    Prepared,
    World,
    candidates_of,
    find_no_cluster_reason,
    prepare,
)
from gpuplane.loops.scheduler.offering import admits_itself, choose, list_workers
from gpuplane.loops.scheduler.state import SchedulerState

A = TypeVar("A")

LIMITS = ForecastLimits(max_events=200, max_pending=500)
"""A question waits for its answer, so a forecast for one looks less far than a timeline's."""
KEPT_MS = 5_000
"""How long a cluster's forecasts are told again without being computed again."""
QUOTA_WORDS = frozenset(
    {
        Word.QUOTA_EXCEEDED,
        Word.BORROWING_LIMIT,
        Word.LOCAL_QUEUE_LIMIT,
        Word.REQUEST_EXCEEDS_QUOTA,
        Word.NO_QUOTA_FOR_MODEL,
        Word.NO_QUEUE,
    }
)


class WorldPlanner:
    """Asks the decision core about the world as it is now; offered as the port `planner`."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        policy: Policy,
        seed: int,
        decisions: DecisionProcess,
    ) -> None:
        """Make a planner.

        Args:
            database: Where jobs and fleets are kept.
            clock: The time.
            policy: The scheduler's policy.
            seed: The scheduler's seed.
            decisions: Whom the decision core is asked through; not the scheduler's own, which a
                long forecast must not keep waiting.
        """
        self._database = database
        self._clock = clock
        self._policy = policy
        self._seed = seed
        self._decisions = decisions
        self._state = SchedulerState()
        self._turn = asyncio.Lock()
        self._kept: dict[ClusterId, tuple[int, tuple[Forecast, ...]]] = {}

    async def outlook_of(self, submission: Submission) -> Outlook:
        """Return what would become of a submission."""
        now = self._clock.now_ms()
        async with self._turn:
            world, job = await self._database.read(lambda s: self._load_with(s, submission, now))
            asked = replace(world, queued=(*world.queued, job))
            outlook = await self._look(asked, job, now, wants_change=False)
        start = submission.spec.scheduled_start
        if start is not None and start > now:
            later = None if outlook.earliest_start is None else max(start, outlook.earliest_start)
            return replace(outlook, starts_now=False, earliest_start=later)
        return outlook

    async def outlook_of_job(self, job_id: JobId) -> Outlook | None:
        """Return what a queued job waits for with the smallest change; None if it does not wait."""
        now = self._clock.now_ms()
        async with self._turn:
            world = await self._database.read(lambda s: self._state.load(s, now))
            job = next((each for each in world.queued if each.id == job_id), None)
            if job is None:
                return None
            return await self._look(world, job, now, wants_change=True)

    async def forecasts(self, cluster_id: ClusterId) -> tuple[Forecast, ...]:
        """Return when the waiting jobs of a cluster are expected to run, earliest first."""
        now = self._clock.now_ms()
        kept = self._kept.get(cluster_id)
        if kept is not None and 0 <= now - kept[0] < KEPT_MS:
            return kept[1]
        async with self._turn:
            world = await self._database.read(lambda s: self._state.load(s, now))
            found = await self._forecast(world, cluster_id, now)
        self._kept[cluster_id] = (now, found)
        return found

    def _load_with(
        self, session: ReadSession, submission: Submission, now: int
    ) -> tuple[World, Job]:
        world = self._state.load(session, now)
        job = jobs.draft_job(session, submission, now)
        tenants = identity.tenants_by_ids(session, {job.tenant_id})
        projects = identity.projects_by_ids(session, {job.project_id})
        named = replace(
            world,
            tenants={**world.tenants, **{key: each.name for key, each in tenants.items()}},
            projects={**world.projects, **{key: each.name for key, each in projects.items()}},
            predictions={**world.predictions, job.id: self._state.predict(session, job)},
        )
        return named, job

    async def _look(self, world: World, job: Job, now: int, *, wants_change: bool) -> Outlook:
        """Return the best answer among the clusters a job may use, and what is expected of it."""
        outlook = await self._look_around(world, job, now, wants_change=wants_change)
        prediction, spec = world.predictions[job.id], job.spec
        durations = choose_durations(
            spec.estimated_duration_s,
            prediction.learned,
            spec.max_duration_s,
            self._policy.default_duration_s,
        )
        return replace(outlook, prediction=prediction, durations=durations)

    async def _look_around(
        self, world: World, job: Job, now: int, *, wants_change: bool
    ) -> Outlook:
        """Return the best answer among the clusters a job may use, or what a Kueue will decide."""
        views = candidates_of(world, job)
        if not views:
            reason = find_no_cluster_reason(world, job)
            return Outlook(None, None, simulated=False, starts_now=False, reason=reason)
        choice = choose(world, views, job, now)
        if choice.offer is not None:
            return _offered(world, views, choice.offer, job)
        if choice.waiting is not None:
            found, reason = views[0].cluster, choice.waiting.reason
            empty = Outlook(found.id, found.name, simulated=found.simulated, starts_now=False)
            return replace(empty, reason=reason, is_over_quota=reason.word in QUOTA_WORDS)
        outlooks: list[Outlook] = []
        for view in choice.clusters:
            outlook = await self._look_on(world, view, job, now, wants_change=wants_change)
            if outlook.starts_now:
                return outlook
            outlooks.append(outlook)
        return min(outlooks, key=lambda each: each.earliest_start or 2**62)

    async def _look_on(
        self, world: World, view: ClusterView, job: Job, now: int, *, wants_change: bool
    ) -> Outlook:
        prepared = await asyncio.to_thread(self._prepare, world, view, job)
        empty = Outlook(
            view.cluster.id, view.cluster.name, simulated=view.cluster.simulated, starts_now=False
        )
        if any(each.id == job.id for each in prepared.doorless):
            reason = Reason(
                Word.NO_QUEUE,
                f"Its tenant has no LocalQueue on {view.cluster.name} that takes it.",
                "Have an operator create one, or use another cluster.",
            )
            return replace(empty, reason=reason, is_over_quota=True)
        found = await self._ask(
            WhatOfJob(
                prepared.snapshot,
                job.id,
                self._policy_for(view),
                now,
                self._seed,
                LIMITS,
                wants_change,
            )
        )
        outlook = _shape(empty, view, found.verdict, now)
        if found.estimate is not None and outlook.earliest_start is None:
            outlook = replace(outlook, earliest_start=found.estimate.start)
        if found.why is not None and found.why.changes:
            outlook = replace(outlook, change=_change(found.why.changes[0]))
        elif found.why is not None and found.why.waiting is None:
            said = "Alone in the queue it would start now: it waits for others before it."
            outlook = replace(outlook, explanation=(*outlook.explanation, said))
        return outlook

    def _prepare(self, world: World, view: ClusterView, job: Job | None) -> Prepared:
        """Return the snapshot of a cluster, with everything that would go there, and this job."""
        pending = [
            each
            for each in world.queued
            if (job is not None and each.id == job.id) or _goes_first_to(world, each, view)
        ]
        return prepare(world, view, self._state.fleet(view), pending)

    async def _forecast(
        self, world: World, cluster_id: ClusterId, now: int
    ) -> tuple[Forecast, ...]:
        view = next((each for each in world.clusters if each.cluster.id == cluster_id), None)
        if view is None or admits_itself(view):
            return ()  # there its Kueue decides, and tells nobody when
        prepared = await asyncio.to_thread(self._prepare, world, view, None)
        if not prepared.snapshot.pending:
            return ()
        found = await self._ask(
            WhenEachStarts(prepared.snapshot, self._policy_for(view), now, self._seed)
        )
        rows = [Forecast(job_id, each.start, each.end) for job_id, each in found.estimates.items()]
        return tuple(sorted(rows, key=lambda each: (each.start_at, str(each.job_id))))

    async def _ask(self, question: Question[A]) -> A:
        """Return the answer to a question; one that cannot be had now is a refusal, no fault."""
        try:
            return await self._decisions.ask(question)
        except DecisionFailed as error:
            raise Unavailable(
                "The forecast could not be worked out.",
                code="forecast_unavailable",
                fix="Try again later; the log of the control plane says why.",
                retry_after_s=30,
            ) from error

    def _policy_for(self, view: ClusterView) -> Policy:
        own = clusters.policy_of(view.cluster.preemption_policy)
        limits = replace(
            self._policy.preemption,
            enabled=self._policy.preemption.enabled and own.enabled,
            min_run_s=own.min_runtime_before_preemption_s,
            per_cluster_hour=own.max_preemptions_per_hour,
            grace_s=own.grace_period_s,
        )
        return replace(self._policy, preemption=limits)


def _offered(world: World, views: Sequence[ClusterView], offer: NewOffer, job: Job) -> Outlook:
    """Return what is known of a job that a Kueue decides on: who decides, and never when."""
    view = next(each for each in views if each.cluster.id == offer.cluster_id)
    name, queue = view.cluster.name, offer.cluster_queue
    workers = list_workers(world, view, offer, job)
    names = tuple(each.cluster.name for each, _ in workers)
    where = "" if not names else f": it dispatches it to {' or '.join(names)}"
    sentence = (
        f"Kueue on {name} decides when it starts and where{where}, so no start is estimated. "
        f"{describe_line(view, queue)}"
    )
    for worker, there in workers:
        sentence += f" On {worker.cluster.name}: {describe_line(worker, there)}"
    models = fitting_models(view, job.spec.resources)
    is_short = is_short_of_quota(view, queue, job, models)
    if is_short:
        sentence += " By what Kueue counts it has not enough unused quota for this job now."
    return Outlook(
        view.cluster.id,
        name,
        simulated=view.cluster.simulated,
        starts_now=False,
        reason=Reason(Word.OFFERED, sentence),
        is_over_quota=is_short,
        workers=names,
    )


def _goes_first_to(world: World, job: Job, view: ClusterView) -> bool:
    found: Sequence[ClusterView] = candidates_of(world, job)
    return bool(found) and found[0].cluster.id == view.cluster.id


def _shape(empty: Outlook, view: ClusterView, verdict: Verdict, now: int) -> Outlook:
    if isinstance(verdict, Placed):
        return replace(
            empty,
            starts_now=True,
            nodes=tuple(sorted({each.node_name for each in verdict.replicas})),
            gpu_model=_model_of(view, verdict),
            earliest_start=now,
            explanation=verdict.explanation,
        )
    counts = {str(each.word): each.nodes for each in verdict.counts}
    waits = replace(
        empty,
        reason=verdict.reason,
        counts=counts,
        position=verdict.position + 1,
        is_over_quota=verdict.reason.word in QUOTA_WORDS,
    )
    if isinstance(verdict, Waiting):
        return waits
    if isinstance(verdict, NeedsRepartition):
        nodes = tuple(sorted({each.node_name for each in verdict.changes}))
        return replace(waits, nodes=nodes, explanation=(verdict.reason.sentence,))
    return _preempting(waits, view, verdict)


def _preempting(waits: Outlook, view: ClusterView, verdict: NeedsPreemption) -> Outlook:
    count = len(verdict.receipts)
    noun = "job" if count == 1 else "jobs"
    said = f"It would start once {count} running {noun} of lower priority had been stopped."
    return replace(
        waits,
        nodes=tuple(sorted({each.node_name for each in verdict.placement.replicas})),
        gpu_model=_model_of(view, verdict.placement),
        explanation=(said, *(receipt.sentence for receipt in verdict.receipts)),
        is_over_quota=False,
    )


def _model_of(view: ClusterView, placed: Placed) -> str | None:
    wanted = next((gpu for each in placed.replicas for gpu in each.gpu_ids), None)
    if wanted is None:
        return None
    for node in view.nodes:
        for gpu in node.gpus:
            if gpu.gpu_id == wanted:
                return gpu.model
    return None


def _change(change: Change) -> SmallestChange:
    """Return a change under the names and in the units that people write."""
    also = None if change.also is None else _as_written(change.also)
    return SmallestChange(*_as_written(change), change.sentence, also)


def _as_written(change: Change) -> tuple[str, str]:
    field, unit = _API_FIELDS.get(change.field, (change.field, 0))
    return field, f"{int(change.after) / unit:g}" if unit else change.after


_API_FIELDS = {
    "placement.links_required": ("placement.topology.required", 0),
    "resources.cpu_milli": ("cpu_cores", 1000),
    "resources.memory_mib": ("memory_gb", 1024),
    "resources.ephemeral_mib": ("resources.ephemeral_storage_gb", 1024),
    "resources.gpu_model": ("gpu_type", 0),
    "resources.gpu_count": ("gpu_count", 0),
}
"""What people write for a field of the core: its name, and how many of its units make one."""
