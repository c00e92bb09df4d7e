"""How much running replicas use of the GPUs that are theirs alone, gathered at each look.

Owns sums in memory and nothing else: after a restart of the control plane measuring begins anew,
and what a replica used before is known from what was told of it. Shared GPUs and MIG instances
are not measured: NVML says what a device does, not which of its users.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuplane.backends.interface import GpuObservation, Phase, ReplicaObservation, ReplicaPlan
from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.ids import AttemptId

Owner = tuple[AttemptId, int]
"""An attempt and a rank of it."""

GpusOf = Callable[[AttemptId], Mapping[int, Sequence[str]]]
"""Gives, by rank, the GPUs that an attempt has for itself."""


def whole_gpus(replicas: Iterable[ReplicaPlan]) -> dict[str, list[str]]:
    """Return the GPUs that each rank has for itself, as the plan's record keeps them."""
    return {
        str(each.rank): list(each.gpu_ids)
        for each in replicas
        if each.gpu_ids and each.gpu_milli == WHOLE_GPU_MILLI and each.mig_device is None
    }


@dataclass(slots=True)
class _Use:
    """What was seen of one replica's GPUs.

    Args:
        peak_mib: Most memory of one GPU at one look.
        busy_permille: Sum of the mean utilisation of its GPUs over the looks that knew it.
    """

    peak_mib: int | None = None
    busy_permille: int = 0
    looks: int = 0


class GpuUse:
    """Gathers the use of GPUs by replica; used by several threads."""

    def __init__(self, gpus_of: GpusOf) -> None:
        self._gpus_of = gpus_of
        self._lock = threading.Lock()
        self._held: dict[AttemptId, Mapping[int, Sequence[str]]] = {}
        self._use: dict[Owner, _Use] = {}
        self._last: Sequence[GpuObservation] | None = None

    def note(self, gpus: Sequence[GpuObservation], replicas: Sequence[ReplicaObservation]) -> None:
        """Add one look at the GPUs to the replicas that run; the same look counts once."""
        with self._lock:
            if gpus is self._last or not gpus:
                return
            self._last = gpus
            by_id: dict[str, GpuObservation] = {gpu.gpu_id: gpu for gpu in gpus}
            known = {each.ref.attempt_id for each in replicas}
            self._forget_but(known)
            for each in replicas:
                if each.phase is not Phase.RUNNING:
                    continue
                owner = (each.ref.attempt_id, each.rank)
                seen = [by_id[one] for one in self._gpus_held(owner) if one in by_id]
                if seen:
                    _add(self._use.setdefault(owner, _Use()), seen)

    def add_to(self, replica: ReplicaObservation) -> ReplicaObservation:
        """Return an observation with what was measured of its GPUs."""
        with self._lock:
            use = self._use.get((replica.ref.attempt_id, replica.rank))
            if use is None:
                return replica
            return replace(
                replica,
                gpu_memory_peak_mib=use.peak_mib,
                gpu_utilization_permille=use.busy_permille // use.looks if use.looks else None,
            )

    def _gpus_held(self, owner: Owner) -> Sequence[str]:
        attempt_id, rank = owner
        if attempt_id not in self._held:
            self._held[attempt_id] = self._gpus_of(attempt_id)
        return self._held[attempt_id].get(rank, ())

    def _forget_but(self, known: set[AttemptId]) -> None:
        self._held = {key: each for key, each in self._held.items() if key in known}
        self._use = {key: each for key, each in self._use.items() if key[0] in known}


def _add(use: _Use, seen: Sequence[GpuObservation]) -> None:
    memory = [gpu.memory_used_mib for gpu in seen if gpu.memory_used_mib is not None]
    if memory:
        use.peak_mib = max(*memory, use.peak_mib or 0)
    busy = [gpu.utilization_ratio for gpu in seen if gpu.utilization_ratio is not None]
    if busy:
        use.busy_permille += round(1000 * sum(busy) / len(busy))
        use.looks += 1
