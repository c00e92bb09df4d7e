"""A working directory on its way into a pod: in pieces, unpacked before the job starts.

The packed folder lies in ConfigMaps that the workload owns, one piece each, and a container of the
job's own image unpacks it into a volume of the pod. So nothing but the API server is needed to
carry it, and no right but those that a job has anyway; `sh`, `cat` and `tar` must be in the image.
"""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuplane.backends.interface import AttemptPlan, BackendError
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.volumes import PodVolumes
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.core.reasons import Word

PIECE_BYTES = 900 * 1024
"""Of one ConfigMap, which may have 1 MiB with all that belongs to it."""

WORK, PIECES = "workspace", "workspace-pieces"
WORK_PATH = "/gpuplane/work"
PIECES_PATH = "/gpuplane/pieces"
UNPACK = "unpack"
"""The name of the container that unpacks it."""

_MEMORY_MIB, _CPU_MILLI = 256, 500


def load_workspace(plan: AttemptPlan, settings: KubernetesSettings) -> bytes | None:
    """Return the packed working directory of an attempt, None where it has none; blocking.

    Raises:
        BackendError: If it is too large to travel, or cannot be read.
    """
    if plan.workspace_archive is None:
        return None
    path, most = Path(plan.workspace_archive), settings.max_workspace_bytes
    try:
        size = path.stat().st_size
        if size > most:
            raise BackendError(
                Word.START_FAILED,
                f"spec.workspace_digest: the working directory has {size} bytes packed, and at most"
                f" {most} travel to a cluster. Leave files out by .gpuplaneignore, or put them into"
                " the image or a volume.",
            )
        return path.read_bytes()
    except OSError as error:
        raise BackendError(
            Word.START_FAILED, f"the working directory cannot be read: {error.strerror}"
        ) from error


def compute_pieces(
    plan: AttemptPlan, labels: dict[str, str], workspace: bytes
) -> tuple[dict[str, Any], ...]:
    """Return the ConfigMaps that hold a packed working directory, in order."""
    starts = range(0, max(1, len(workspace)), PIECE_BYTES)
    return tuple(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": dict(labels)},
            "immutable": True,
            "binaryData": {
                f"piece-{number:03d}": base64.b64encode(
                    workspace[start : start + PIECE_BYTES]
                ).decode()
            },
        }
        for number, (start, name) in enumerate(
            zip(starts, _names_of(plan, len(starts)), strict=True)
        )
    )


def with_workspace(volumes: PodVolumes, plan: AttemptPlan, pieces: int) -> PodVolumes:
    """Return the volumes of a pod and the one that its working directory is unpacked into."""
    sources = [{"configMap": {"name": name}} for name in _names_of(plan, pieces)]
    return replace(
        volumes,
        volumes=(
            *volumes.volumes,
            {"name": WORK, "emptyDir": {}},
            {"name": PIECES, "projected": {"sources": sources}},
        ),
        mounts=(*volumes.mounts, {"name": WORK, "mountPath": WORK_PATH}),
    )


def unpacked_first(template: dict[str, Any], plan: AttemptPlan) -> None:
    """Have a pod template unpack the working directory and start in it."""
    [container] = template["spec"]["containers"]
    asked = plan.resources
    # No more than the job has, so that the pod asks for nothing beyond it.
    amounts = {
        "cpu": f"{min(_CPU_MILLI, asked.cpu_milli)}m",
        "memory": f"{min(_MEMORY_MIB, asked.memory_mib)}Mi",
    }
    template["spec"]["initContainers"] = [
        {
            "name": UNPACK,
            "image": container["image"],
            # `o`: files belong to whoever runs it, as in a folder of one's own.
            "command": ["/bin/sh", "-c", f"cat {PIECES_PATH}/piece-* | tar -xzof - -C {WORK_PATH}"],
            "resources": {"requests": amounts, "limits": {"memory": amounts["memory"]}},
            "securityContext": container["securityContext"],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": WORK, "mountPath": WORK_PATH},
                {"name": PIECES, "mountPath": PIECES_PATH, "readOnly": True},
            ],
        }
    ]
    inside = plan.execution.working_dir.strip("/")
    container["workingDir"] = f"{WORK_PATH}/{inside}" if inside else WORK_PATH
    container["env"].append({"name": "GPUPLANE_WORKDIR", "value": WORK_PATH})


def _names_of(plan: AttemptPlan, count: int) -> list[str]:
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    return [f"{name}-work-{number:03d}" for number in range(count)]
