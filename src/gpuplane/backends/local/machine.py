"""This machine as one node: processors, memory, disk. Never starts or stops anything."""

import os
import platform
import socket
from pathlib import Path

from gpuplane.backends.interface import GpuObservation, NodeObservation

_MIB = 1 << 20

SHARED_DISK_MIB = 1 << 30
"""Ephemeral storage offered here (1 PiB): processes share the machine's disk and nothing divides
it, so the default request of 100 GiB must not keep a laptop from running a second job."""


def observe_machine(
    node_name: str,
    gpus: tuple[GpuObservation, ...],
    topology: str | None,
    message: str,
) -> NodeObservation:
    """Return this machine as a node; what a cgroup allows counts, not what is built in."""
    name = node_name or socket.gethostname()
    return NodeObservation(
        name=name,
        ready=True,
        cpu_milli=cpu_milli(),
        memory_mib=memory_mib(),
        ephemeral_mib=SHARED_DISK_MIB,
        gpus=gpus,
        topology=topology,
        labels={
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(
                platform.machine(), platform.machine()
            ),
        },
        message=message,
    )


def cpu_milli(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the processors this process may use, in thousandths."""
    allowed = len(os.sched_getaffinity(0)) * 1000
    for folder in _own_cgroups(proc, cgroups):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            allowed = min(allowed, int(quota) * 1000 // max(1, int(period)))
    return max(1, allowed)


def memory_mib(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory this process may use, in MiB."""
    total = 0
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) // 1024
    for folder in _own_cgroups(proc, cgroups):
        limit = _read(folder / "memory.max").strip()
        if limit.isdigit():
            total = min(total, int(limit) // _MIB)
    return total


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return _read(Path("/proc/sys/kernel/random/boot_id")).strip()


def _own_cgroups(proc: Path, cgroups: Path) -> list[Path]:
    """Return the cgroup v2 folders of this process, from its own up to the root."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        if line.startswith("0::"):
            own = cgroups / line[3:].strip("/")
            return [own, *(p for p in own.parents if p.is_relative_to(cgroups))]
    return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
