"""A cluster that was deleted and registered again admits work through the queues it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.faults.inside import Inside, inside
from tests.kubernetes.clusters.worlds import end_of, registered
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async


async def asked(it: Inside, method: str, path: str, **body: Any) -> dict[str, Any]:
    """Ask the API and return the body of an answer that is no refusal."""
    answer = await it.client.request(method, path, json=body or None)
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


def gpus(count: int) -> list[dict[str, Any]]:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": count}
    return [
        {
            "coveredResources": ["nvidia.com/gpu"],
            "flavors": [{"name": "nvidia-l4", "resources": [quota]}],
        }
    ]


async def stands(it: Inside, what: str, name: str, standing: str) -> None:
    """Wait until a queue stands as it should."""

    async def there() -> bool:
        found = await asked(it, "GET", f"/clusters/east/{what}")
        told = [each for each in found["items"] if each["name"] == name]
        return [each["standing"] for each in told] == [standing]

    await wait_until_async(there, f"{what} {name} is {standing}", deadline_s=60)


async def test_queues_of_a_cluster_that_was_deleted_are_declared_again_and_admit_work(
    rig: RunningCluster, tmp_path: Path
) -> None:
    text, prefix = rig.kubeconfig.read_text(), f"k{uuid4().hex[:6]}"
    queue, door = f"{prefix}-q", f"{prefix}-main"
    async with inside(tmp_path) as it:
        await registered(it, "east", text, addons=[], admission="kueue")
        tenant = await asked(it, "POST", "/tenants", name=prefix)
        await asked(it, "POST", "/projects", name="lab", tenant_id=tenant["id"])
        await asked(it, "POST", "/clusters/east/quotas", name=queue, resourceGroups=gpus(2))
        wanted = [{"name": door, "clusterQueue": queue}]
        made = await asked(it, "POST", "/clusters/east/tenants", tenant=prefix, queues=wanted)
        assert (await end_of(it, made["runId"]))["status"] == "completed"
        await stands(it, "queues", door, "active")
        deleted = await asked(it, "DELETE", "/clusters/east")
        assert (await end_of(it, deleted["workflow_id"]))["status"] == "completed"

        await registered(it, "east", text, addons=[], admission="kueue")
        await stands(it, "quotas", queue, "active")
        await stands(it, "queues", door, "active")
        changed = {"resourceGroups": gpus(1)}
        await asked(it, "PUT", f"/clusters/east/quotas/{queue}", **changed)
        await stands(it, "quotas", queue, "active")
        spec = {"image": "registry.test/python:3.11", "command": ["true"]}
        job = await asked(
            it, "POST", "/jobs", name="back", cluster="east", tenant_id=tenant["id"],
            gpu_count=1, gpu_type="L4", memory_gb=1, deployment_type="docker", spec=spec,
            placement={"node_selector": {"kubernetes.io/hostname": "l4-1"}},
        )  # fmt: skip
        assert await it.wait_for(job["id"], "completed", "failed") == "completed"
        base = f"/clusters/east/quotas/{queue}"
        gone = await asked(it, "DELETE", f"/clusters/east/tenants/{prefix}")
        assert (await end_of(it, gone["runId"]))["status"] == "completed"
        assert (await it.client.delete(base)).is_success
