"""A workload: what the scheduler sees of a job, and the class that decides where it may run.

Owns the shapes that go into a decision besides fleet and quotas; never a job's status or text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from gpuplane.core.fleet.facts import Allocation
from gpuplane.core.ids import ClusterId, JobId, ReservationId
from gpuplane.core.prediction.durations import Durations
from gpuplane.core.prediction.hints import PlacementHint
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.core.workloads import (
    PlacementRequest,
    Priority,
    ReplicaRequest,
    ResourceRequest,
    SourceType,
    TimeWindow,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """One pending or running job as the scheduler sees it. Instants are ms since the epoch.

    Args:
        version: The job row's version that was read; applying a verdict compares it.
        queue: Name of its ClusterQueue.
        local_queue: Key of the LocalQueue it came through (`tenant/name`), or None.
        queued_at: When it last became schedulable: age is counted from here.
        not_before: Earliest start (scheduled start, end of a back-off), or None.
        clusters: Clusters it may use; None for every cluster of the snapshot.
        reservation_id: The reservation whose GPUs it may use, or None.
        only_reserved: It may use no GPUs but those of its reservation.
        is_cancelled_at_deadline: It is given up at its deadline, so it starts only in time for it.
        inherited_priority: Priority of the highest job that waits for this one, or None.
        promised_until: Others were stopped to make room for it: until this instant it goes before
            everyone, or the room would go to whoever comes first. Promises that end earlier go
            first, so those of one cycle should end one after the other. None without a promise.
        learned: How long similar work took, None when too little of it ended.
        hint: What is predicted of it as far as placement uses it, or None.
        class_key: Digest of everything that decides on which nodes it may run, and how well.
    """

    job_id: JobId
    version: int
    tenant: str
    project: str
    queue: str
    submitted_at: int
    queued_at: int
    local_queue: str | None = None
    priority: Priority = Priority.NORMAL
    resources: ResourceRequest = field(default_factory=ResourceRequest)
    placement: PlacementRequest = field(default_factory=PlacementRequest)
    replicas: ReplicaRequest = field(default_factory=ReplicaRequest)
    deadline: int | None = None
    estimated_duration_s: int | None = None
    max_duration_s: int | None = None
    not_before: int | None = None
    window: TimeWindow | None = None
    clusters: tuple[ClusterId, ...] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    preemptible: bool | None = None
    preempts_others: bool | None = None
    source: SourceType = SourceType.DIRECT
    reservation_id: ReservationId | None = None
    only_reserved: bool = False
    is_cancelled_at_deadline: bool = False
    inherited_priority: Priority | None = None
    promised_until: int | None = None
    learned: Durations | None = None
    hint: PlacementHint | None = None
    class_key: str = field(init=False, default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_key", _class_key(self))


def _class_key(workload: Workload) -> str:
    """Return the class digest: equal for workloads that every filter and score treats alike."""
    placement = workload.placement
    parts = (
        workload.resources,
        placement.links,
        placement.links_required,
        tuple(sorted(placement.node_selector.items())),
        tuple(sorted(placement.tolerations, key=repr)),
        tuple(sorted(set(placement.data))),
        workload.reservation_id,
        workload.only_reserved,
    )
    text = repr(parts) if workload.hint is None else repr((*parts, workload.hint))
    return blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class RunningWorkload:
    """A workload that holds resources now.

    Args:
        usage: What it counts against its queue, in the flavors it was admitted to.
        checkpoint_at: When it last wrote a checkpoint, or None.
        expected_end: Best estimate of its end, or None when nothing is known.
        stopping: It was asked to stop; it still holds what it has, and is no victim again.
    """

    workload: Workload
    cluster_id: ClusterId
    allocations: tuple[Allocation, ...]
    started_at: int
    usage: Mapping[FlavorResource, int] = field(default_factory=dict)
    checkpoint_at: int | None = None
    progress_ratio: float | None = None
    expected_end: int | None = None
    stopping: bool = False
