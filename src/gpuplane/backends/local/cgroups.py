"""Finds out whether limits can be enforced here: a cgroup v2 folder of our own, or the reason.

Makes that folder once for a home; the supervisors make theirs below it.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuplane.backends.local.supervisor import cgroup


@dataclass(frozen=True, slots=True)
class CgroupSupport:
    """What cgroup v2 grants this user here.

    Args:
        base: The folder to make cgroups in; empty for none.
        has_cpu: Whether CPU limits hold.
        has_memory: Whether memory limits hold.
    """

    base: str = ""
    has_cpu: bool = False
    has_memory: bool = False


def find_support(
    name: str, mounts: Path = Path("/proc/self/mountinfo"), own: Path = Path("/proc/self/cgroup")
) -> CgroupSupport:
    """Return the best that can be had: limits, else only the sure end of all descendants.

    Args:
        name: Name of the folder to make; one for a home, so that homes do not meet.
    """
    best = CgroupSupport()
    for parent in _candidates(mounts, own):
        support = _try(parent, name)
        rank = (support.has_memory, support.has_cpu, bool(support.base))
        if rank > (best.has_memory, best.has_cpu, bool(best.base)):
            remove(best)
            best = support
        elif support.base != best.base:
            remove(support)
        if best.has_cpu and best.has_memory:
            break
    return best


def describe(base: str) -> CgroupSupport:
    """Return what a folder chosen by a setting grants; "" for none."""
    folder = Path(base)
    if not base or not folder.is_dir():
        return CgroupSupport()
    controllers = (folder / "cgroup.subtree_control").read_text().split()
    return CgroupSupport(base, "cpu" in controllers, "memory" in controllers)


def remove(support: CgroupSupport) -> None:
    """Remove the folder if nothing runs in it."""
    if support.base:
        for folder in (Path(support.base, cgroup.SUPERVISORS), Path(support.base)):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _candidates(mounts: Path, own: Path) -> Iterator[Path]:
    """Yield where a folder might be made: near this process first, then up to the root."""
    root = _mount_point(mounts)
    path = _own_path(own)
    if root is None or path is None:
        return
    here = root / path.strip("/")
    # A cgroup that holds processes may not share its controllers, so ours lies beside it.
    for parent in (*here.parents, here):
        if parent.is_relative_to(root) and os.access(parent, os.W_OK):
            yield parent
    if here == root and os.access(root, os.W_OK):
        yield root


def _mount_point(mounts: Path) -> Path | None:
    with contextlib.suppress(OSError):
        for line in mounts.read_text().splitlines():
            left, _, right = line.partition(" - ")
            if right.split(" ")[0] == "cgroup2":
                return Path(left.split(" ")[4])
    return None


def _own_path(own: Path) -> str | None:
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            if line.startswith("0::"):
                return line[3:]
    return None


def _try(parent: Path, name: str) -> CgroupSupport:
    base = parent / name
    try:
        base.mkdir(exist_ok=True)
    except OSError:
        return CgroupSupport()
    for controller in ("cpu", "memory"):
        for folder in (parent, base):
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    probe = base / "probe"
    support = CgroupSupport()
    with contextlib.suppress(OSError):
        probe.mkdir(exist_ok=True)
        if _can_enter(probe):
            has_cpu, has_memory = (probe / "cpu.max").exists(), (probe / "memory.max").exists()
            support = CgroupSupport(str(base), has_cpu, has_memory)
        probe.rmdir()
    if not support.base:
        with contextlib.suppress(OSError):
            base.rmdir()
    return support


def _can_enter(folder: Path) -> bool:
    """Return whether a process of ours may be moved into a cgroup; only trying tells."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        try:
            (folder / "cgroup.procs").write_text(str(process.pid))
        except OSError:
            return False
        finally:
            process.kill()
            process.wait()
    return True
