"""GPUs that a cluster tells of while another has them: found, left out, told.

A GPU is of one cluster at a time. Two that tell of the same one are the same machine seen twice, or
machines whose UUIDs were copied: the first keeps it until it is gone there and nothing of ours is
on it. This module never changes what is stored.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuplane.backends.interface import NodeObservation
from gpuplane.core.ids import ClusterId, GpuId
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.nodes import repository
from gpuplane.domains.nodes.rules import ELSEWHERE, Node, name_gpus, tell_elsewhere

FindHeld = Callable[[ReadSession, Sequence[GpuId]], Collection[GpuId]]
"""Says which of these GPUs work of ours holds; placements know, and are told of by the caller."""


def find_none(session: ReadSession, gpu_ids: Sequence[GpuId]) -> Collection[GpuId]:
    """Say that nothing holds any GPU: where there is no work at all."""
    return ()


@dataclass(frozen=True, slots=True)
class Others:
    """GPUs that were seen here and are known of other clusters, with the name of that cluster.

    Attributes:
        kept: Those that it keeps.
        given: Those that it gave up, which are of this cluster from now on.
    """

    kept: Mapping[GpuId, str] = field(default_factory=dict)
    given: Mapping[GpuId, str] = field(default_factory=dict)


def find_others(
    session: ReadSession,
    cluster_id: ClusterId,
    stored: Mapping[str, Node],
    seen: Sequence[NodeObservation],
    find_held: FindHeld,
) -> Others:
    """Return which GPUs that were seen are of other clusters, or were."""
    ours = {gpu.gpu_id for node in stored.values() for gpu in node.gpus}
    strange = {gpu.gpu_id for node in seen for gpu in node.gpus} - ours
    owners = {
        gpu_id: (owner, present)
        for gpu_id, (owner, present) in repository.owners_of(session, strange).items()
        if owner != cluster_id
    }
    if not owners:
        return Others()
    names = clusters.names_of_all(session)
    live = {each.id for each in clusters.list_clusters(session)}
    held = set(find_held(session, sorted(owners)))
    kept: dict[GpuId, str] = {}
    given: dict[GpuId, str] = {}
    for gpu_id, (owner, present) in owners.items():
        keeps = gpu_id in held or (present and owner in live)
        (kept if keeps else given)[gpu_id] = names[owner]
    return Others(kept, given)


def leave_out(seen: Sequence[NodeObservation], others: Others) -> list[NodeObservation]:
    """Return what was seen without the GPUs that others keep; their nodes say so."""
    if not others.kept:
        return list(seen)
    found = []
    for node in seen:
        said = tell_elsewhere(_by_cluster(node, others.kept))
        if not said:
            found.append(node)
            continue
        gpus = tuple(gpu for gpu in node.gpus if gpu.gpu_id not in others.kept)
        found.append(replace(node, gpus=gpus, message=f"{node.message} {said}".strip()))
    return found


def tell(
    stored: Mapping[str, Node],
    told: Sequence[NodeObservation],
    seen: Sequence[NodeObservation],
    others: Others,
) -> list[tuple[str, str, str]]:
    """Return (event kind, node name, sentence) of GPUs that are newly kept by others, or moved."""
    sentences = []
    for node, whole in zip(told, seen, strict=True):
        said = tell_elsewhere(_by_cluster(whole, others.kept))
        before = stored[node.name].message if node.name in stored else ""
        if said and said != before[before.find(ELSEWHERE) :]:
            sentences.append(("gpu.elsewhere", node.name, f"{node.name}: {said}"))
        for name, indices in sorted(_by_cluster(whole, others.given).items()):
            moved = f"{name_gpus(indices)} of {node.name} moved here from cluster {name}."
            sentences.append(("gpu.moved", node.name, moved))
    return sentences


def _by_cluster(node: NodeObservation, of: Mapping[GpuId, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for gpu in node.gpus:
        if gpu.gpu_id in of:
            found[of[gpu.gpu_id]].append(gpu.index)
    return found
