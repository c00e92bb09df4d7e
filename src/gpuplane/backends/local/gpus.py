"""This machine's GPUs as the control plane may give them out. Never runs or stops anything."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuplane.backends.interface import BackendError, GpuObservation, ReplicaPlan
from gpuplane.backends.local.gpulock import GpuLock
from gpuplane.core.hardware import find_model
from gpuplane.core.ids import GpuId
from gpuplane.core.reasons import Word
from gpuplane.kit.clock import Clock
from gpuplane.nvml.devices import NvmlDevice, NvmlSession, NvmlView

LOOK_S = 2.0
"""Oldest answer of NVML that is given again: a look costs a millisecond a GPU."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """GPUs, how they are joined, and what people should know about them."""

    gpus: tuple[GpuObservation, ...] = ()
    topology: str | None = None
    driver: str = ""
    message: str = ""


class LocalGpus:
    """Looks at the GPUs and holds the machine's lock on them."""

    def __init__(self, session: NvmlSession, lock: GpuLock, clock: Clock) -> None:
        self._session = session
        self._lock = lock
        self._clock = clock
        self._looked: float | None = None
        self._view = GpuView()

    def look(self) -> GpuView:
        """Return what is there now, or a moment ago."""
        now = self._clock.monotonic()
        if self._looked is None or now - self._looked >= LOOK_S:
            self._view = self._compute(self._session.look())
            self._looked = now
        return self._view

    def lock_for(self, replicas: Sequence[ReplicaPlan]) -> int | None:
        """Return the descriptor that a supervisor of these replicas keeps, or None for no GPUs.

        Raises:
            BackendError: If another home gives this machine's GPUs out.
        """
        if not any(replica.gpu_ids or replica.mig_device for replica in replicas):
            return None
        holder = self._lock.acquire()
        if holder:
            raise BackendError(Word.START_FAILED, f"the GPUs are withheld: {holder}")
        return self._lock.handle

    def visible_devices(self, replica: ReplicaPlan) -> str:
        """Return what a replica's CUDA may see: UUIDs of GPUs, or of one MIG instance.

        Raises:
            BackendError: If the MIG instance does not exist on this machine.
        """
        if replica.mig_device is None or replica.mig_device.startswith("MIG-"):
            return replica.mig_device or ",".join(replica.gpu_ids)
        gpu_id, _, instance = replica.mig_device.partition("/")
        for device in self._session.look().devices:
            for (profile, start), uuid in zip(device.mig_instances, device.mig_uuids, strict=True):
                if device.uuid == gpu_id and instance == f"{profile}@{start}":
                    return uuid
        text = f"this machine has no MIG instance {replica.mig_device}"
        raise BackendError(Word.MIG_UNAVAILABLE, text)

    def close(self) -> None:
        self._session.close()
        self._lock.close()

    def _compute(self, view: NvmlView) -> GpuView:
        holder = self._lock.acquire() if view.devices else ""
        nameless = [device for device in view.devices if not device.uuid]
        remarks = [view.problem, *(f"GPU {d.index} {d.message}" for d in nameless)]
        if holder:
            remarks.append(f"the GPUs are withheld: {holder}")
        return GpuView(
            gpus=tuple(_observation(d, holder) for d in view.devices if d.uuid),
            topology=view.topology,
            driver=view.driver,
            message="; ".join(filter(None, remarks)),
        )


def _observation(device: NvmlDevice, holder: str) -> GpuObservation:
    known = find_model(device.model)
    message = f"withheld: {holder}" if holder else device.message
    return GpuObservation(
        gpu_id=GpuId(device.uuid),
        index=device.index,
        model=known.name if known else device.model,
        memory_mib=device.memory_mib,
        healthy=device.healthy and not holder,
        message=message,
        numa=device.numa,
        mig_enabled=device.mig_enabled,
        mig_instances=device.mig_instances,
        mig_table=device.mig_table,
        utilization_ratio=device.utilization_ratio,
        memory_used_mib=device.memory_used_mib,
    )
