"""Offered jobs whose ClusterQueue has lost their GPU model: said by name, for waiting is no help.

Owns the reason `NoQuotaForGpuModel` of jobs in the hands of a Kueue, and gives them the cluster's
own sentence back once the queue has the model again. Never takes an offer back.
"""

from collections.abc import Mapping, Sequence

from gpuplane.core.ids import ClusterId, JobId
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.decisions import Waiting
from gpuplane.db.database import Database
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Job, Offer
from gpuplane.loops.scheduler.kueue_queues import find_unowned, groups_of
from gpuplane.loops.scheduler.loading import ClusterView, World
from gpuplane.loops.scheduler.offering import admits_itself, models_for


class LostModels:
    """Looks for such jobs when queues have changed, and for as long as there are some."""

    def __init__(self) -> None:
        """Know nothing: the first look is at all of them."""
        self._marks: Mapping[ClusterId, object] = {}
        self._has_lost = True

    async def find(self, database: Database, world: World) -> list[Waiting]:
        """Return what is to be said of offered jobs that is not said of them yet."""
        views = {view.cluster.id: view for view in world.clusters if admits_itself(view)}
        marks = {key: _mark(view) for key, view in views.items()}
        if not views or (marks == self._marks and not self._has_lost):
            return []
        offers, known = await database.read(_load_offered)
        self._marks = marks
        lost = {
            offer.job_id: reason
            for offer in offers
            if (reason := _find_lost(views, known, offer)) is not None
        }
        self._has_lost = bool(lost)
        return plan_words(offers, known, lost)


def plan_words(
    offers: Sequence[Offer], known: Mapping[JobId, Job], lost: Mapping[JobId, Reason]
) -> list[Waiting]:
    """Return the reasons of offered jobs that differ from what is stored of them.

    Args:
        offers: Those that their clusters have not admitted.
        known: Their jobs.
        lost: Why the queue of a job can never admit it, for those of which it cannot.
    """
    found = []
    for offer in offers:
        job = known.get(offer.job_id)
        if job is None:
            continue
        reason = lost.get(job.id)
        if reason is None and job.reason == Word.NO_QUOTA_FOR_MODEL:
            said = f"{offer.reason}: {offer.message}".strip(": ")
            reason = Reason(Word.OFFERED, said or f"It was handed to {offer.queue_name}.")
        if reason is None or (job.reason, job.status_message) == (reason.word, reason.sentence):
            continue
        found.append(Waiting(job.id, job.version, reason, (), 0))
    return found


def _find_lost(
    views: Mapping[ClusterId, ClusterView], known: Mapping[JobId, Job], offer: Offer
) -> Reason | None:
    view, job = views.get(offer.cluster_id), known.get(offer.job_id)
    if view is None or job is None:
        return None
    return find_unowned(view, offer.cluster_queue, job, models_for(view, job))


def _mark(view: ClusterView) -> object:
    """Return what decides which models the queues of a cluster have."""
    queues = sorted(each.name for each in view.queues.cluster_queues)
    seen = [(each.kind, each.name, repr(each.spec)) for each in view.seen]
    groups = [(name, tuple(groups_of(view, name))) for name in queues]
    return groups, seen, sorted(view.cluster.gpu_shapes)


def _load_offered(session: ReadSession) -> tuple[list[Offer], dict[JobId, Job]]:
    waiting = [
        each
        for each in jobs.list_offers(session)
        if each.admitted_at is None and not each.is_withdrawing
    ]
    return waiting, jobs.load_jobs(session, [each.job_id for each in waiting])
