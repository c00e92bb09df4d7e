"""The proof of `gpuplane db check`: every promise that the domains make about their rows."""

from collections.abc import Callable, Mapping
from functools import partial

from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.pipelines import service as pipelines
from gpuplane.domains.placements import service as placements
from gpuplane.domains.runs import service as runs
from gpuplane.domains.usage import service as usage

Checks = Mapping[str, Callable[[ReadSession], list[str]]]


def checks_at(now: int) -> Checks:
    """Return what is promised, in words, with the function that looks for what breaks it.

    Args:
        now: The instant up to which the ledger must tile.
    """
    return {
        "every job that holds devices has one attempt, and nothing else holds any": jobs.check,
        "no device and no node is sold twice": placements.check,
        "every run that is not over has a way on and counts its own steps": runs.check,
        "every version of a pipeline is what was saved": pipelines.check,
        "the intervals of every device tile": partial(usage.check, now=now),
        "the time of a deleted cluster's devices ended with it": _find_left,
    }


def find_faults(session: ReadSession, now: int) -> list[str]:
    """Return a sentence for each broken promise, on one consistent view."""
    return [fault for check in checks_at(now).values() for fault in check(session)]


def _find_left(session: ReadSession) -> list[str]:
    """Return a sentence for each deleted cluster that devices are still counted for."""
    gone = {each.id: each.name for each in clusters.list_deleted(session)}
    left = placements.count_unheld(session, list(gone))
    return [
        f"Cluster {gone[cluster_id]} was deleted and {count} of its devices still count as down; "
        "the control plane ends their time when it starts."
        for cluster_id, count in left.items()
    ]
