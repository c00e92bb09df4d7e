"""Checks an attempt plan for what this machine can do and turns it into a supervisor's payload.

What cannot be done is refused here, before anything is started, with a sentence that says why.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from gpuplane.backends.interface import AttemptPlan, BackendError
from gpuplane.backends.local.environments import compute_environment
from gpuplane.backends.local.folders import AttemptFolder
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.core.reasons import Word

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_TEXT_LIMIT = 131_072
"""The longest single argument or variable that Linux takes (MAX_ARG_STRLEN)."""


def _refused(sentence: str) -> BackendError:
    return BackendError(Word.START_FAILED, sentence)


def check_plan(plan: AttemptPlan, secrets: Mapping[str, str]) -> None:
    """Refuse a plan that this machine cannot run.

    Raises:
        BackendError: With the word StartFailed and a sentence that names the field.
    """
    execution = plan.execution
    if not execution.command:
        raise _refused("a job on this machine needs a command; an image is not run here")
    ranks = [replica.rank for replica in plan.replicas]
    if not ranks or len(set(ranks)) != len(ranks) or min(ranks) < 0:
        raise _refused("the plan names no replica, or one rank twice")
    relative_path(execution.working_dir, "working_dir")
    for mount in execution.mounts:
        if not _NAME.fullmatch(mount.name):
            raise _refused(f"mount name {mount.name!r} is not a lower-case name")
        relative_path(mount.path.lstrip("/"), "mount path")
    for reference in execution.secrets:
        if reference.path and not reference.env:
            text = f"secret {reference.name} asks for a file; here secrets reach a job by `env`"
            raise _refused(text)
    texts = [*execution.command, *secrets.values(), *execution.env.values()]
    if any("\0" in text or len(text) >= _TEXT_LIMIT for text in texts):
        raise _refused("an argument or variable holds a NUL or is longer than 128 KiB")
    names = [*execution.env, *plan.env, *secrets]
    if any(not name or "=" in name or "\0" in name for name in names):
        raise _refused("the name of a variable is empty or holds `=` or a NUL")


def relative_path(text: str, field: str) -> str:
    """Return a path that stays below where it is applied; "" for that folder itself.

    Raises:
        BackendError: If it is absolute or climbs out.
    """
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\0" in text:
        raise _refused(f"{field} {text!r} must be relative and may not contain `..`")
    return "" if str(path) == "." else str(path)


def compute_payload(
    plan: AttemptPlan,
    secrets: Mapping[str, str],
    folder: AttemptFolder,
    settings: LocalSettings,
    cgroup_base: str,
    volumes: Mapping[str, Path],
    checkpoint_folder: Path | None,
    visible_devices: Mapping[int, str],
) -> dict[str, object]:
    """Return what the supervisor is told, secrets included; `supervisor.plan` names the fields.

    Args:
        volumes: Folder of each mount by its name; they exist.
        checkpoint_folder: Kept from attempt to attempt of this job, or None.
        visible_devices: What CUDA may see, by rank.
    """
    execution = plan.execution
    checkpoints = str(checkpoint_folder) if checkpoint_folder else ""
    mounts = [
        (relative_path(mount.path.lstrip("/"), "mount path"), str(volumes[mount.name]))
        for mount in execution.mounts
    ]
    if checkpoints and plan.checkpoint_path.strip("/"):
        path = relative_path(plan.checkpoint_path.lstrip("/"), "checkpoint path")
        mounts.append((path, checkpoints))
    exposed = {
        f"GPUPLANE_MOUNT_{re.sub('[^A-Z0-9]', '_', name.upper())}": str(path)
        for name, path in volumes.items()
    }
    replicas = [
        (
            replica.rank,
            compute_environment(
                plan,
                replica,
                secrets,
                folder=str(folder.replica(replica.rank)),
                checkpoint_folder=checkpoints,
                visible_devices=visible_devices.get(replica.rank, ""),
                inherited=os.environ,
                inherited_names=settings.inherited_env,
            )
            | exposed,
            str(folder.replica(replica.rank)),
        )
        for replica in sorted(plan.replicas, key=lambda replica: replica.rank)
    ]
    return {
        "attempt_id": str(plan.ref.attempt_id),
        "epoch": plan.ref.epoch,
        "folder": str(folder.path),
        "changes": str(folder.changes),
        "command": list(execution.command),
        "working_dir": relative_path(execution.working_dir, "working_dir"),
        "workspace": plan.workspace_archive,
        "mounts": mounts,
        "artifacts": list(execution.artifacts),
        "port": execution.port,
        "health": _health(plan),
        "restart": execution.restart.value,
        "restart_delay_s": settings.restart_delay_s,
        "restart_max_delay_s": settings.restart_max_delay_s,
        "grace_s": float(execution.grace_s),
        "max_duration_s": None if plan.max_duration_s is None else float(plan.max_duration_s),
        "cgroup": cgroup_base,
        "cpu_milli": plan.resources.cpu_milli,
        "memory_mib": plan.resources.memory_mib,
        "segment_bytes": settings.log_segment_bytes,
        "max_log_bytes": settings.max_log_bytes,
        "max_artifact_bytes": settings.max_artifact_bytes,
        "max_workspace_bytes": settings.max_workspace_bytes,
        "replicas": replicas,
    }


def _health(plan: AttemptPlan) -> dict[str, object] | None:
    health = plan.execution.health
    if health is None:
        return None
    return {
        "path": health.path,
        "port": health.port,
        "interval_s": float(health.interval_s),
        "timeout_s": float(health.timeout_s),
        "failure_threshold": health.failure_threshold,
        "start_period_s": float(health.start_period_s),
    }
