"""GPUs that are told of twice: by another cluster, or by two nodes of one. Found, left out, told.

A GPU is of one node at a time. Two that tell of the same one are the same machine seen twice, or
machines whose UUIDs were copied or made up: the first keeps it until it is gone there and nothing
of ours is on it. This module never changes what is stored.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuplane.backends.interface import NodeObservation
from gpuplane.core.ids import ClusterId, GpuId
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.nodes import repository
from gpuplane.domains.nodes.rules import ELSEWHERE, Node, Place, name_gpus, tell_elsewhere

FindHeld = Callable[[ReadSession, Sequence[GpuId]], Collection[GpuId]]
"""Says which of these GPUs work of ours holds; placements know, and are told of by the caller."""
Told = tuple[str, int]
"""A GPU as it was told: name of the node, and where it stands among the GPUs of that node."""


def find_none(session: ReadSession, gpu_ids: Sequence[GpuId]) -> Collection[GpuId]:
    """Say that nothing holds any GPU: where there is no work at all."""
    return ()


@dataclass(frozen=True, slots=True)
class Others:
    """GPUs that were seen and that other places have, or had, with that place.

    Attributes:
        kept: Those that the other place keeps.
        given: Those that it gave up, which are of the node that told of them from now on.
        awaited: How many of `kept` may be given up though nothing changes here: they are another
            cluster's, or work of ours is on them.
    """

    kept: Mapping[Told, Place] = field(default_factory=dict)
    given: Mapping[Told, Place] = field(default_factory=dict)
    awaited: int = 0


def find_others(
    session: ReadSession,
    cluster_id: ClusterId,
    stored: Mapping[str, Node],
    seen: Sequence[NodeObservation],
    find_held: FindHeld,
) -> Others:
    """Return which GPUs that were seen are of other places, or were."""
    homes = {gpu.gpu_id: node.name for node in stored.values() for gpu in node.gpus}
    told = _by_gpu(seen)
    astray = {gpu_id for gpu_id, here in told.items() if _is_astray(here, homes.get(gpu_id))}
    owners = {
        gpu_id: (owner, present)
        for gpu_id, (owner, present) in repository.owners_of(session, told.keys() - homes).items()
        if owner != cluster_id
    }
    if not owners and not astray:
        return Others()
    held = set(find_held(session, sorted({*owners, *astray & homes.keys()})))
    names = clusters.names_of_all(session) if owners else {}
    live = {each.id for each in clusters.list_clusters(session)} if owners else set()
    kept: dict[Told, Place] = {}
    given: dict[Told, Place] = {}
    awaited = 0
    for gpu_id in sorted({*owners, *astray}):
        here = told[gpu_id]
        owner, present = owners.get(gpu_id, (None, False))
        home = Place("cluster", names[owner]) if owner else Place("node", homes.get(gpu_id, ""))
        stays = gpu_id in held or (present and owner in live)
        mine = next((one for one in here if not owner and one[0] == home.name), None)
        if mine is None and stays:
            kept |= dict.fromkeys(here, home)
            awaited += len(here)
            continue
        if mine is None:
            mine = here[0]
            if home.name:
                given[mine] = home
        kept |= {one: Place("node", mine[0]) for one in here if one != mine}
    return Others(kept, given, awaited)


def leave_out(seen: Sequence[NodeObservation], others: Others) -> list[NodeObservation]:
    """Return what was seen without the GPUs that others keep; their nodes say so."""
    if not others.kept:
        return list(seen)
    found = []
    for node in seen:
        said = tell_elsewhere(_by_place(node, others.kept))
        if not said:
            found.append(node)
            continue
        gpus = tuple(
            gpu for at, gpu in enumerate(node.gpus) if (node.name, at) not in others.kept
        )  # fmt: skip - what is left stands in one line
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
        said = tell_elsewhere(_by_place(whole, others.kept))
        before = stored[node.name].message if node.name in stored else ""
        if said and said != before[before.find(ELSEWHERE) :]:
            sentences.append(("gpu.elsewhere", node.name, f"{node.name}: {said}"))
        for (what, name), indices in sorted(_by_place(whole, others.given).items()):
            moved = f"{name_gpus(indices)} of {node.name} moved here from {what} {name}."
            sentences.append(("gpu.moved", node.name, moved))
    return sentences


def _by_gpu(seen: Sequence[NodeObservation]) -> dict[GpuId, list[Told]]:
    """Return where each GPU was told of, by the names of nodes."""
    found: dict[GpuId, list[Told]] = defaultdict(list)
    for node in sorted(seen, key=lambda each: each.name):
        for at, gpu in enumerate(node.gpus):
            found[gpu.gpu_id].append((node.name, at))
    return found


def _is_astray(here: Sequence[Told], home: str | None) -> bool:
    """Return whether a GPU is told of twice, or by another node than the one that has it."""
    return len(here) > 1 or (home is not None and here[0][0] != home)


def _by_place(node: NodeObservation, of: Mapping[Told, Place]) -> dict[Place, list[int]]:
    found: dict[Place, list[int]] = defaultdict(list)
    for at, gpu in enumerate(node.gpus):
        if (node.name, at) in of:
            found[of[node.name, at]].append(gpu.index)
    return found
