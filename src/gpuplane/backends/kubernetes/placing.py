"""Which waiting pod of an attempt is given which place: pure.

Pods of a Job know their rank; those of a Deployment and of a chart are told apart here, the oldest
first. A pod that asks for GPUs gets a rank of its own or waits; a chart's other pods run on any
node of the job.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.annotations import Place, read_places
from gpuplane.backends.kubernetes.manifests.charts import HELPER, REPLICA
from gpuplane.backends.kubernetes.manifests.pods import placed, placed_on
from gpuplane.backends.kubernetes.records import Record
from gpuplane.backends.kubernetes.shapes import Main, Pod
from gpuplane.backends.kubernetes.sights import rank_of


def waits(pod: Pod) -> bool:
    """Return whether a pod waits to be told its place."""
    gates = pod.spec.scheduling_gates
    goes = pod.is_over or pod.metadata.deletion_timestamp
    return not goes and any(gate.name == names.PLACEMENT_GATE for gate in gates)


def list_open_ranks(record: Record) -> frozenset[int] | None:
    """Return the ranks of a service that scales which may have a pod; None where all may.

    Where Kueue admits each pod, no pod has a place of ours.

    The places on its Deployment are written after its record: one of a rank that left may still be
    there, and a pod on it would run where nobody is booked.
    """
    if record.most is None or record.by_pod:
        return None
    return frozenset(rank for rank in record.staying if str(rank) not in record.outcomes)


def find_strays(record: Record, pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods of a service that scales which were let go on a place that is not theirs.

    Two processes that place at one moment can do so; their Deployment makes others, which wait.
    """
    ranks = list_open_ranks(record)
    if ranks is None:
        return []
    taken: set[int] = set()
    strays = []
    newest = sorted(
        pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name), reverse=True
    )
    for pod in newest:
        rank = rank_of(pod)
        if rank is None or pod.is_over or pod.metadata.deletion_timestamp:
            continue
        if rank not in ranks or rank in taken:
            strays.append(pod)
        taken.add(rank)
    return strays


def plan_places(
    main: Main, pods: Sequence[Pod], open_ranks: frozenset[int] | None = None
) -> list[tuple[Pod, dict[str, Any]]]:
    """Return the patch that lets each waiting pod go which has a place now.

    Args:
        main: The workload, which holds the place of every rank.
        pods: Those of the attempt that are there.
        open_ranks: The ranks that may have a pod; None for every one that has a place.
    """
    told = read_places(main.metadata.annotations.get(names.PLACEMENTS))
    places = {r: each for r, each in told.items() if open_ranks is None or r in open_ranks}
    taken = {rank_of(pod) for pod in pods if not pod.is_over}
    free = [rank for rank in sorted(places) if rank not in taken]
    nodes = sorted({place.node for place in places.values()})
    found = []
    # One that is being deleted gives its place up: its successor need not wait for its end.
    given = {
        rank_of(pod)
        for pod in pods
        if not pod.is_over and not pod.metadata.deletion_timestamp and not waits(pod)
    }
    oldest = sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
    for pod in filter(waits, oldest):
        rank = rank_of(pod)
        if rank is not None and rank in given:
            continue  # of two that name one rank, one alone has its place and its GPUs
        patch = _patch_of(pod, places, free, nodes)
        if patch is not None:
            found.append((pod, patch))
            given.add(rank)
    return found


def _patch_of(
    pod: Pod, places: Mapping[int, Place], free: list[int], nodes: Sequence[str]
) -> dict[str, Any] | None:
    metadata = pod.metadata
    version, uid = metadata.resource_version, metadata.uid
    part = metadata.labels.get(names.PART)
    rank = rank_of(pod)
    if rank is not None:
        place = places.get(rank)
        return placed(place.node, place.annotations, version, uid) if place is not None else None
    if part == HELPER or (part == REPLICA and not free):
        return placed_on(nodes, version, uid) if nodes else None
    if not free:
        return None
    rank = free.pop(0)
    place = places[rank]
    patch = placed(place.node, place.annotations, version, uid)
    patch["metadata"]["labels"] = {names.RANK: str(rank)}
    return patch
