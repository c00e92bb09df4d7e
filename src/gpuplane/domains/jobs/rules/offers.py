"""An offer as a value: a queued job in the hands of a cluster that admits by itself."""

from dataclasses import dataclass
from typing import Any

from gpuplane.core.ids import AttemptId, ClusterId, JobId

OFFERED = "offered"
WITHDRAWING = "withdrawing"


@dataclass(frozen=True, slots=True)
class Offer:
    """One offer as stored; it becomes the attempt of its id when the cluster has bound it."""

    attempt_id: AttemptId
    job_id: JobId
    number: int
    cluster_id: ClusterId
    local_queue: str
    cluster_queue: str
    state: str
    offered_at: int
    ensured_at: int | None
    admitted_at: int | None
    evict_sent_at: int | None
    usage: tuple[tuple[str, str, int], ...]
    explanation: dict[str, Any] | None
    reason: str
    message: str
    worker_id: ClusterId | None = None
    taken_at: int | None = None
    worker_told_at: int | None = None

    @property
    def place_id(self) -> ClusterId:
        """Return the cluster on which it runs, if it does: the worker it was dispatched to."""
        return self.cluster_id if self.worker_id is None else self.worker_id

    @property
    def shown_since(self) -> int | None:
        """Return since when the cluster it runs on must show it, or what forbids it."""
        if self.worker_id is None:
            return self.evict_sent_at if self.is_withdrawing else self.ensured_at
        return self.worker_told_at if self.is_withdrawing else self.taken_at

    @property
    def may_be_dropped(self) -> bool:
        """Return whether it can start no more once the cluster it runs on shows it to be over.

        A manager would start it again on its worker, until it was asked to drop it too.
        """
        return self.worker_id is None or self.evict_sent_at is not None

    @property
    def is_withdrawing(self) -> bool:
        """Return whether it is being taken back."""
        return self.state == WITHDRAWING

    @property
    def queue_name(self) -> str:
        """Return the LocalQueue as the cluster names it."""
        return self.local_queue.rpartition("/")[2]
