"""Tenants are set up on a real cluster and taken away again, by runs that may be repeated."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from gpuplane.kube.errors import Forbidden
from gpuplane.kube.kinds import (
    LIMIT_RANGE,
    LOCAL_QUEUE,
    NAMESPACE,
    NETWORK_POLICY,
    POD,
    RESOURCE_QUOTA,
    SERVICE_ACCOUNT,
)
from gpuplane.kube.tenancy import Tenancy, namespace_object
from tests.kubernetes.kueue.worlds import KueueWorld

GPU = "nvidia.com/gpu"


async def run(world: KueueWorld, method: str, path: str, **rest: Any) -> dict[str, Any]:
    """Start a run by the API, let it be done, and return it."""
    started = await world.ask(method, path, 202, **rest)
    return await world.until_over(started["runId"])


def groups(gpus: int) -> list[dict[str, Any]]:
    quota = {"name": GPU, "nominalQuota": gpus}
    flavors = [{"name": "nvidia-l4", "resources": [quota]}]
    return [{"coveredResources": [GPU], "flavors": flavors}]


async def test_a_tenant_is_set_up_and_taken_away_however_often_it_is_asked(
    world: KueueWorld,
) -> None:
    tenant, base = await world.tenant("acme"), f"/clusters/{world.name}"
    queue = f"{world.prefix}-team"
    await world.ask(
        "POST", f"{base}/quotas", 201, json={"name": queue, "resourceGroups": groups(2)}
    )
    body = {
        "tenant": tenant,
        "queues": [{"name": "main", "clusterQueue": queue}],
        "limits": [{"name": GPU, "most": 2}],
    }
    for _ in range(2):
        done = await run(world, "POST", f"{base}/tenants", json=body)
        assert done["status"] == "completed", done
    await world.loops["kueue"].run_once()

    space = f"tenant-{tenant}"
    labels = (await world.client.get(NAMESPACE, space))["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "baseline"
    assert labels["pod-security.kubernetes.io/warn"] == "restricted"
    policy = await world.client.get(NETWORK_POLICY, "tenant-isolation", space)
    sources = policy["spec"]["ingress"][0]["from"]
    own = labels["gpuplane.io/tenant-id"]
    assert [each["namespaceSelector"]["matchLabels"] for each in sources] == [
        {"gpuplane.io/tenant-id": own},
        {"gpuplane.io/system": "true"},
    ]
    assert policy["spec"]["egress"] == [{}]
    quota = await world.client.get(RESOURCE_QUOTA, "gpuplane-quota", space)
    assert quota["spec"]["hard"][f"requests.{GPU}"] == "2"
    assert await world.client.find(SERVICE_ACCOUNT, "gpuplane-jobs", space)
    assert await world.client.find(LIMIT_RANGE, "gpuplane-limits", space)
    door = await world.client.get(LOCAL_QUEUE.at("v1beta2"), "main", space)
    assert door["spec"]["clusterQueue"] == queue

    with pytest.raises(Forbidden, match="violates PodSecurity"):
        await world.client.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "host", "namespace": space},
                "spec": {
                    "hostNetwork": True,
                    "containers": [{"name": "main", "image": "registry.test/a:1"}],
                },
            }
        )
    assert await world.client.list(POD, space) == []

    gone = await run(world, "DELETE", f"{base}/tenants/{tenant}")
    assert gone["status"] == "completed", gone
    left = await world.client.find(NAMESPACE, space)
    assert left is None or left["metadata"]["deletionTimestamp"]
    shown = await world.ask("GET", f"{base}/queues")
    declared = [each["tenant"] for each in shown["items"] if each["isDeclared"]]
    assert tenant not in declared


@pytest.mark.parametrize("whose", ["a person's", "an earlier tenant's of that name"])
async def test_a_namespace_that_is_not_this_tenants_is_left_alone(
    world: KueueWorld, whose: str
) -> None:
    tenant = await world.tenant("bolt")
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"tenant-{tenant}"}}
    if whose != "a person's":
        former = Tenancy(tenant, str(uuid.uuid4()), str(world.cluster_id), {})
        space = namespace_object(former)
    await world.client.create(space)
    gone = await run(world, "DELETE", f"/clusters/{world.name}/tenants/{tenant}")
    assert gone["status"] == "failed"
    assert await world.client.find(NAMESPACE, f"tenant-{tenant}") is not None


async def test_a_job_says_that_its_queue_is_not_there_for_want_of_its_namespace(
    world: KueueWorld,
) -> None:
    tenant, base = await world.tenant("cast"), f"/clusters/{world.name}"
    await world.client.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"tenant-{tenant}"}}
    )
    queue = f"{world.prefix}-cast"
    await world.ask(
        "POST", f"{base}/quotas", 201, json={"name": queue, "resourceGroups": groups(2)}
    )
    door = {"name": "main", "tenant": tenant, "clusterQueue": queue}
    await world.ask("POST", f"{base}/queues", 201, json=door)
    image = {"image": "registry.test/a:1", "command": ["sleep", "60"]}
    job = await world.submit(tenant, gpu_count=0, deployment_type="docker", spec=image)

    async def says_so() -> bool:
        why = await world.ask("GET", f"/jobs/{job['id']}/why")
        return f"LocalQueue main of {tenant} is not on the cluster: Somebody" in why["sentence"]

    await world.until(says_so, "the job names the namespace")
    why = await world.ask("GET", f"/jobs/{job['id']}/why")
    assert why["fix"].startswith("Waiting does not help before what the sentence names is mended")
