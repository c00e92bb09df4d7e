"""A stand-in for the `pynvml` module: some GPUs, and the errors that NVML answers with."""

# ruff: noqa: N802 - NVML's own names, as the bindings spell them

from __future__ import annotations

from ctypes import Structure, c_uint
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    def __str__(self) -> str:
        return "Not Supported"


class LibraryNotFound(NVMLError):
    pass


class GpuIsLost(NVMLError):
    def __str__(self) -> str:
        return "GPU is lost"


@dataclass
class FakeGpu:
    """One GPU; None means that NVML answers "not supported"."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory_mib: int | None = 81_559
    used_mib: int = 0
    gpu_percent: int | None = 0
    bus: str = "00000000:18:00.0"
    mig: list[tuple[str, int]] | None = None
    remapped: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    ecc_errors: int | None = 0
    cuts: dict[int, tuple[str, int, list[tuple[int, int]], int]] = field(default_factory=dict)
    """By NVML's number of a profile: name, compute slices, placements, most instances."""
    lost: bool = False
    nvlinks: list[str] = field(default_factory=list)
    """What each active link leads to: a bus address, or `switch`."""


class Placement(Structure):
    """NVML's `nvmlGpuInstancePlacement_t`."""

    _fields_ = (("start", c_uint), ("size", c_uint))


@dataclass
class FakeMig:
    parent: FakeGpu
    number: int


class FakeNvml:
    """The functions of `pynvml` that this product calls."""

    NVMLError = NVMLError
    NVMLError_LibraryNotFound = LibraryNotFound
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_NVLINK_MAX_LINKS = 18
    NVML_GPU_INSTANCE_PROFILE_COUNT = 4
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    c_nvmlGpuInstancePlacement_t = Placement  # noqa: N815 - NVML own name, as the bindings spell it
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 - NVML own name, as the bindings spell it

    def __init__(self, *gpus: FakeGpu, levels: dict[tuple[int, int], int] | None = None) -> None:
        self.gpus = list(gpus)
        self.levels = levels or {}
        self.init_error: NVMLError | None = None
        self.count_error: NVMLError | None = None
        self.events: list[tuple[FakeGpu, int]] = []
        self.opened = 0
        self.closed = 0

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise self.init_error
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.closed += 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        if self.count_error is not None:
            raise self.count_error
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if self.gpus[index].lost:
            raise GpuIsLost
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle: FakeGpu | FakeMig) -> str:
        if isinstance(handle, FakeMig):
            return f"MIG-{handle.parent.uuid[4:]}-{handle.number}"
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu | FakeMig) -> str:
        if isinstance(handle, FakeMig):
            assert handle.parent.mig is not None
            return f"{handle.parent.name} MIG {handle.parent.mig[handle.number][0]}"
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu) -> Any:
        total = _supported(handle.memory_mib)
        return SimpleNamespace(total=total << 20, used=handle.used_mib << 20)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> Any:
        return SimpleNamespace(gpu=_supported(handle.gpu_percent))

    def nvmlDeviceGetPciInfo(self, handle: FakeGpu) -> Any:
        return SimpleNamespace(busId=handle.bus)

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:
        return [int(handle.mig is not None)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeGpu, index: int) -> FakeMig:
        if index >= len(handle.mig or ()):
            raise NotSupported
        return FakeMig(handle, index)

    def nvmlDeviceGetGpuInstanceId(self, handle: FakeMig) -> int:
        return handle.number

    def nvmlDeviceGetGpuInstanceById(self, handle: FakeGpu, number: int) -> FakeMig:
        return FakeMig(handle, number)

    def nvmlGpuInstanceGetInfo(self, handle: FakeMig) -> Any:
        assert handle.parent.mig is not None
        return SimpleNamespace(placement=SimpleNamespace(start=handle.parent.mig[handle.number][1]))

    def nvmlDeviceGetGpuInstanceProfileInfo(
        self, handle: FakeGpu, number: int, version: int
    ) -> Any:
        if number not in handle.cuts:
            raise NotSupported
        name, compute, _, most = handle.cuts[number]
        return SimpleNamespace(
            id=100 + number, name=name.encode(), sliceCount=compute, instanceCount=most
        )

    def nvmlDeviceGetGpuInstancePossiblePlacements(
        self, handle: FakeGpu, profile_id: int, places: Any, count: Any
    ) -> None:
        found = handle.cuts[profile_id - 100][2]
        count._obj.value = len(found)
        for place, (start, size) in zip(places or (), found, strict=False):
            place.start, place.size = start, size

    def nvmlDeviceGetRemappedRows(self, handle: FakeGpu) -> tuple[int, int, int, int]:
        if handle.remapped is None:
            raise NotSupported
        return handle.remapped

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeGpu, kind: int, counter: int) -> int:
        return _supported(handle.ecc_errors)

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlEventSetFree(self, events: str) -> None:
        self.events.clear()

    def nvmlDeviceRegisterEvents(self, handle: FakeGpu, kind: int, events: str) -> None:
        assert kind == self.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        assert timeout_ms == 0
        if not self.events:
            raise NotSupported
        gpu, xid = self.events.pop(0)
        return SimpleNamespace(device=gpu, eventData=xid)

    def nvmlDeviceGetTopologyCommonAncestor(self, first: FakeGpu, second: FakeGpu) -> int:
        a, b = self.gpus.index(first), self.gpus.index(second)
        level = self.levels.get((min(a, b), max(a, b)))
        if level is None:
            raise NotSupported
        return level

    def nvmlDeviceGetNvLinkState(self, handle: FakeGpu, link: int) -> int:
        return int(link < len(handle.nvlinks))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: FakeGpu, link: int) -> int:
        return self.NVML_NVLINK_DEVICE_TYPE_SWITCH if handle.nvlinks[link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: FakeGpu, link: int) -> Any:
        return SimpleNamespace(busId=handle.nvlinks[link])


def _supported(value: int | None) -> int:
    if value is None:
        raise NotSupported
    return value
