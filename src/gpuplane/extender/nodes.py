"""A node as the extender sees it: core facts, how its GPUs are called, what was promised of them.

Owns the translation from a Node object and the topology that is known of it; a described topology
is read again at most every 30 s. What labels and capacity mean is `kube.nodefacts`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid5

from gpuplane.core.fleet.columns import MAX_GPUS
from gpuplane.core.fleet.facts import GpuFacts, MigSlot, NodeFacts, Taint
from gpuplane.core.hardware import find_model
from gpuplane.core.ids import GpuId, NodeId
from gpuplane.core.mig.layouts import free_placements
from gpuplane.core.mig.profiles import find_table
from gpuplane.core.topology.matrix import LinkMatrix
from gpuplane.core.topology.named import described_topology
from gpuplane.core.topology.tables import TopologyClass, topology_class
from gpuplane.extender import names
from gpuplane.extender.pods import instant_of
from gpuplane.kube.nodefacts import NodeFacts as ReadNode
from gpuplane.kube.nodefacts import read_node

TOPOLOGY_TTL_MS = 30_000
"""How long a topology that was read is taken for true (topology specification, "Caching")."""
MAX_DESCRIPTION = 65_536
"""Characters of a description that are read: `nvidia-smi topo -m` of 16 GPUs has about 4,000."""
_NODES = UUID("6f2f6ad2-64cb-4d4f-9a1c-0a2f8d4e51b7")
_UNNAMED = "-gpu-"


@dataclass(frozen=True, slots=True)
class Claim:
    """GPUs that were chosen for a pod, until its own annotation shows them."""

    uid: str
    gpu_ids: tuple[str, ...]
    expires_at: int


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node.

    Attributes:
        facts: What the core decides with.
        is_ours: Its devices are given out whole or as MIG instances; where a device plug-in
            offers each several times over, the extender has no opinion.
        wiring: The tables of its topology, None where that is not known.
        names: What each GPU is called in annotations, by index.
        places: The index of each GPU by any of its names.
    """

    facts: NodeFacts
    is_ours: bool
    names: Mapping[int, str]
    places: Mapping[str, int]
    claims: tuple[Claim, ...]
    resource_version: str = ""
    wiring: TopologyClass | None = None


class Topologies:
    """The topology of each node by name, read again when it changed and 30 s are over."""

    def __init__(self, ttl_ms: int = TOPOLOGY_TTL_MS) -> None:
        self._ttl_ms = ttl_ms
        self._known: dict[str, tuple[int, str, LinkMatrix | None]] = {}
        self.unreadable: dict[str, str] = {}

    def find(self, name: str, text: str | None, gpu_count: int, now: int) -> LinkMatrix | None:
        """Return what joins a node's GPUs, None where nothing or nothing readable tells."""
        key = f"{gpu_count}\n{text or ''}"
        known = self._known.get(name)
        if known is not None and (known[1] == key or now - known[0] < self._ttl_ms):
            return known[2]
        matrix = None
        self.unreadable.pop(name, None)
        if text and gpu_count:
            try:
                matrix = _described(text[:MAX_DESCRIPTION], gpu_count)
            except ValueError as error:
                self.unreadable[name] = str(error)
        self._known[name] = (now, key, matrix)
        return matrix

    def next_look(self, name: str, text: str | None, gpu_count: int) -> int | None:
        """Return when a changed description is to be looked at, None when it is known."""
        known = self._known.get(name)
        if known is None or known[1] == f"{gpu_count}\n{text or ''}":
            return None
        return known[0] + self._ttl_ms

    def forget(self, name: str) -> None:
        """Forget a node that is gone."""
        self._known.pop(name, None)
        self.unreadable.pop(name, None)


@lru_cache(maxsize=1_024)
def _described(text: str, gpu_count: int) -> LinkMatrix:
    return described_topology(text, gpu_count)


