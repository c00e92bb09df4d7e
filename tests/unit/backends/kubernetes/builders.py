"""Pods, workloads and sights as a cluster shows them."""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec

from gpuplane.backends.interface import AttemptRef
from gpuplane.backends.kubernetes.names import ATTEMPT_ID, PLACEMENTS, RANK, RELEASED, SCALE
from gpuplane.backends.kubernetes.records import Record, decide_accept, decide_start
from gpuplane.backends.kubernetes.shapes import Main, Pod
from gpuplane.backends.kubernetes.sights import NodeState, Sight
from gpuplane.core.ids import AttemptId

ID = AttemptId(uuid.UUID("01890000-0000-7000-8000-00000000abcd"))
REF = AttemptRef(ID, 1)
START, END = "2026-01-02T03:04:05Z", "2026-01-02T03:04:09Z"
START_MS, END_MS = 1_767_323_045_000, 1_767_323_049_999
NODE = "node-1"


def a_pod(
    rank: int = 0,
    *,
    phase: str = "Running",
    state: dict[str, Any] | None = None,
    conditions: list[dict[str, str]] | None = None,
    reason: str = "",
    message: str = "",
    **metadata: Any,
) -> Pod:
    """Return the pod of a rank; `state` is that of its container."""
    found: Pod = msgspec.convert(
        {
            "metadata": {
                "name": f"j-{rank}",
                "namespace": "tenant-t",
                "uid": f"uid-{rank}",
                "labels": {RANK: str(rank), ATTEMPT_ID: str(ID)},
                **metadata,
            },
            "spec": {"nodeName": NODE},
            "status": {
                "phase": phase,
                "reason": reason,
                "message": message,
                "conditions": conditions or [],
                "containerStatuses": [{"name": "main", "ready": True, "state": state}]
                if state is not None
                else [],
            },
        },
        Pod,
    )
    return found


def running() -> dict[str, Any]:
    """Return the state of a container that runs."""
    return {"running": {"startedAt": START}}


def ended(code: int, **more: Any) -> dict[str, Any]:
    """Return the state of a container that has ended."""
    terminated = {"exitCode": code, "startedAt": START, "finishedAt": END, **more}
    return {"terminated": terminated}


def a_main(
    kind: str = "Job",
    *,
    suspend: bool = False,
    conditions: list[dict[str, str]] | None = None,
    managed_by: str | None = None,
) -> Main:
    """Return the workload of the attempt."""
    found: Main = msgspec.convert(
        {
            "metadata": {
                "name": "j",
                "namespace": "tenant-t",
                "uid": "main",
                "labels": {ATTEMPT_ID: str(ID)},
            },
            "kind": kind,
            "spec": {"suspend": suspend, "managedBy": managed_by},
            "status": {"conditions": conditions or []},
        },
        Main,
    )
    return found


def a_record(ranks: tuple[int, ...] = (0,), kind: str = "Job", **changes: Any) -> Record:
    """Return the record of an attempt that was let go."""
    record = decide_accept(None, REF, 10, namespace="tenant-t", kind=kind, name="j", ranks=ranks)
    return msgspec.structs.replace(decide_start(record, REF, 20), **changes)


def a_sight(
    *pods: Pod,
    record: Record | None = None,
    main: Main | None = None,
    gone: tuple[str, ...] = (),
    node: NodeState | None = None,
) -> Sight:
    """Return what a cluster shows of the attempt; its one node is well unless told otherwise."""
    return Sight(
        record=record or a_record(),
        pods=pods,
        gone=frozenset(gone),
        main=main or a_main(),
        nodes={NODE: node or NodeState()},
    )


def a_service(replicas: int, *, number: int = 0, places: tuple[int, ...] = ()) -> Main:
    """Return the Deployment of a service that was let go and asks for so many replicas."""
    told = {str(rank): {"node": NODE, "annotations": {}} for rank in places}
    found: Main = msgspec.convert(
        {
            "metadata": {
                "name": "j",
                "namespace": "tenant-t",
                "uid": "main",
                "labels": {ATTEMPT_ID: str(ID)},
                "annotations": {
                    RELEASED: "true",
                    SCALE: str(number),
                    PLACEMENTS: json.dumps(told),
                },
            },
            "kind": "Deployment",
            "spec": {"replicas": replicas},
        },
        Main,
    )
    return found


def another_attempt() -> tuple[AttemptId, Record, Pod]:
    """Return an attempt after the usual one in every order, with its record and its pod."""
    other = AttemptId(uuid.UUID(int=ID.int + 1))
    record = msgspec.structs.replace(a_record(), attempt_id=str(other), name="other")
    labels = {RANK: "0", ATTEMPT_ID: str(other)}
    return other, record, a_pod(0, state=running(), labels=labels, name="other-0", uid="other")


def broken(pod: Pod) -> Pod:
    """Return a pod as no decoder makes one: to look at its containers raises."""
    status = msgspec.structs.replace(pod.status, container_statuses=None)
    return msgspec.structs.replace(pod, status=status)
