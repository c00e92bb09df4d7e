"""Jobs that run on a cluster and of which the database knows nothing any more.

Each becomes a queued job with an offer of the attempt's own id; the observer then makes the
attempt and its allocations of what the cluster shows, as it does for every offer. Tenants and
projects are not made up: they come from a backup, or were made again under their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuplane.core.ids import AttemptId, ClusterId, JobId, ProjectId, TenantId, UserId
from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobSpec
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules.offers import OFFERED, Offer
from gpuplane.domains.jobs.service.submission import Submission
from gpuplane.domains.jobs.service.submitting import blank_job
from gpuplane.domains.jobs.service.telling import job_event


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt as a cluster tells it.

    Args:
        local_queue: `cluster/local queue` by which its Kueue admits it; empty where none does.
        cluster_queue: What that leads to.
        waits: Whether its Kueue holds it back: nothing of it runs.
    """

    attempt_id: AttemptId
    job_id: JobId
    tenant_id: TenantId
    tenant_name: str
    project_id: ProjectId | None
    project_name: str
    epoch: int
    spec: JobSpec
    made_at: int
    local_queue: str = ""
    cluster_queue: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What became of attempts that a cluster runs.

    Args:
        restored: Names of the jobs that were made again.
        known: How many the database knew.
        refused: (job, why) of those that could not be made again.
    """

    restored: tuple[str, ...] = ()
    known: int = 0
    refused: tuple[tuple[str, str], ...] = ()


def restore_running(
    session: WriteSession,
    cluster_id: ClusterId,
    running: Sequence[RunningAttempt],
    user_id: UserId,
    now: int,
) -> Rebuilt:
    """Make jobs again that a cluster runs; those that are known are left as they are.

    Args:
        cluster_id: The cluster under the id that it has now.
        user_id: Whose jobs they are, as clusters do not tell it.
    """
    ids = [each.job_id for each in running]
    known_jobs = repository.load_jobs(session, ids)
    known = attempts_repository.load_attempts(session, [each.attempt_id for each in running])
    restored, refused = [], []
    for each in running:
        if each.attempt_id in known or each.job_id in known_jobs:
            continue
        place = _place_of(session, each)
        if place is None:
            why = f"There is no project {each.tenant_name}/{each.project_name}: make it first."
            refused.append((each.spec.name, why))
            continue
        _restore(session, cluster_id, each, place, user_id, now)
        restored.append(each.spec.name)
    if restored:
        session.wake("observer")
    return Rebuilt(
        tuple(restored), len(running) - len(restored) - len(refused), tuple(sorted(refused))
    )


def _place_of(session: ReadSession, each: RunningAttempt) -> tuple[TenantId, ProjectId] | None:
    """Return tenant and project by id, else by name: after a total loss ids are new."""
    tenants = identity.tenants_by_ids(session, {each.tenant_id})
    tenant = tenants.get(each.tenant_id) or identity.find_tenant_by_name(session, each.tenant_name)
    if tenant is None:
        return None
    project = identity.find_project_in(session, tenant.id, each.project_name)
    return None if project is None else (tenant.id, project.id)


def _restore(
    session: WriteSession,
    cluster_id: ClusterId,
    each: RunningAttempt,
    place: tuple[TenantId, ProjectId],
    user_id: UserId,
    now: int,
) -> None:
    where = "waiting" if each.waits else "running"
    found = f"It was found {where} on its cluster."
    submission = Submission(
        spec=each.spec,
        tenant_id=place[0],
        project_id=place[1],
        user_id=user_id,
        actor="operator",
    )
    job = replace(
        blank_job(submission, None, each.job_id, now),
        cluster_id=cluster_id,
        requested_cluster_id=cluster_id,
        status=JobStatus.QUEUED,
        queued_at=each.made_at,
        created_at=min(now, each.made_at),
        attempt_count=each.epoch,
        reason=str(Word.OFFERED),
        status_message=found,
        queue=each.local_queue,
    )
    repository.insert_jobs(session, [job])
    offer = Offer(
        attempt_id=each.attempt_id,
        job_id=each.job_id,
        number=each.epoch,
        cluster_id=cluster_id,
        local_queue=each.local_queue,
        cluster_queue=each.cluster_queue,
        state=OFFERED,
        offered_at=each.made_at,
        ensured_at=now,
        admitted_at=None if each.waits else each.made_at,
        evict_sent_at=None,
        usage=(),
        explanation=None,
        reason="",
        message=found,
    )
    offers_repository.insert_offers(session, [offer])
    said = f"{job.name} was found {where} on its cluster and is kept account of again."
    events.record(session, job_event(job, "job.rebuilt", now, actor="operator", message=said))
