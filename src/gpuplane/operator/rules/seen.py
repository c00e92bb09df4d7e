"""What is kept of objects of the cluster: a few fields each, and how they are read.

Owns the shapes and their decoding from the API's JSON; never asks the API. A thousand nodes and
ten thousand pods stay in memory, so whatever no decision reads is not kept.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from gpuplane.operator.names import (
    GPU_IDS_ANNOTATION,
    MIG_ORDERS_ANNOTATION,
    MIG_STATE_ANNOTATION,
    NODE_ANNOTATION,
    PREEMPTIBLE_ANNOTATION,
    QUEUE_LABEL,
    RESOURCES,
    STRATEGY_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    UID_LABEL,
    Phase,
    Priority,
    Strategy,
    Vendor,
)

Json = Mapping[str, Any]

_GPU_RESOURCES = frozenset(name for names in RESOURCES.values() for name in names)
_KEPT_ANNOTATIONS = (TOPOLOGY_ANNOTATION, MIG_ORDERS_ANNOTATION, MIG_STATE_ANNOTATION)
DEFAULT_RETRIES = 3
DEFAULT_BACKOFF_S = 30
_OVER_PODS = ("Succeeded", "Failed")


class Node(msgspec.Struct, frozen=True):
    """A node as decisions see it.

    Attributes:
        allocatable: Extended GPU resources that may be given out, None where none is reported.
        capacity: The same as the machine has them.
        taints: (key, value, effect) of the taints that keep pods away.
    """

    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    allocatable: dict[str, int]
    capacity: dict[str, int]
    is_ready: bool
    is_unschedulable: bool
    taints: tuple[tuple[str, str, str], ...]


class Pod(msgspec.Struct, frozen=True):
    """A pod that asks for GPUs, or one of a workload.

    Attributes:
        gpus: By extended resource, how many it asks for.
        gpu_ids: GPUs chosen for it, as its annotation names them; empty where nobody chose.
        trouble: Why its container does not run, such as ImagePullBackOff, or empty.
    """

    namespace: str
    name: str
    job: str
    node: str
    is_over: bool
    is_running: bool
    is_going: bool
    gpus: dict[str, int]
    gpu_ids: tuple[str, ...]
    trouble: str


class Job(msgspec.Struct, frozen=True):
    """A Job of a workload."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    workload_uid: str
    node: str
    strategy: str
    queue: str
    is_suspended: bool
    is_going: bool
    active: int
    ready: int
    started_s: int
    finished_s: int
    is_complete: bool
    failure: str


class Reservation(msgspec.Struct, frozen=True):
    """GPUs that are kept for a workload before it starts.

    Attributes:
        start_s: When its Job is made, in seconds since the epoch.
        hold_s: How long before that a node's GPUs are kept for it.
    """

    start_s: int
    hold_s: int


class Workload(msgspec.Struct, frozen=True):
    """A GPUWorkload: what is asked, and what was last written of it."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    created_s: int
    is_going: bool
    finalizers: tuple[str, ...]
    queue: str
    model: str
    gpus: int
    vendor: Vendor
    priority: Priority
    strategy: Strategy
    max_retries: int
    backoff_s: int
    memory_mib: int
    reservation: Reservation | None
    is_preemptible: bool
    phase: Phase | None
    node: str
    job: str
    retries: int
    preemptions: int
    scheduled_s: int
    message: str

    @property
    def key(self) -> tuple[str, str]:
        """Return (namespace, name)."""
        return self.namespace, self.name


def read_node(item: Json) -> Node:
    """Return what is kept of a Node."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    annotations = meta.get("annotations") or {}
    ready = any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in status.get("conditions") or ()
    )
    return Node(
        name=meta["name"],
        labels=dict(meta.get("labels") or {}),
        annotations={key: annotations[key] for key in _KEPT_ANNOTATIONS if key in annotations},
        allocatable=_gpu_amounts(status.get("allocatable")),
        capacity=_gpu_amounts(status.get("capacity")),
        is_ready=ready,
        is_unschedulable=bool(spec.get("unschedulable")),
        taints=tuple(
            (each.get("key", ""), each.get("value", ""), each.get("effect", ""))
            for each in spec.get("taints") or ()
            if each.get("effect") in ("NoSchedule", "NoExecute")
        ),
    )


