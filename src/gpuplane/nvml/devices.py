"""Finds the GPUs of this machine and how they do, through the bindings of `nvidia-ml-py`.

Owns one open NVML session. Never changes a device. Everything a driver, a GPU or a mode does not
support is left out; a GPU that does not answer is reported as unhealthy, not as absent.
"""

import contextlib
import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpuplane.core.hardware import find_model
from gpuplane.core.mig.profiles import MigTable
from gpuplane.nvml.links import numa_node, topology_text
from gpuplane.nvml.mig import read_mig_table

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that a faulty program causes on a sound GPU.

Source: NVIDIA k8s-device-plugin, `internal/rm/health.go`, the errors it skips by default.
"""

_MIG_NAME = re.compile(r"\bMIG (\d+g\.\d+gb\S*)")
_EVENTS_AT_ONCE = 256
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """One GPU; `model` is the name that NVML gives.

    Args:
        utilization_ratio: Share of the last sample in which a kernel ran, None where unknown
            (MIG).
        mig_instances: (profile, first memory slice) of each GPU instance.
    """

    uuid: str
    index: int
    model: str = ""
    memory_mib: int = 0
    memory_used_mib: int | None = None
    utilization_ratio: float | None = None
    healthy: bool = True
    message: str = ""
    numa: int | None = None
    mig_enabled: bool = False
    mig_instances: tuple[tuple[str, int], ...] = ()
    mig_uuids: tuple[str, ...] = ()
    """The UUID of each entry of `mig_instances`, `MIG-…`."""
    mig_table: MigTable | None = None
    """How it can be cut, where it is in MIG mode."""


@dataclass(frozen=True, slots=True)
class NvmlView:
    """One look at all GPUs.

    Args:
        problem: Why NVML cannot be used although its library is there; empty when all is well
            or there is no library at all.
        topology: A text like that of `nvidia-smi topo -m`, or None for fewer than two GPUs.
    """

    devices: tuple[NvmlDevice, ...] = ()
    driver: str = ""
    problem: str = ""
    topology: str | None = None


def load_bindings() -> Any:
    """Return the `pynvml` module, or None where there is no NVML library to bind to.

    Asked first, because the module costs 60 ms and 10 MB, which most laptops have no use for.
    """
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    import pynvml

    return pynvml


class NvmlSession:
    """Looks at the GPUs again and again; safe to build where there is no GPU.

    Args:
        load: Returns the bindings; a test passes a fake with the same functions.
    """

    def __init__(self, load: Callable[[], Any] = load_bindings) -> None:
        self._load = load
        self._nvml: Any = None
        self._is_absent = False
        self._events: Any = None
        self._known: dict[int, NvmlDevice] = {}
        self._faults: dict[str, str] = {}
        self._topology: tuple[tuple[str, ...], str | None] = ((), None)
        self._tables: dict[str, MigTable | None] = {}

    def look(self) -> NvmlView:
        """Return what NVML says now; never raises."""
        problem = self._open()
        if self._nvml is None:
            return NvmlView(problem=problem)
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
            handles = [self._handle(index) for index in range(count)]
            self._take_events()
            devices = tuple(self._device(index, handle) for index, handle in enumerate(handles))
            self._known |= {device.index: device for device in devices if device.uuid}
            return NvmlView(
                devices=devices,
                driver=str(self._ask(nvml.nvmlSystemGetDriverVersion) or ""),
                topology=self._wiring(devices, handles),
            )
        except nvml.NVMLError as error:
            self.close()  # the driver may have been reloaded: open anew at the next look
            return NvmlView(problem=f"NVML does not answer: {error}")

    def read_mig_table(self, index: int) -> MigTable | None:
        """Return how a GPU can be cut as the device tells it; None where it has no MIG or no GPU.

        Args:
            index: The device's number in this session.
        """
        self._open()
        if self._nvml is None:
            return None
        handle = self._handle(index)
        if isinstance(handle, Exception):
            return None
        model = str(self._ask(self._nvml.nvmlDeviceGetName, handle) or "")
        known = find_model(model)
        return read_mig_table(self._nvml, handle, known.name if known else model)

    def close(self) -> None:
        """End the session; the next look opens another."""
        if self._nvml is not None:
            nvml, self._nvml = self._nvml, None
            with contextlib.suppress(nvml.NVMLError):
                if self._events is not None:
                    nvml.nvmlEventSetFree(self._events)
            self._events = None
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _open(self) -> str:
        if self._nvml is not None or self._is_absent:
            return ""
        try:
            nvml = self._load()
        except ImportError as error:
            self._is_absent = True
            return f"the NVML bindings cannot be imported: {error}"
        if nvml is None:
            self._is_absent = True
            return ""
        try:
            nvml.nvmlInit()
        except nvml.NVMLError_LibraryNotFound:
            self._is_absent = True  # a machine without NVIDIA's driver, which is no problem
            return ""
        except nvml.NVMLError as error:
            return f"NVML cannot be used: {error}"
        self._nvml = nvml
        self._register_events()
        return ""

    def _handle(self, index: int) -> Any:
        """Return a device's handle, or the error that stands in its place."""
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            return error

    def _device(self, index: int, handle: Any) -> NvmlDevice:
        nvml = self._nvml
        if isinstance(handle, Exception):
            # It cannot tell its UUID now; indices hold while the driver is loaded.
            known = self._known.get(index, NvmlDevice("", index))
            return replace(known, healthy=False, message=f"does not answer: {handle}")
        uuid = str(self._ask(nvml.nvmlDeviceGetUUID, handle) or "")
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        device = NvmlDevice(
            uuid=uuid,
            index=index,
            model=str(self._ask(nvml.nvmlDeviceGetName, handle) or ""),
            memory_mib=0 if memory is None else memory.total // _MIB,
            memory_used_mib=None if memory is None else memory.used // _MIB,
            utilization_ratio=None if rates is None else rates.gpu / 100,
            numa=numa_node(nvml, handle),
        )
        return self._with_health(self._with_mig(device, handle), handle)

    def _with_mig(self, device: NvmlDevice, handle: Any) -> NvmlDevice:
        mode = self._ask(self._nvml.nvmlDeviceGetMigMode, handle)
        if not mode or not mode[0]:
            return device
        count = self._ask(self._nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        found = []
        for number in range(count):
            instance = self._ask(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if instance is not None:
                name = _MIG_NAME.search(str(self._ask(self._nvml.nvmlDeviceGetName, instance)))
                start = self._first_slice(handle, instance)
                if name is not None and start is not None:
                    uuid = str(self._ask(self._nvml.nvmlDeviceGetUUID, instance) or "")
                    found.append((name.group(1), start, uuid))
        return replace(
            device,
            mig_enabled=True,
            mig_instances=tuple((profile, start) for profile, start, _ in found),
            mig_uuids=tuple(uuid for _, _, uuid in found),
            mig_table=self._table_of(device, handle),
        )

    def _table_of(self, device: NvmlDevice, handle: Any) -> MigTable | None:
        """Return how a GPU can be cut, read once for each: that does not change."""
        if device.uuid not in self._tables:
            known = find_model(device.model)
            name = known.name if known else device.model
            self._tables[device.uuid] = read_mig_table(self._nvml, handle, name)
        return self._tables[device.uuid]

    def _first_slice(self, handle: Any, instance: Any) -> int | None:
        number = self._ask(self._nvml.nvmlDeviceGetGpuInstanceId, instance)
        if number is None:
            return None
        inner = self._ask(self._nvml.nvmlDeviceGetGpuInstanceById, handle, number)
        info = None if inner is None else self._ask(self._nvml.nvmlGpuInstanceGetInfo, inner)
        return None if info is None else int(info.placement.start)

    def _with_health(self, device: NvmlDevice, handle: Any) -> NvmlDevice:
        faults, remarks = [], []
        if not device.uuid:
            faults.append("it does not tell its UUID")
        if device.uuid in self._faults:
            faults.append(self._faults[device.uuid])
        rows = self._ask(self._nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None:
            _, _, is_pending, has_failed = rows
            if has_failed:
                faults.append("a failed memory row could not be remapped")
            if is_pending:
                remarks.append("remapped memory rows take effect at its next reset")
        errors = self._ask(
            self._nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            self._nvml.NVML_VOLATILE_ECC,
        )
        if errors:
            remarks.append(f"{errors} uncorrected memory errors since the driver was loaded")
        return replace(device, healthy=not faults, message="; ".join([*faults, *remarks]))

    def _register_events(self) -> None:
        """Ask the driver to keep critical XIDs for us; some GPUs and modes cannot."""
        nvml = self._nvml
        self._events = self._ask(nvml.nvmlEventSetCreate)
        for index in range(self._ask(nvml.nvmlDeviceGetCount) or 0):
            handle = self._handle(index)
            if self._events is not None and not isinstance(handle, Exception):
                kind = nvml.nvmlEventTypeXidCriticalError
                self._ask(nvml.nvmlDeviceRegisterEvents, handle, kind, self._events)

    def _take_events(self) -> None:
        """Remember the XIDs that came since the last look, without waiting for any."""
        for _ in range(_EVENTS_AT_ONCE if self._events is not None else 0):
            event = self._ask(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                return
            xid = int(event.eventData)
            if xid not in APPLICATION_XIDS:
                uuid = str(self._ask(self._nvml.nvmlDeviceGetUUID, event.device) or "")
                self._faults[uuid] = f"XID {xid}"

    def _wiring(self, devices: tuple[NvmlDevice, ...], handles: list[Any]) -> str | None:
        """Return the link matrix, read once for each set of GPUs: wires do not move."""
        key = tuple(device.uuid for device in devices)
        if len(devices) < 2 or "" in key:
            return None
        if self._topology[0] != key:
            self._topology = (key, topology_text(self._nvml, handles))
        return self._topology[1]

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return an answer, or None for what this GPU, mode or driver does not tell.

        A GPU that is lost says so to the call for its handle or its UUID.
        """
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None
