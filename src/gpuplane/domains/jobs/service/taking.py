"""Which clusters take offers now: those that admit by themselves and are not frozen."""

from collections.abc import Iterable

from gpuplane.core.ids import ClusterId
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters

ADMISSION, KUEUE = "admission", "kueue"
"""The key in a cluster's config that says who admits, and the value where Kueue does."""


def list_takers(session: ReadSession, cluster_ids: Iterable[ClusterId]) -> set[ClusterId]:
    """Return those of some clusters that admit by themselves and are not frozen."""
    found = (clusters.find_cluster(session, each) for each in set(cluster_ids))
    return {
        each.id
        for each in found
        if each and not each.frozen and each.config.get(ADMISSION) == KUEUE
    }
