"""Asks the cluster autoscaler for nodes, by a ProvisioningRequest.

Owns the request of a workload and what its conditions mean. The request and its PodTemplate carry
the workload as their owner and go with it.

Source: kubernetes/autoscaler, ProvisioningRequest API `autoscaling.x-k8s.io/v1`: conditions
Accepted, Provisioned, Failed, BookingExpired, CapacityRevoked.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import AlreadyThere
from gpuplane.kube.kinds import PROVISIONING_REQUEST
from gpuplane.operator.names import RESOURCES, WORKLOAD_KIND
from gpuplane.operator.rules.jobs import Image, build_job, job_name, owner_of
from gpuplane.operator.rules.seen import Workload

_ENDED = ("Failed", "Provisioned", "BookingExpired", "CapacityRevoked")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is kept of a ProvisioningRequest; `is_ended` where the autoscaler does no more."""

    namespace: str
    name: str
    owner_uid: str
    is_ended: bool


def read_request(item: Mapping[str, Any]) -> Asked:
    """Return what is kept of a ProvisioningRequest."""
    meta = item["metadata"]
    owners = meta.get("ownerReferences") or ()
    conditions = (item.get("status") or {}).get("conditions") or ()
    return Asked(
        meta.get("namespace", ""),
        meta["name"],
        next((each.get("uid", "") for each in owners if each.get("kind") == WORKLOAD_KIND), ""),
        any(each.get("type") in _ENDED and each.get("status") == "True" for each in conditions),
    )


class Provisioner:
    """Makes ProvisioningRequests of one class."""

    def __init__(self, client: KubeClient, class_name: str = "") -> None:
        """Prepare requests of a class; an empty one asks nobody."""
        self._client = client
        self._class = class_name
        self._known: dict[tuple[str, str], Asked] = {}

    def set_request(self, asked: Asked) -> None:
        """Take note of a request."""
        self._known[asked.namespace, asked.name] = asked

    def remove_request(self, asked: Asked) -> None:
        """Forget a request that is gone."""
        self._known.pop((asked.namespace, asked.name), None)

    async def expects_nodes(self, workload: Workload, image: Image | None) -> bool:
        """Return whether the autoscaler is still at work for a workload; asks it the first time."""
        if not self._class or image is None:
            return False
        name = job_name(workload)
        found = self._known.get((workload.namespace, name))
        if found is None:
            await self._ask(workload, image, name)
            return True
        return not found.is_ended

    async def _ask(self, workload: Workload, image: Image, name: str) -> None:
        meta = {
            "name": name,
            "namespace": workload.namespace,
            "ownerReferences": [owner_of(workload)],
        }
        for body in (_template(workload, image, meta), self._request(name, meta)):
            with contextlib.suppress(AlreadyThere):
                await self._client.create(body)

    def _request(self, name: str, meta: dict[str, Any]) -> dict[str, Any]:
        return {
            "apiVersion": PROVISIONING_REQUEST.api_version,
            "kind": PROVISIONING_REQUEST.kind,
            "metadata": meta,
            "spec": {
                "provisioningClassName": self._class,
                "podSets": [{"count": 1, "podTemplateRef": {"name": name}}],
            },
        }


def _template(workload: Workload, image: Image, meta: dict[str, Any]) -> dict[str, Any]:
    resource = RESOURCES[workload.vendor][0]
    job = build_job(workload, image, "", "", resource, queue="")
    # No node is named: any will do, above all one that is not there yet.
    template = job["spec"]["template"]
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": template}
