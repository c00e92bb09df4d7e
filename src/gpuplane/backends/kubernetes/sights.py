"""All that a cluster shows of one attempt, as one value, and what is read off it directly: pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.annotations import read_number
from gpuplane.backends.kubernetes.records import Record
from gpuplane.backends.kubernetes.shapes import Condition, Main, Pod, instant_ms
from gpuplane.core.ids import GpuId

SECOND_MS = 1000
VANISHED_MS = 20_000
"""How long after its workload was let go a replica without one is still thought to be coming: with
the settler's look it is told within 30 s that what should run does not."""
ENDS = frozenset({"Complete", "Failed"})
"""Conditions of a workload that is over."""
DELETED = "its workload was deleted on the cluster by somebody else"


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is known of the node of a pod."""

    ready: bool = True
    conditions: tuple[Condition, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sight:
    """All that a cluster shows of one attempt.

    Args:
        pods: Its pods, those among them that are gone as they were last seen.
        gone: Uids of pods that are no longer there.
        main: Its workload, None where there is none.
        part: The Job that a JobSet made, which alone says why its pods were ended.
        nodes: By name; a node that is not in it is gone.
        trouble: Why no pod of it could be made, as its controller tells it.
        route: (URL, trouble) of its Route; both empty where there is none or nothing is said yet.
    """

    record: Record
    pods: tuple[Pod, ...] = ()
    gone: frozenset[str] = frozenset()
    main: Main | None = None
    part: Main | None = None
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    trouble: str = ""
    route: tuple[str, str] = ("", "")


def pods_by_rank(sight: Sight) -> dict[int, Pod]:
    """Return the pod that stands for each rank: the one that is there, else the last that was."""
    found: dict[int, Pod] = {}
    if sight.record.by_pod:
        by_uid = {pod.metadata.uid: pod for pod in sight.pods}
        given = {int(rank): each.uid for rank, each in sight.record.pods.items()}
        return {rank: by_uid[uid] for rank, uid in given.items() if uid in by_uid}
    ordered = sorted(
        (pod for pod in sight.pods if not _is_of_earlier(sight, pod)),
        key=lambda pod: (
            pod.metadata.uid not in sight.gone,
            pod.metadata.creation_timestamp,
            pod.metadata.name,
        ),
    )
    for pod in ordered:
        rank = rank_of(pod)
        if rank is not None:
            found[rank] = pod
    return found


def _is_of_earlier(sight: Sight, pod: Pod) -> bool:
    """Return whether a pod was taken away when its workload was held back, and it was let go since.

    How it ended says nothing of the workload, whose pods come again: Kueue took its quota back.
    """
    if pod.metadata.uid not in sight.gone and not pod.metadata.deletion_timestamp:
        return False
    told = None if sight.main is None else find_suspended(sight.main)
    if told is None:
        return False
    if told.status == "True":
        return True  # it is let go, and its controller has not come to it yet
    resumed, made = instant_ms(told.last_transition_time), pod.metadata.creation_timestamp
    return resumed is not None and (instant_ms(made) or 0) < resumed


def find_suspended(main: Main) -> Condition | None:
    """Return what the controller of a workload says of its being held back, None if it never was.

    Jobs and JobSets have it as soon as they were once held back, with when that last changed.
    """
    return next((each for each in main.status.conditions if each.type == "Suspended"), None)


def conditions_of(sight: Sight) -> list[Condition]:
    """Return what is said of a workload: first by the Job of a JobSet, which knows more of it."""
    told = (sight.part, sight.main)
    return [each for main in told if main is not None for each in main.status.conditions]


def rank_of(pod: Pod) -> int | None:
    """Return the rank of a pod, None while it has none."""
    labels = pod.metadata.labels
    if names.PART in labels:  # an indexed Job of a chart numbers its pods for itself
        return read_number(labels.get(names.RANK))
    text = labels.get(names.RANK) or labels.get(names.INDEX)
    return read_number(text or pod.metadata.annotations.get(names.INDEX))


def is_well(pod: Pod) -> bool:
    """Return whether a pod of a release does what it should: it is ready, or has done its work."""
    statuses = pod.status.container_statuses
    if pod.status.phase == "Succeeded":
        return True
    return bool(statuses) and all(each.ready for each in statuses)


def gpus_of(pod: Pod) -> tuple[GpuId, ...]:
    """Return the GPUs that a pod's annotation names, none where it has none."""
    text = pod.metadata.annotations.get(names.GPU_IDS, "")
    return tuple(GpuId(each) for each in text.split(",") if each)


def started_at(pod: Pod) -> int | None:
    """Return when the job's container of a pod started last, ms since the epoch."""
    container = pod.main
    for state in (container.state, container.last_state) if container is not None else ():
        if state.running is not None:
            return instant_ms(state.running.started_at)
        if state.terminated is not None:
            return instant_ms(state.terminated.started_at)
    return None


def is_held_back(sight: Sight) -> bool:
    """Return whether a workload waits for its quota: Kueue suspends what it takes back again."""
    main = sight.main
    if main is None or not main.spec.suspend or sight.record.evict_reason:
        return False
    # What another cluster ran is held back here to its end.
    return not any(each.type in ENDS and each.status == "True" for each in main.status.conditions)


def pods_there(sight: Sight) -> list[Pod]:
    """Return the pods of an attempt that are there."""
    return [pod for pod in sight.pods if pod.metadata.uid not in sight.gone]
