"""What this machine enforces and what is only cooperative, in sentences for people."""

import getpass

from gpuplane.backends.local.cgroups import CgroupSupport
from gpuplane.backends.local.gpus import GpuView


def promise_notes(
    support: CgroupSupport, view: GpuView, *, is_event_driven: bool
) -> tuple[str, ...]:
    """Return the notes of `Probe`: what looks enforced is enforced, the rest says so."""
    notes = [
        f"Jobs run as user {_user()} on this machine, without isolation from each other.",
        *_limits(support),
        *_ends(support),
        "Ephemeral storage, read-only mounts and network are not limited here.",
    ]
    if view.gpus:
        notes.append(
            "GPUs are given by CUDA_VISIBLE_DEVICES; a job that overrides it reaches the others, "
            "and a share of a GPU is not enforced."
        )
    if view.message:
        notes.append(view.message[0].upper() + view.message[1:] + ".")
    if not is_event_driven:
        notes.append(
            "The machine grants no inotify instance: changes are looked for five times a s."
        )
    return tuple(notes)


def _limits(support: CgroupSupport) -> list[str]:
    granted = {"CPU": support.has_cpu, "Memory": support.has_memory}
    if all(granted.values()):
        return ["CPU and memory limits are enforced by cgroup v2."]
    return [
        f"{name} limits are enforced by cgroup v2."
        if has
        else f"{name} limits are not enforced here: this user may not make such a cgroup v2."
        for name, has in granted.items()
    ]


def _ends(support: CgroupSupport) -> list[str]:
    if support.base:
        return ["Every process that a job started ends with it, by cgroup v2."]
    text = (
        "Every process that a job started ends with it. Only if both its supervisor and its "
        "guard are killed at one moment, one that left its session and replaced its "
        "environment may stay: this user may not make a cgroup."
    )
    return [text]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