def read_pod(item: Json) -> Pod:
    """Return what is kept of a Pod."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    phase = status.get("phase", "")
    chosen = (meta.get("annotations") or {}).get(GPU_IDS_ANNOTATION, "")
    gpus: dict[str, int] = {}
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, amount in _gpu_amounts(asked).items():
            gpus[name] = gpus.get(name, 0) + amount
    labels = meta.get("labels") or {}
    return Pod(
        namespace=meta["namespace"],
        name=meta["name"],
        job=labels.get("batch.kubernetes.io/job-name") or labels.get("job-name", ""),
        node=spec.get("nodeName", ""),
        is_over=phase in _OVER_PODS,
        is_running=phase == "Running",
        is_going="deletionTimestamp" in meta,
        gpus=gpus,
        gpu_ids=tuple(filter(None, (each.strip() for each in chosen.split(",")))),
        trouble=_trouble(status),
    )


def read_job(item: Json) -> Job:
    """Return what is kept of a Job."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    annotations = meta.get("annotations") or {}
    conditions = {
        each["type"]: each
        for each in status.get("conditions") or ()
        if each.get("status") == "True"
    }
    failed = conditions.get("Failed")
    ended = conditions.get("Complete") or failed or {}
    finished = status.get("completionTime") or ended.get("lastTransitionTime") or ""
    return Job(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        workload_uid=(meta.get("labels") or {}).get(UID_LABEL, ""),
        node=annotations.get(NODE_ANNOTATION, ""),
        strategy=annotations.get(STRATEGY_ANNOTATION, ""),
        queue=(meta.get("labels") or {}).get(QUEUE_LABEL, ""),
        is_suspended=bool(spec.get("suspend")),
        is_going="deletionTimestamp" in meta,
        active=int(status.get("active") or 0),
        ready=int(status.get("ready") or 0),
        started_s=read_instant_s(status.get("startTime")),
        finished_s=read_instant_s(finished) if ended else 0,
        is_complete="Complete" in conditions,
        failure=_failure(failed),
    )


def read_pod_of_interest(item: Json) -> Pod | None:
    """Return what is kept of a Pod that asks for GPUs, None of every other."""
    pod = read_pod(item)
    return pod if pod.gpus else None


def read_workload(item: Json) -> Workload:
    """Return what is kept of a GPUWorkload; defaults are those of its schema."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    policy = spec.get("retryPolicy") or {}
    annotations = meta.get("annotations") or {}
    reservation = spec.get("reservation")
    return Workload(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        generation=int(meta.get("generation") or 0),
        created_s=read_instant_s(meta.get("creationTimestamp")),
        is_going="deletionTimestamp" in meta,
        finalizers=tuple(meta.get("finalizers") or ()),
        queue=spec.get("queueName", ""),
        model=str(spec.get("modelName", "")),
        gpus=int(spec.get("gpuCount") or 1),
        vendor=Vendor(spec.get("vendor") or Vendor.NVIDIA),
        priority=Priority(spec.get("priority") or Priority.NORMAL),
        strategy=Strategy(spec.get("schedulingStrategy") or Strategy.LEAST_LOADED),
        max_retries=int(policy.get("maxRetries") or DEFAULT_RETRIES),
        backoff_s=int(policy.get("backoffSeconds") or DEFAULT_BACKOFF_S),
        memory_mib=int(spec.get("gpuMemoryMiB") or 0),
        reservation=None
        if not reservation
        else Reservation(
            _instant_or_none(reservation.get("startTime")),
            int(reservation.get("holdSeconds", 300)),
        ),
        is_preemptible=annotations.get(PREEMPTIBLE_ANNOTATION) != "false",
        phase=_phase(status.get("phase")),
        node=status.get("assignedNode", ""),
        job=status.get("jobName", ""),
        retries=int(status.get("retryCount") or 0),
        preemptions=int(status.get("preemptionCount") or 0),
        scheduled_s=read_instant_s(status.get("lastScheduleTime")),
        message=status.get("message", ""),
    )


def read_instant_s(text: object) -> int:
    """Return an RFC 3339 instant as seconds since the epoch, 0 for none.

    Raises:
        ValueError: If the text is no instant.
    """
    if not text:
        return 0
    return int(datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp())


def _instant_or_none(text: object) -> int:
    """Return an instant, 0 for what is none: a wrong one of one object must not stop the rest."""
    try:
        return read_instant_s(text)
    except ValueError:
        return 0


def _phase(text: object) -> Phase | None:
    return Phase(str(text)) if text in set(Phase) else None


def _gpu_amounts(amounts: Json | None) -> dict[str, int]:
    """Return the whole amounts of GPU resources; extended resources are integers."""
    found: dict[str, int] = {}
    for name, amount in (amounts or {}).items():
        if name in _GPU_RESOURCES:
            text = str(amount)
            # 1k is how the API server writes 1000.
            scale = 1000 if text.endswith("k") else 1
            digits = text.removesuffix("k")
            if digits.isdigit():
                found[name] = int(digits) * scale
    return found


def _failure(condition: Json | None) -> str:
    if condition is None:
        return ""
    reason, message = condition.get("reason", ""), condition.get("message", "")
    return f"{reason}: {message}".strip(": ") or "Failed"


def _trouble(status: Json) -> str:
    """Return the first reason, most telling first, why a pod's container does not run."""
    for each in status.get("containerStatuses") or ():
        state = each.get("state") or {}
        ended = state.get("terminated") or {}
        if ended and ended.get("exitCode", 0) != 0:
            return f"{ended.get('reason') or 'Error'} (exit code {ended.get('exitCode')})"
        waiting = (state.get("waiting") or {}).get("reason", "")
        if waiting and waiting != "ContainerCreating":
            return str(waiting)
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return f"{each.get('reason', 'Unschedulable')}: {each.get('message', '')}".strip(": ")
    return str(status.get("reason") or "")
