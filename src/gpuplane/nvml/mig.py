"""Reads from a GPU how it can be cut: its MIG profiles and where each may lie.

Owns the translation of NVML's answers into the decision core's table. Never changes a device, and
works whether or not the GPU is in MIG mode.

Source: NVML API reference, "Multi Instance GPU Management" (a placement's size is the number of
memory slices it occupies, its start the first of them).
"""

import re
from ctypes import byref, c_uint
from typing import Any

from gpuplane.core.mig.profiles import MigProfile, MigTable, device_table

_NAME = re.compile(r"(\d+)g\.(\d+)gb\S*")


def read_mig_table(nvml: Any, handle: Any, model: str) -> MigTable | None:
    """Return the profiles of a GPU as the device reports them, or None where it has no MIG.

    Args:
        nvml: The `pynvml` module.
        handle: The device.
        model: The name that the table is to carry.
    """
    profiles = []
    for number in range(getattr(nvml, "NVML_GPU_INSTANCE_PROFILE_COUNT", 0)):
        profile = _read_profile(nvml, handle, number)
        if profile is not None:
            profiles.append(profile)
    if not profiles:
        return None
    profiles.sort(key=lambda each: (each.compute_slices, each.memory_slices, each.name))
    return device_table(model, tuple({each.name: each for each in profiles}.values()))


def _read_profile(nvml: Any, handle: Any, number: int) -> MigProfile | None:
    """Return one profile, or None if the GPU does not offer it or an old driver has no names."""
    try:
        info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, 2)
        places = _read_placements(nvml, handle, info.id)
    except (nvml.NVMLError, AttributeError):
        return None
    raw = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
    name = _NAME.search(raw)
    if name is None or not places:
        return None
    return MigProfile(
        name=name.group(0),
        compute_slices=int(info.sliceCount),
        memory_slices=places[0][1],
        memory_gb=int(name.group(2)),
        max_instances=int(info.instanceCount),
        starts=tuple(start for start, _ in places),
    )


def _read_placements(nvml: Any, handle: Any, profile_id: int) -> list[tuple[int, int]]:
    """Return (start, size) of each legal placement, ascending."""
    count = c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, byref(count))
    found = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, found, byref(count))
    return sorted({(int(found[i].start), int(found[i].size)) for i in range(count.value)})
