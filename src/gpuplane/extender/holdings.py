"""Which devices of a node its pods hold: what they are annotated with, and a rule for the others.

Owns one pure function of a node and its pods, in whatever order they came: every replica of the
extender comes to the same answer.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Take, bits_of
from gpuplane.extender.nodes import Claim, NodeRecord
from gpuplane.extender.pods import PodFacts

MigHold = tuple[int, str, int]
"""GPU index, profile, first slice."""


class Held(NamedTuple):
    """What the pods of one node hold.

    Args:
        takes: By pod uid, to be counted into the fleet.
        disputed: Pods annotated with a GPU that another pod has too, or that is not there.
        books: What is left, for further pods.
    """

    takes: Mapping[str, tuple[Take, ...]]
    disputed: tuple[str, ...]
    books: "Books"


def assign(
    index: int, record: NodeRecord, pods: Iterable[PodFacts], claims: Iterable[Claim]
) -> Held:
    """Return what the pods of a node hold.

    A pod's annotation says which GPUs it got. Of two with the same GPU the older one has it. Who
    has no annotation (it was bound while no extender ran) is taken to have the best joined set of
    those left, as the device plug-in prefers them, the oldest pod first.

    Args:
        index: The node's place in the fleet.
        record: The node.
        pods: Those bound to it, in any order.
        claims: Those of the node that stand.
    """
    ordered = sorted(pods, key=lambda pod: (pod.created_at, pod.uid))
    claimed = {each.uid: each.gpu_ids for each in claims}
    books = Books(index, record)
    waiting = []
    for pod in ordered:
        ids = pod.gpu_ids or claimed.get(pod.uid, ())
        if not (ids and books.take_named(pod, ids)):
            waiting.append(pod)
    seen = {pod.uid for pod in ordered}
    for uid, ids in sorted(claimed.items()):
        if uid not in seen:
            books.take_claimed(uid, ids)
    for pod in waiting:
        books.take_some(pod)
    return Held(books.takes, tuple(books.disputed), books)


class Books:
    """The devices of one node: who holds which, and which are left.

    Where no claim stands, and every pod has what its annotation says, the order of the pods says
    nothing: then pods may come and go here, and `assign` of those that are there comes to the same.

    Attributes:
        takes: By pod uid.
    """

    def __init__(self, index: int, record: NodeRecord) -> None:
        self._index = index
        self._record = record
        gpus = record.facts.gpus
        self._free = sum(1 << gpu.index for gpu in gpus if not gpu.mig_enabled)
        self._instances: set[MigHold] = {
            (gpu.index, slot.profile, slot.start) for gpu in gpus for slot in gpu.mig_instances
        }
        self.takes: dict[str, tuple[Take, ...]] = {}
        self.disputed: list[str] = []

    def give_back(self, uid: str) -> tuple[Take, ...]:
        """Let others have what a pod held, and return that."""
        takes = self.takes.pop(uid, ())
        for take in takes:
            self._free |= take.gpu_mask
            if take.mig is not None:
                self._instances.add(take.mig)
        return takes

    def take_told(self, pod: PodFacts) -> bool:
        """Give a pod what is told of it, whoever else is there; return whether that is all."""
        if not pod.wants_devices:
            self._hold(pod, 0, [])
            return True
        return bool(pod.gpu_ids) and self.take_named(pod, pod.gpu_ids)

    def take_named(self, pod: PodFacts, ids: tuple[str, ...]) -> bool:
        """Give a pod the devices that are named, unless somebody has them."""
        mask, migs = self._read(ids)
        if not pod.wants_devices:
            return False
        fits = mask & self._free == mask and self._instances.issuperset(migs)
        if not fits or mask.bit_count() + len(migs) != len(ids):
            self.disputed.append(pod.uid)
            return False
        self._hold(pod, mask, migs)
        return True

    def take_claimed(self, uid: str, ids: tuple[str, ...]) -> None:
        """Keep what was chosen for a pod that is not seen here yet."""
        mask, migs = self._read(ids)
        self._count(uid, mask & self._free, [each for each in migs if each in self._instances])

    def take_some(self, pod: PodFacts) -> None:
        """Give a pod that nothing is told of the best devices that are left."""
        count = min(pod.gpus, self._free.bit_count())
        mask = 0
        wiring = self._record.wiring
        if count and wiring is not None:
            free = self._free & (1 << wiring.gpu_count) - 1
            mask = wiring.best_subset(free, count, pod.workload.placement.links) or 0
        if count and not mask:
            mask = sum(1 << bit for bit in bits_of(self._free)[:count])
        migs = sorted(each for each in self._instances if each[1] == pod.mig_profile)
        self._hold(pod, mask, migs[: pod.migs])

    def _hold(self, pod: PodFacts, mask: int, migs: list[MigHold]) -> None:
        amounts = (pod.cpu_milli, pod.memory_mib, pod.ephemeral_mib)
        self._count(pod.uid, mask, migs, amounts)

    def _count(
        self,
        uid: str,
        mask: int,
        migs: list[MigHold],
        amounts: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        self._free &= ~mask
        found: tuple[Take, ...] = (Take(self._index, mask, WHOLE_GPU_MILLI, *amounts),)
        if migs:
            self._instances.difference_update(migs)
            more = (Take(self._index, 0, WHOLE_GPU_MILLI, 0, 0, 0, each) for each in migs)
            found = (*found, *more)
        self.takes[uid] = found

    def _read(self, ids: tuple[str, ...]) -> tuple[int, list[MigHold]]:
        mask, migs = 0, []
        places = self._record.places
        for text in ids:
            if "/" not in text:
                place = places.get(text)
                if place is not None:
                    mask |= 1 << place
                continue
            gpu, _, rest = text.partition("/")
            place = places.get(gpu)
            if place is None:
                continue
            profile, _, start = rest.rpartition("/")
            if profile and start.isdigit():
                migs.append((place, profile, int(start)))
            elif not rest:
                mask |= 1 << place
        return mask, migs


def name_devices(record: NodeRecord, take: Take) -> tuple[str, ...]:
    """Return what a take's devices are called in an annotation."""
    if take.mig is not None:
        gpu, profile, start = take.mig
        return (f"{record.names[gpu]}/{profile}/{start}",)
    return tuple(record.names[bit] for bit in bits_of(take.gpu_mask))
