"""When clusters were last looked at by this process, beside what is stored of the looks.

A look that finds what is stored is not written down again at once: an idle control plane would
write for each cluster all the time. What it found is as new as the look all the same.
"""

from dataclasses import replace

from gpuplane.core.ids import ClusterId
from gpuplane.domains.clusters.rules import Cluster, HealthCheck


class LookTimes:
    """The instants of looks that found what is stored; offered to endpoints as `look_times`."""

    def __init__(self) -> None:
        """Know of no look."""
        self._looked: dict[ClusterId, int] = {}

    def note(self, cluster_id: ClusterId, now: int) -> None:
        """Remember that all that is stored of a cluster's health was found at an instant."""
        self._looked[cluster_id] = now

    def forget(self, cluster_id: ClusterId) -> None:
        """Forget the last look: another one did not find what is stored."""
        self._looked.pop(cluster_id, None)

    def checks_of(self, cluster: Cluster) -> tuple[HealthCheck, ...]:
        """Return what is stored of a cluster's health, each check with its latest look."""
        looked = self._looked.get(cluster.id, 0)
        return tuple(
            replace(each, checked_at=max(each.checked_at, looked)) for each in cluster.health
        )
