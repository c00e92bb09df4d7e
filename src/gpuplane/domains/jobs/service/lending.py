"""Priority that jobs lend to those they come after: who gets it, and that people are told."""

from gpuplane.core.ids import JobId
from gpuplane.core.scheduling.inheritance import compute_inherited
from gpuplane.core.workloads import PRIORITY_VALUES, Priority
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Job
from gpuplane.domains.jobs.service.telling import job_event

TOLD = "priority_lent"
"""The mark of a job of which this was told."""


def load_inherited(session: ReadSession) -> dict[JobId, Priority]:
    """Return the highest class that waits for each job which something waits for."""
    return compute_inherited(repository.list_waiting_dependents(session))


def find_inversions(session: ReadSession) -> list[tuple[Job, Priority]]:
    """Return (job, class lent) of each job that a higher one waits for and of which none was told.

    This is what an operator looks at when work of a high class waits for work of a low one.
    """
    lent = load_inherited(session)
    if not lent:
        return []
    return [
        (job, lent[job.id])
        for job in repository.load_jobs(session, list(lent)).values()
        if PRIORITY_VALUES[lent[job.id]] > PRIORITY_VALUES[job.spec.priority]
        and TOLD not in job.warned
    ]


def tell_inversions(session: WriteSession, now: int) -> int:
    """Tell of each job that counts as a higher class because one waits for it; return how many."""
    found = find_inversions(session)
    for job, lent in found:
        repository.mark_warned(session, job.id, [*job.warned, TOLD])
        own = job.spec.priority
        said = f"{job.name} is {own} and counts as {lent}: a {lent} job comes after it."
        data: dict[str, object] = {"priority": str(own), "lent": str(lent)}
        events.record(session, job_event(job, "job.priority_lent", now, message=said, data=data))
    return len(found)
