"""Use cases of jobs, one file a phase of their life; other packages import from here."""

from gpuplane.domains.jobs.rules import Attempt, Job, Replica

__all__ = ["Attempt", "Job", "Replica"]
