"""Services that are reached from outside by a Route, where a stand-in for OpenShift serves them.

The kind stays on the rig's cluster: another backend that has read that it is served would fail.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import DeploymentType, HealthCheck, JobSpec, JobType, ResourceRequest
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import KubeError
from gpuplane.kube.kinds import ROUTE
from tests.contract.builders import a_plan
from tests.contract.factories import replicas_of, until, until_over
from tests.contract.kubernetes import KubernetesFactory
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

SMALL = ResourceRequest(cpu_milli=100, memory_mib=64, ephemeral_mib=64)
SERVER = (
    "import http.server, os\n"
    "handler = http.server.SimpleHTTPRequestHandler\n"
    "http.server.HTTPServer(('', int(os.environ['PORT'])), handler).serve_forever()"
)
COLLECTED_S = 60
"""A new kind is followed by Kubernetes' garbage collector from its next look at what is served on:
every 30 s (kubernetes v1.34 cmd/kube-controller-manager/app/core.go)."""


def definition() -> dict[str, Any]:
    """Return the kind Route as OpenShift names it, without a schema of its own."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    note = {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"routes.{ROUTE.group}", "annotations": note},
        "spec": {
            "group": ROUTE.group,
            "scope": "Namespaced",
            "versions": [version],
            "names": {"plural": "routes", "kind": "Route"},
        },
    }


async def serve_routes(rig: RunningCluster) -> None:
    """Have the rig's cluster serve Routes."""
    async with KubeClient(rig.connection()) as client:
        await client.apply(definition())

        async def are_listed() -> bool:
            try:
                await client.list(ROUTE)
            except KubeError:
                return False
            return await client.served(ROUTE.group) is not None

        await wait_until_async(are_listed, "Routes are served")


async def router_says(backend: KubernetesBackend, name: str, condition: dict[str, str]) -> None:
    """Do what OpenShift's router does: say of a Route whether it is admitted, and its host."""
    host = f"{name}.apps.example"
    ingress = {"host": host, "routerName": "default", "conditions": [condition]}
    await backend.client.patch(
        ROUTE, name, {"status": {"ingress": [ingress]}}, "tenant-default"
    )  # fmt: skip


async def test_a_service_is_reached_by_its_route_which_goes_with_it(
    rig: RunningCluster, factory: KubernetesFactory
) -> None:
    await serve_routes(rig)
    backend = await factory.open()
    labels = {"expose": "true"}
    spec = JobSpec("web", JobType.SERVICE, DeploymentType.DOCKER, labels=labels)
    plan = a_plan(
        node_name=factory.node_name, job_type=JobType.SERVICE, resources=SMALL,
        command=("python3", "-c", SERVER), port=18_319, health=HealthCheck(path="/"),
    )  # fmt: skip
    plan = replace(plan, spec=spec)
    await backend.ensure_workload(plan, {})
    mine = {names.ATTEMPT_ID: str(plan.ref.attempt_id)}
    [route] = await backend.client.list(ROUTE, labels=mine)
    name = route["metadata"]["name"]
    assert {each["manager"] for each in route["metadata"]["managedFields"]} == {"gpuplane"}
    assert route["metadata"]["ownerReferences"][0]["kind"] == "Deployment"
    refused = {"type": "Admitted", "status": "False", "reason": "HostAlreadyClaimed"}
    await router_says(backend, name, refused)
    await until(
        factory,
        backend,
        lambda now: [r for r in replicas_of(now, plan.ref) if "HostAlreadyClaimed" in r.message],
        "the refusal is told",
    )
    await router_says(backend, name, {"type": "Admitted", "status": "True"})
    await until(
        factory,
        backend,
        lambda now: [
            r for r in replicas_of(now, plan.ref) if r.url == f"https://{name}.apps.example"
        ],
        "its address is told",
    )
    await backend.evict(plan.ref, 1.0, Word.CANCELLED)
    await until_over(factory, backend, plan.ref)

    async def is_gone() -> bool:
        return await backend.client.list(ROUTE, labels=mine) == []

    await wait_until_async(is_gone, "the Route went with its owner", deadline_s=COLLECTED_S)
