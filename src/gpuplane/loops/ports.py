"""What loops are given by the composition root besides the database."""

from collections.abc import Iterator
from typing import Protocol

from gpuplane.backends.interface import Backend
from gpuplane.core.ids import ClusterId


class Backends(Protocol):
    """The backends of this process, by the cluster they serve."""

    def find(self, cluster_id: ClusterId) -> Backend | None:
        """Return the backend of a cluster, or None when no part here serves it."""
        ...

    def items(self) -> Iterator[tuple[ClusterId, Backend]]:
        """Yield every (cluster, backend) of this process."""
        ...
