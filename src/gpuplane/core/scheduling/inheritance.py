"""Priority lent along dependencies: work that something higher waits for counts as that.

Owns the walk over "comes after" edges. Without it a critical job that comes after a spot job
stands behind everyone who stands before the spot job.

Source: priority inheritance, Sha, Rajkumar and Lehoczky, IEEE Trans. Computers 39(9), 1990,
applied to dependencies instead of locks.
"""

from collections.abc import Iterable
from typing import NamedTuple

from gpuplane.core.ids import JobId
from gpuplane.core.workloads import PRIORITY_VALUES, Priority


class Dependent(NamedTuple):
    """A job that waits for another one to end, and its own class."""

    job_id: JobId
    after_id: JobId
    priority: Priority


def compute_inherited(dependents: Iterable[Dependent]) -> dict[JobId, Priority]:
    """Return the highest class that waits for each job, over any number of steps.

    A circle lends like any other path: everyone on it has the highest class of all on it.

    Args:
        dependents: One entry for each "comes after" that is not yet satisfied.
    """
    after: dict[JobId, list[JobId]] = {}
    own: dict[JobId, Priority] = {}
    for each in dependents:
        after.setdefault(each.job_id, []).append(each.after_id)
        own[each.job_id] = each.priority
    inherited: dict[JobId, Priority] = {}
    # Highest first: whoever was reached has its class for good.
    for job_id in sorted(own, key=lambda each: (-PRIORITY_VALUES[own[each]], each.int)):
        todo = list(after[job_id])
        while todo:
            lower = todo.pop()
            if lower not in inherited:
                inherited[lower] = own[job_id]
                todo += after.get(lower, ())
    return inherited
