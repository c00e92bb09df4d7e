"""Whether a job that its cluster is about to admit may start: budget, window, suspension."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.core.scheduling.ordering import BOOST_UNIT, compute_effective
from gpuplane.core.scheduling.policy import Boosts
from gpuplane.core.scheduling.windows import find_current_window, find_next_window
from gpuplane.core.workloads import PRIORITY_VALUES, BudgetAction, Priority
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules import Job
from gpuplane.domains.jobs.rules.offers import OFFERED
from gpuplane.domains.jobs.service.loading import Door, workload_of


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
    """Return what the offered jobs of a cluster are to be there now.

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
        told = _hold(job, now, is_offered=offer.state == OFFERED, is_frozen=frozen)
        door = Door(None, offer.cluster_queue)
        effective, _ = compute_effective(workload_of(job, "", "", door), boosts, now)
        found[offer.attempt_id] = OfferStanding(
            told is None,
            "Nothing but quota holds it back." if told is None else told[0],
            None if told is None else told[1],
            job.spec.priority,
            max(PRIORITY_VALUES[job.spec.priority], effective // BOOST_UNIT),
            job.in_line_since,
        )
    return found


def _hold(
    job: Job, now: int, *, is_offered: bool, is_frozen: bool
) -> tuple[str, int | None] | None:
    """Return (why a job is held back, when that ends by itself), or None."""
    if not is_offered or job.status is not JobStatus.QUEUED:
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
