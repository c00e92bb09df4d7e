"""Nodes, pods, Jobs and GPUWorkloads as the API has them, as small as tests need them."""

from __future__ import annotations

from typing import Any

from gpuplane.operator.names import (
    CONTROLLER,
    CONTROLLER_LABEL,
    FINALIZER,
    NODE_ANNOTATION,
    UID_LABEL,
)
from gpuplane.operator.rules.seen import (
    Job,
    Node,
    Pod,
    Workload,
    read_job,
    read_node,
    read_pod,
    read_workload,
)

UID = "0a1b2c3d-0000-4000-8000-000000000000"


def node_object(
    name: str = "n1",
    gpus: int | None = 8,
    *,
    resource: str = "nvidia.com/gpu",
    ready: bool = True,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    cordoned: bool = False,
) -> dict[str, Any]:
    amounts = {} if gpus is None else {resource: str(gpus)}
    return {
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"unschedulable": cordoned, "taints": taints or []},
        "status": {
            "allocatable": {"cpu": "64", **amounts},
            "capacity": {"cpu": "64", **amounts},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def a_node(name: str = "n1", gpus: int | None = 8, **more: Any) -> Node:
    return read_node(node_object(name, gpus, **more))


def workload_object(
    name: str = "w", uid: str = UID, status: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid,
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": [FINALIZER],
        },
        "spec": {"modelName": "llama2", "gpuCount": 2, **spec},
        "status": status or {},
    }


def a_workload(
    name: str = "w", uid: str = UID, status: dict[str, Any] | None = None, **spec: Any
) -> Workload:
    return read_workload(workload_object(name, uid, status, **spec))


def a_job(
    name: str,
    uid: str = UID,
    *,
    suspended: bool = False,
    going: bool = False,
    version: int = 1,
    **status: Any,
) -> Job:
    meta: dict[str, Any] = {
        "name": name,
        "namespace": "team",
        "uid": f"job-of-{name}",
        "resourceVersion": str(version),
        "labels": {CONTROLLER_LABEL: CONTROLLER, UID_LABEL: uid},
        "annotations": {NODE_ANNOTATION: "n1"},
    }
    if going:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return read_job({"metadata": meta, "spec": {"suspend": suspended}, "status": status})


def a_pod(
    name: str = "p",
    node: str = "n1",
    gpus: int = 1,
    *,
    job: str = "",
    phase: str = "Running",
    ids: str = "",
    waiting: str = "",
) -> Pod:
    state = {"containerStatuses": [{"state": {"waiting": {"reason": waiting}}}]} if waiting else {}
    return read_pod(
        {
            "metadata": {
                "name": name,
                "namespace": "team",
                "labels": {"batch.kubernetes.io/job-name": job} if job else {},
                "annotations": {"gpuplane.io/gpu-ids": ids} if ids else {},
            },
            "spec": {
                "nodeName": node,
                "containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}],
            },
            "status": {"phase": phase, **state},
        }
    )
