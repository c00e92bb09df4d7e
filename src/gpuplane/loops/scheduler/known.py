"""Workloads as they were made in the turn before, so that what is unchanged is the very same value.

Owns that memory for one cluster. The decision core knows workloads again by identity, and making
one costs more than deciding on it again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpuplane.core.ids import JobId
from gpuplane.core.scheduling.memory import Memory
from gpuplane.core.scheduling.workload import Workload
from gpuplane.domains.jobs.service import Job


@dataclass(frozen=True, slots=True)
class _Known:
    job: Job
    basis: tuple[object, ...]
    workload: Workload


@dataclass(slots=True)
class KnownWorkloads:
    """What one cluster's turns leave to the next: its workloads, and the memory of its cycles."""

    memory: Memory = field(default_factory=Memory)
    _before: dict[JobId, _Known] = field(default_factory=dict)
    _now: dict[JobId, _Known] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a turn: what is not asked for in it is forgotten at the next."""
        self._before, self._now = self._now, {}

    def find(self, job: Job, basis: tuple[object, ...], make: Callable[[], Workload]) -> Workload:
        """Return the workload of a job, the one from before if it would be made of the same.

        Args:
            job: As it was read; another value is another workload.
            basis: All else that it is made of.
            make: Makes it.
        """
        known = self._before.get(job.id)
        if known is None or known.job is not job or known.basis != basis:
            known = _Known(job, basis, make())
        self._now[job.id] = known
        return known.workload
