"""What HAMi's scheduler tells of its devices: how much of each is given away, in percent.

Owns the names of its metrics, in the forms before and since HAMi 2.9; pure: text in, numbers out.

Source: Project-HAMi/HAMi, cmd/scheduler/metrics.go at v2.6.1 and v2.9.0. A share of cores or of
memory is told as what is allocated and what there is, so that it does not matter in which unit.
"""

import re
from collections.abc import Mapping

SCHEDULER_LABELS = {"app.kubernetes.io/component": "hami-scheduler"}
"""Labels of the scheduler's Service, whatever the release is called."""

_CORES = ("GPUDeviceCoreAllocated", "hami_gpu_core_allocated_ratio")
_CORES_OF = ("GPUDeviceCoreLimit", "hami_gpu_core_limit_ratio")
_MEMORY = ("GPUDeviceMemoryAllocated", "hami_gpu_memory_allocated_bytes")
_MEMORY_OF = ("GPUDeviceMemoryLimit", "hami_gpu_memory_limit_bytes")
_NAMES = {
    name: meaning
    for meaning, names in (
        ("cores", _CORES),
        ("cores_of", _CORES_OF),
        ("memory", _MEMORY),
        ("memory_of", _MEMORY_OF),
    )
    for name in names
}
_LINE = re.compile(r"([A-Za-z_]+)\{([^}]*)\} ([0-9.eE+]+)")
_DEVICE = re.compile(r'device_?uuid="([^"\\]{1,100})"')


def read_used_percent(text: str) -> dict[str, int]:
    """Return how much of each device is given away, by its UUID: 0 to 100, rounded up.

    A device is as full as the fuller of its cores and its memory. What cannot be read is left out.
    """
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        meaning = _NAMES.get(match.group(1)) if match is not None else None
        device = _DEVICE.search(match.group(2)) if match is not None else None
        if match is None or meaning is None or device is None:
            continue
        try:
            found.setdefault(device.group(1), {})[meaning] = float(match.group(3))
        except ValueError:
            continue
    return {device: percent for device, told in sorted(found.items())
            if (percent := _percent(told)) is not None}  # fmt: skip


def _percent(told: Mapping[str, float]) -> int | None:
    shares = [
        told[what] / told[f"{what}_of"]
        for what in ("cores", "memory")
        if what in told and told.get(f"{what}_of")
    ]
    # An infinite amount is no amount.
    sound = [share for share in shares if 0 <= share < float("inf")]
    return min(100, -int(-100 * max(sound) // 1)) if sound else None
