"""How the GPUs of this machine are joined, as the text that `nvidia-smi topo -m` prints.

NVLinks are counted towards each peer; a link to an NVSwitch reaches every GPU that has one too.
Where NVML does not tell the paths, `nvidia-smi` is asked.
"""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""`nvmlGpuTopologyLevel_t` to the legend's words; two GPUs of one board (0) share a switch."""

_ASK_S = 20.0


def topology_text(nvml: Any, handles: Sequence[Any]) -> str | None:
    """Return the link matrix of some GPUs, or None when nobody can tell it.

    Args:
        nvml: The bindings with an open session.
        handles: One for each GPU in the order of their indices.
    """
    try:
        paths = [
            [
                "X" if i == j else _PATHS[nvml.nvmlDeviceGetTopologyCommonAncestor(a, b)]
                for j, b in enumerate(handles)
            ]
            for i, a in enumerate(handles)
        ]
    except (nvml.NVMLError, KeyError):
        return ask_nvidia_smi()
    peers = _nvlinks(nvml, handles)
    numa = [numa_node(nvml, handle) for handle in handles]
    names = [f"GPU{i}" for i in range(len(handles))]
    lines = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"])]
    for i, row in enumerate(paths):
        cells = [f"NV{peers[i][j]}" if peers[i][j] else cell for j, cell in enumerate(row)]
        affinity = "N/A" if numa[i] is None else str(numa[i])
        lines.append("\t".join([names[i], *cells, "N/A", affinity]))
    return "\n".join(lines) + "\n"


def numa_node(nvml: Any, handle: Any, devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Return the NUMA node that a GPU hangs on, or None where the machine has but one."""
    try:
        address = nvml.nvmlDeviceGetPciInfo(handle).busId
    except nvml.NVMLError:
        return None
    # NVML writes the domain with eight digits, the kernel with four.
    domain, _, rest = _text(address).lower().partition(":")
    try:
        node = int((devices / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def ask_nvidia_smi(
    run: Callable[..., "subprocess.CompletedProcess[str]"] = subprocess.run,
) -> str | None:
    """Return the output of `nvidia-smi topo -m`, or None when it cannot be had."""
    try:
        asked = run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=_ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout or None


def _nvlinks(nvml: Any, handles: Sequence[Any]) -> list[list[int]]:
    """Return the NVLinks of each pair, shape (gpu, gpu)."""
    addresses = [_text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower() for handle in handles]
    direct = [[0] * len(handles) for _ in handles]
    switched = [0] * len(handles)
    for i, handle in enumerate(handles):
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            remote = _remote(nvml, handle, link)
            if remote == _SWITCH:
                switched[i] += 1
            elif remote in addresses:
                direct[i][addresses.index(remote)] += 1
    return [
        [
            0 if i == j else max(direct[i][j], direct[j][i]) or min(switched[i], switched[j])
            for j in range(len(handles))
        ]
        for i in range(len(handles))
    ]


_SWITCH = "switch"


def _remote(nvml: Any, handle: Any, link: int) -> str | None:
    """Return what an active link leads to: a bus address, a switch, or None."""
    try:
        if not nvml.nvmlDeviceGetNvLinkState(handle, link):
            return None
    except nvml.NVMLError:
        return None
    try:
        if nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == (
            nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        ):
            return _SWITCH
    except nvml.NVMLError:  # older drivers do not tell, and knew few switches
        pass
    try:
        return _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower()
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
