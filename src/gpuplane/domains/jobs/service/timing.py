"""When a job must be looked at next: one instant per job, so that waiting costs nothing."""

from gpuplane.domains.jobs.rules import Job
from gpuplane.domains.jobs.rules.due import compute_next_due


def next_due(job: Job, now: int) -> int | None:
    """Return the next instant at which something may happen to the job by time alone."""
    return compute_next_due(job, now)
