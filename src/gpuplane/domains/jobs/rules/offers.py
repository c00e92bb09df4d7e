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

    @property
    def is_withdrawing(self) -> bool:
        """Return whether it is being taken back."""
        return self.state == WITHDRAWING

    @property
    def queue_name(self) -> str:
        """Return the LocalQueue as the cluster names it."""
        return self.local_queue.rpartition("/")[2]
