"""Nodes are asked of the cluster autoscaler where none fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuplane.kube.errors import NotThere
from gpuplane.kube.kinds import CUSTOM_RESOURCE_DEFINITION, PROVISIONING_REQUEST
from tests.kubernetes.operator.conftest import Bench
from tests.waiting import wait_until_async

Pool = Callable[..., list[str]]

# The names and the subresource of the autoscaler's own definition; its fields are kept as sent.
AUTOSCALER: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "provisioningrequests.autoscaling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "scope": "Namespaced",
        "names": {
            "kind": "ProvisioningRequest",
            "plural": "provisioningrequests",
            "singular": "provisioningrequest",
            "shortNames": ["provreq"],
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


async def _is_served(bench: Bench) -> bool:
    try:
        await bench.admin.list(PROVISIONING_REQUEST, bench.namespace)
    except NotThere:
        return False
    return True


async def test_the_autoscaler_is_asked_and_its_refusal_lets_the_retries_run(
    bench: Bench, pool: Pool
) -> None:
    name = AUTOSCALER["metadata"]["name"]
    if await bench.admin.find(CUSTOM_RESOURCE_DEFINITION, name) is None:
        await bench.admin.create(AUTOSCALER)
    await wait_until_async(lambda: _is_served(bench), "ProvisioningRequest is served")
    pool("l4", 1)
    await bench.start(provisioning_class="check-capacity.autoscaling.x-k8s.io")
    await bench.submit("w", gpus=8, retryPolicy={"maxRetries": 1, "backoffSeconds": 1})

    async def asked() -> dict[str, Any] | None:
        found = await bench.admin.list(PROVISIONING_REQUEST, bench.namespace)
        return found[0] if found else None

    request = await wait_until_async(asked, "the autoscaler was asked")
    assert request is not None
    spec = request["spec"]
    assert spec["provisioningClassName"] == "check-capacity.autoscaling.x-k8s.io"
    kind = await bench.admin.kind_of({"apiVersion": "v1", "kind": "PodTemplate"})
    template = await bench.admin.get(kind, request["metadata"]["name"], bench.namespace)
    pod = template["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert "affinity" not in pod
    status = await bench.until("w", "Pending")
    assert "retryCount" not in status
    refusal = {"type": "Failed", "status": "True", "reason": "NoCapacity", "message": "none",
               "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    await bench.admin.patch(
        PROVISIONING_REQUEST,
        request["metadata"]["name"],
        {"status": {"conditions": [refusal]}},
        bench.namespace,
        subresource="status",
    )
    failed = await bench.until("w", "Failed")
    assert failed["retryCount"] == 1
