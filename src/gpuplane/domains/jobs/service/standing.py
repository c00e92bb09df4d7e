"""Whether a job that its cluster is about to admit may start: budget, window, suspension."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.lifecycle.jobs import HOLDING, Condition, JobStatus
from gpuplane.core.scheduling.ordering import BOOST_UNIT, compute_effective
from gpuplane.core.scheduling.policy import Boosts
from gpuplane.core.scheduling.windows import find_current_window, find_next_window
from gpuplane.core.workloads import PRIORITY_VALUES, BudgetAction, Priority
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules import Job
from gpuplane.domains.jobs.rules.offers import OFFERED
from gpuplane.domains.jobs.service.loading import Door, workload_of

MAX_RUNNING = 1_000_000
"""Attempts of a cluster that are looked through: more than any has."""


@dataclass(frozen=True, slots=True)
class OfferStanding:
    """What an offered job is to be on its cluster now.

    Args:
        may_start: Whether nothing but quota holds it back.
        sentence: Why it is held, or that it is not.
        retry_at: When to ask again, None where time alone opens nothing.
        priority_class: Its class.
        priority: Its priority with boosts, on the scale of the classes' values.
        in_line_since: Its age in line where it was taken off its devices since, None where its
            cluster knows its age.
    """

    may_start: bool
    sentence: str
    retry_at: int | None
    priority_class: Priority
    priority: int
    in_line_since: int | None = None


def load_offer_standings(
    session: ReadSession, cluster_id: ClusterId, boosts: Boosts, now: int
) -> Mapping[AttemptId, OfferStanding]:
    """Return what the offered jobs of a cluster are to be there now, and services that grow.

    What was dispatched to it is among them once its backend keeps a record of it, and not before:
    nothing may start that nobody could stop.
    """
    offers = [
        each
        for each in offers_repository.list_offers(session, cluster_id)
        if each.cluster_id == cluster_id or each.taken_at is not None
    ]
    jobs = repository.load_jobs(session, [each.job_id for each in offers])
    cluster = clusters.find_cluster(session, cluster_id)
    frozen = cluster is not None and cluster.frozen
    found: dict[AttemptId, OfferStanding] = {}
    for offer in offers:
        job = jobs.get(offer.job_id)
        if job is None:
            continue
        in_line = offer.state == OFFERED and job.status is JobStatus.QUEUED
        told = _hold(job, now, is_wanted=in_line, is_frozen=frozen)
        door = Door(None, offer.cluster_queue)
        effective, _ = compute_effective(workload_of(job, "", "", door), boosts, now)
        boosted = max(PRIORITY_VALUES[job.spec.priority], effective // BOOST_UNIT)
        if job.spec.is_plain_service:
            boosted = PRIORITY_VALUES[job.spec.priority]
        found[offer.attempt_id] = _standing_of(job, told, boosted)
    return found | _load_growing(session, cluster_id, now, is_frozen=frozen)


def _load_growing(
    session: ReadSession, cluster_id: ClusterId, now: int, *, is_frozen: bool
) -> dict[AttemptId, OfferStanding]:
    """Return what running services are to be there whose replicas are admitted one by one.

    No service is boosted: a replica that waits would take the place of one of its own that runs.
    """
    states = ["admitted", "starting", "running"]
    running = attempts_repository.list_by_state(session, states, cluster_id, MAX_RUNNING)
    attempts = [each for each in running if each.by_pod]
    jobs = repository.load_jobs(session, [each.job_id for each in attempts])
    found = {}
    for attempt in attempts:
        job = jobs.get(attempt.job_id)
        if job is None:
            continue
        stays = job.status in HOLDING and job.condition is not Condition.STOPPING
        told = _hold(job, now, is_wanted=stays, is_frozen=is_frozen)
        standing = _standing_of(job, told, PRIORITY_VALUES[job.spec.priority])
        # What a running service adds stands in line for itself, not since its job was preempted.
        found[attempt.id] = replace(standing, in_line_since=None)
    return found


def _standing_of(job: Job, told: tuple[str, int | None] | None, priority: int) -> OfferStanding:
    return OfferStanding(
        told is None,
        "Nothing but quota holds it back." if told is None else told[0],
        None if told is None else told[1],
        job.spec.priority,
        priority,
        job.in_line_since,
    )


def _hold(job: Job, now: int, *, is_wanted: bool, is_frozen: bool) -> tuple[str, int | None] | None:
    """Return (why a job is held back, when that ends by itself), or None."""
    if not is_wanted:
        return f"It is {job.status} and was taken back.", None
    if is_frozen:
        return "Its cluster is frozen.", None
    spec = job.spec
    if spec.window is not None and find_current_window(spec.window, now) is None:
        span = find_next_window(spec.window, now)
        return "Its time window is closed.", None if span is None else span[0]
    limit, spent = spec.budget_limit_micro, job.actual_cost_micro or 0
    if limit is not None and spent >= limit and spec.budget_action is not BudgetAction.WARN:
        return "It has spent its budget.", None
    return None
