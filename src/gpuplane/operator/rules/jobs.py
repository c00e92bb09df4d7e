"""The Job of a workload: its name, and the whole of its manifest.

Owns the translation. The name follows from the workload and the number of its preemptions, so
that a second try makes the same Job and finds it there.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuplane.operator.names import (
    API_VERSION,
    CONTROLLER,
    CONTROLLER_LABEL,
    HOST_LABEL,
    NODE_ANNOTATION,
    QUEUE_LABEL,
    STRATEGY_ANNOTATION,
    UID_LABEL,
    WORKLOAD_KIND,
    WORKLOAD_LABEL,
)
from gpuplane.operator.rules.seen import Workload

NAME_CHARS = 63
"""A Job's name becomes a label of its pods, which may be no longer."""
CONTAINER = "gpu-workload"
_NOT_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Image:
    """What runs for a model.

    Attributes:
        image: The container image.
        command: Overrides the image's entry point where it is not empty.
        resources: Requests and limits beside the GPUs, such as `{"memory": "16Gi"}`.
    """

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)


def job_name(workload: Workload) -> str:
    """Return the name of the Job of a workload's present attempt."""
    tail = f"-job-{workload.uid[:8]}"
    if workload.preemptions:
        tail += f"-{workload.preemptions + 1}"
    room = NAME_CHARS - len(tail)
    name = workload.name.replace(".", "-")
    if len(name) > room:
        digest = hashlib.sha256(workload.name.encode()).hexdigest()[:6]
        name = f"{name[: room - 7].rstrip('-')}-{digest}"
    return name + tail


def build_job(
    workload: Workload, image: Image, node: str, host: str, resource: str, *, queue: str
) -> dict[str, Any]:
    """Return the Job that runs a workload on a node.

    Args:
        node: Where it shall run, by the name of the Node object; empty leaves it to the scheduler.
        host: The node's `kubernetes.io/hostname`, for the preference under Kueue.
        resource: Extended resource that is asked for.
        queue: The Kueue LocalQueue it stands in, empty without Kueue.

    The node is required by affinity on its name and never set as `nodeName`, so that kube-scheduler
    still checks taints, volumes and what others took. Under Kueue it is preferred only: admission
    may come much later, when another node is free.
    """
    labels = {
        "app": label_value(workload.model),
        WORKLOAD_LABEL: label_value(workload.name),
        UID_LABEL: workload.uid,
        CONTROLLER_LABEL: CONTROLLER,
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        **_affinity(node, host, required=not queue),
        "tolerations": [{"key": resource, "operator": "Exists"}],
        "containers": [_container(workload, image, resource)],
    }
    manifest: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(workload),
            "namespace": workload.namespace,
            "labels": {**labels, **({QUEUE_LABEL: queue} if queue else {})},
            "annotations": {
                NODE_ANNOTATION: node,
                STRATEGY_ANNOTATION: workload.strategy.value,
            },
            "ownerReferences": [owner_of(workload)],
        },
        "spec": {
            "backoffLimit": 0,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    if queue:
        manifest["spec"]["suspend"] = True
    return manifest


def owner_of(workload: Workload) -> dict[str, Any]:
    """Return the ownerReference by which the garbage collector knows the workload's objects."""
    return {
        "apiVersion": API_VERSION,
        "kind": WORKLOAD_KIND,
        "name": workload.name,
        "uid": workload.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def label_value(text: str) -> str:
    """Return a text as a label value: what no label holds becomes a dash, 63 characters at most."""
    return _NOT_LABEL.sub("-", text)[:63].strip("-_.")


def _container(workload: Workload, image: Image, resource: str) -> dict[str, Any]:
    amounts = {**image.resources, resource: str(workload.gpus)}
    env = {
        **image.env,
        "MODEL_NAME": workload.model,
        "GPU_COUNT": str(workload.gpus),
    }
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image.image,
        "env": [{"name": name, "value": value} for name, value in sorted(env.items())],
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if image.command:
        container["command"] = list(image.command)
    if image.args:
        container["args"] = list(image.args)
    return container


def _affinity(node: str, host: str, *, required: bool) -> dict[str, Any]:
    if not node:
        return {}
    if required:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        wanted: dict[str, Any] = {"nodeSelectorTerms": [term]}
        node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": wanted}
        return {"affinity": {"nodeAffinity": node_affinity}}
    preference = {"matchExpressions": [{"key": HOST_LABEL, "operator": "In", "values": [host]}]}
    weighted = [{"weight": 100, "preference": preference}]
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": weighted}
    return {"affinity": {"nodeAffinity": preferred}}
