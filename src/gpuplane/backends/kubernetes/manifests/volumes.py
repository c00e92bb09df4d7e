"""Volumes of a pod, and the claims that stand beside a workload.

Owns what a named volume becomes on a cluster. Never a path of the host: Pod Security `baseline`
forbids those, and so do we. Claims are not owned by the workload: data outlives a job.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuplane.backends.interface import AttemptPlan, BackendError
from gpuplane.backends.kubernetes.names import checkpoint_claim_name, claim_name
from gpuplane.backends.kubernetes.served import Served
from gpuplane.backends.kubernetes.settings import KubernetesSettings, VolumeSource
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import CheckpointConfig, JobType, Mount

SHARED_MEMORY = "shared-memory"
CHECKPOINTS = "checkpoints"
REPORTS = "reports"
REPORT_FOLDER = "/gpuplane/report"
"""Where a replica writes progress and checkpoints; read beside it while it runs."""


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """What a pod mounts.

    Args:
        volumes: Entries of `spec.volumes`.
        mounts: Entries of the container's `volumeMounts`, in the same order.
        claims: (name, spec) of PersistentVolumeClaims that must be there first.
    """

    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    claims: tuple[tuple[str, dict[str, Any]], ...] = ()


def reports(plan: AttemptPlan) -> bool:
    """Return whether the replicas of an attempt report progress: a service makes none."""
    return plan.job_type is not JobType.SERVICE


def compute_volumes(plan: AttemptPlan, settings: KubernetesSettings, served: Served) -> PodVolumes:
    """Return the volumes of one pod: named ones, checkpoints, and shared memory with a GPU."""
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    claims: list[tuple[str, dict[str, Any]]] = []
    for mount in plan.execution.mounts:
        source, claim = _named(mount, settings.volumes)
        name = f"volume-{mount.name}"
        if not any(each["name"] == name for each in volumes):
            volumes.append({"name": name, **source})
        mounts.append(_mounted(name, mount.path, read_only=mount.read_only))
        if claim is not None and claim not in claims:
            claims.append(claim)
    if plan.checkpoint_path:
        kept = _checkpoints(plan, served)
        volumes.append({"name": CHECKPOINTS, **kept[0]})
        mounts.append(_mounted(CHECKPOINTS, plan.checkpoint_path, read_only=False))
        claims += kept[1]
    if reports(plan):
        volumes.append({"name": REPORTS, "emptyDir": {}})
        mounts.append(_mounted(REPORTS, REPORT_FOLDER, read_only=False))
    if plan.resources.gpu_count:
        # Data loaders pass tensors through it, and a container gets 64 MiB where nothing is said.
        limit = f"{max(64, plan.resources.memory_mib // 2)}Mi"
        volumes.append(
            {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": limit}},
        )
        mounts.append(_mounted(SHARED_MEMORY, "/dev/shm", read_only=False))
    return PodVolumes(tuple(volumes), tuple(mounts), tuple(claims))


def _mounted(name: str, path: str, *, read_only: bool) -> dict[str, Any]:
    mount: dict[str, Any] = {"name": name, "mountPath": path}
    if read_only:
        mount["readOnly"] = True
    return mount


def _named(
    mount: Mount, known: Mapping[str, VolumeSource]
) -> tuple[dict[str, Any], tuple[str, dict[str, Any]] | None]:
    source = known.get(mount.name, VolumeSource())
    if source.kind == "nfs":
        nfs = {"server": source.server, "path": source.path, "readOnly": mount.read_only}
        return {"nfs": nfs}, None
    if source.kind == "local_ssd":
        # Generic ephemeral: the provisioner of local disks makes it with the pod, on its node.
        template = {"spec": _claim_spec(source)}
        return {"ephemeral": {"volumeClaimTemplate": template}}, None
    if source.kind in ("ephemeral", "memory"):
        empty: dict[str, Any] = {"medium": "Memory"} if source.kind == "memory" else {}
        if source.size_mib:
            empty["sizeLimit"] = f"{source.size_mib}Mi"
        return {"emptyDir": empty}, None
    if source.kind != "claim":
        raise BackendError(
            Word.START_FAILED, f"volume {mount.name} is of kind {source.kind!r}, which is none"
        )
    name = source.claim or claim_name(mount.name)
    claim = None if source.claim else (name, _claim_spec(source))
    return {"persistentVolumeClaim": {"claimName": name, "readOnly": mount.read_only}}, claim


def _claim_spec(source: VolumeSource) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": [source.access_mode],
        "resources": {"requests": {"storage": f"{source.size_mib}Mi"}},
    }
    if source.storage_class:
        spec["storageClassName"] = source.storage_class
    return spec


def _checkpoints(
    plan: AttemptPlan, served: Served
) -> tuple[dict[str, Any], tuple[tuple[str, dict[str, Any]], ...]]:
    """Return the volume for checkpoints and the claim behind it.

    A cluster without the class that was asked gives its own; one without any class keeps them for
    the life of the pod alone, which is better than a pod that waits for ever. What is dispatched
    has a claim in any case: the cluster that runs it has classes of its own.
    """
    asked = plan.spec.checkpoint if plan.spec is not None else None
    config = asked or CheckpointConfig()
    has_class = config.storage_class in served.storage_classes or bool(served.default_class)
    if not has_class and not plan.dispatches:
        return {"emptyDir": {"sizeLimit": f"{config.storage_size_mib}Mi"}}, ()
    known = config.storage_class in served.storage_classes
    # Nodes that share a claim must all be able to write to it.
    is_spread = len({each.node_name for each in plan.replicas}) > 1
    source = VolumeSource(
        storage_class=config.storage_class if known else "",
        size_mib=config.storage_size_mib,
        access_mode="ReadWriteMany" if is_spread else "ReadWriteOnce",
    )
    name = checkpoint_claim_name(plan.job_id)
    return {"persistentVolumeClaim": {"claimName": name}}, ((name, _claim_spec(source)),)