def read_record(
    document: Mapping[str, Any],
    find_topology: Callable[[str, str | None, int], LinkMatrix | None],
) -> NodeRecord:
    """Return what a Node object says.

    Args:
        document: The object, as the API has it.
        find_topology: (node, description, GPUs) -> matrix.
    """
    read = read_node(document)
    metadata = document.get("metadata") or {}
    annotations = {str(k): str(v) for k, v in (metadata.get("annotations") or {}).items()}
    devices = read.accelerators.gpus[:MAX_GPUS]
    is_ours = read.accelerators.shares == 1
    told = [part.strip() for part in annotations.get(names.GPU_UUIDS, "").split(",")]
    called: dict[int, str] = {}
    for device in devices:
        own = "" if _UNNAMED in device.gpu_id else device.gpu_id
        uuid = told[device.index] if device.index < len(told) else ""
        called[device.index] = uuid or own or str(device.index)
    places = {str(index): index for index in called} | {text: i for i, text in called.items()}
    migs = _migs(read, annotations.get(names.MIG_LAYOUT, ""))
    gpus = tuple(
        GpuFacts(
            gpu_id=GpuId(f"{read.name}/{device.index}"),
            index=device.index,
            model=device.model,
            memory_mib=device.memory_mib,
            architecture=_architecture(device.model),
            healthy=device.healthy,
            mig_enabled=device.index in migs,
            mig_instances=migs.get(device.index, ()),
        )
        for device in devices
    )
    taints = [Taint(*taint) for taint in read.taints]
    if read.unschedulable:
        taints.append(Taint(names.UNSCHEDULABLE))
    maintenance = instant_of(annotations.get(names.MAINTENANCE_AT))
    matrix = find_topology(read.name, read.topology, len(devices))
    labels = dict(read.labels)
    if read.accelerators.resource:
        labels[names.ACCELERATOR] = read.accelerators.resource
    return NodeRecord(
        facts=NodeFacts(
            node_id=NodeId(uuid5(_NODES, read.name)),
            name=read.name,
            # kube-scheduler goes by taints, which some pods tolerate; conditions follow them.
            maintenance_at=maintenance or None,
            cpu_milli=read.cpu_milli,
            memory_mib=read.memory_mib,
            ephemeral_mib=read.ephemeral_mib,
            gpus=gpus if is_ours else (),
            topology=matrix,
            labels=labels,
            taints=tuple(sorted(set(taints))),
            rack=read.rack,
            block=read.block,
            rdma_fabric=read.rdma_fabric,
        ),
        is_ours=is_ours,
        names=called,
        places=places,
        claims=read_claims(annotations.get(names.CLAIMS, "")),
        resource_version=str(metadata.get("resourceVersion") or ""),
        wiring=topology_class(matrix) if matrix is not None and devices else None,
    )


def _architecture(model: str) -> str:
    found = find_model(model)
    return found.architecture if found is not None else ""


def _migs(read: ReadNode, layout: str) -> dict[int, tuple[MigSlot, ...]]:
    """Return the MIG instances by GPU: as annotated, else dealt out evenly by their counts."""
    told: dict[int, tuple[MigSlot, ...]] = {}
    for part in filter(None, layout.split(";")):
        index, _, slots = part.partition(":")
        found = [slot.partition("@") for slot in slots.split(",") if slot]
        if index.strip().isdigit() and all(start.isdigit() for _, _, start in found):
            told[int(index)] = tuple(sorted(MigSlot(name, int(start)) for name, _, start in found))
    if told or not read.accelerators.mig:
        return told
    return _deal(read)


def _deal(read: ReadNode) -> dict[int, tuple[MigSlot, ...]]:
    """Lay out instances whose places nobody tells, largest first, on the emptiest GPU.

    The counts are what matters: which instance a pod gets is the device plug-in's choice there.
    """
    gpus = read.accelerators.gpus[:MAX_GPUS]
    table = find_table(gpus[0].model) if gpus else None
    if table is None:
        return {}
    held = dict.fromkeys(range(len(gpus)), 0)
    slots: dict[int, list[MigSlot]] = {index: [] for index in held}
    profiles = [(table.find_profile(name), n) for name, n in read.accelerators.mig.items()]
    known = [(each, count) for each, count in profiles if each is not None]
    for profile, count in sorted(known, key=lambda pair: (-pair[0].memory_slices, pair[0].name)):
        for _ in range(count):
            for index in sorted(held, key=lambda i: (held[i].bit_count(), i)):
                starts = free_placements(held[index], profile)
                if starts:
                    held[index] |= profile.mask_at(starts[-1])
                    slots[index].append(MigSlot(profile.name, starts[-1]))
                    break
    return {index: tuple(sorted(found)) for index, found in slots.items() if found}


def read_claims(text: str) -> tuple[Claim, ...]:
    """Return the claims that an annotation holds; what cannot be read is left out."""
    found = []
    for part in filter(None, text.split(";")):
        uid, _, rest = part.partition("=")
        ids, _, expires = rest.partition("@")
        if uid and ids and expires.isdigit() and len(expires) < 16:
            found.append(Claim(uid, tuple(ids.split(",")), int(expires)))
    return tuple(sorted(found, key=lambda claim: claim.uid))


def write_claims(claims: tuple[Claim, ...]) -> str:
    """Return claims as the text of their annotation."""
    return ";".join(
        f"{each.uid}={','.join(each.gpu_ids)}@{each.expires_at}"
        for each in sorted(claims, key=lambda claim: claim.uid)
    )
