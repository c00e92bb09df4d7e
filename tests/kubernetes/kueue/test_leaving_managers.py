"""A worker joins by accounts that an administrator made, and its manager leaves nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    CLUSTER_ROLE_BINDING,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    NAMESPACE,
    SECRET,
)
from gpuplane.kube.kubeconfigs import write_kubeconfig
from gpuplane.kube.kueue.multikueue import CHECK, CONFIG, stale_secrets, stale_workers
from gpuplane.kube.kueue.multikueue import NAMESPACE as KUEUE
from gpuplane.loops.kueue.retiring import revoke_all
from gpuplane.provisioning.access import (
    access_objects,
    ensure_access,
    ensure_multikueue_account,
)
from tests.faults.inside import Inside, inside
from tests.kubernetes.clusters.worlds import end_of, registered, steps_of
from tests.kubernetes.kueue.dispatching import IN_TURN
from tests.kubernetes.kueue.hubs import Hub, asked, hub_of
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

pytestmark = IN_TURN


@pytest.fixture
async def hub(rig: RunningCluster, second_rig: RunningCluster) -> AsyncIterator[Hub]:
    """A manager, and a worker whose administrator's accounts go afterwards."""
    async with hub_of(rig, second_rig) as made:
        yield made
        await revoke_all(made.worker)
        for each in reversed(access_objects()):
            kind, about = await made.worker.kind_of(each), each["metadata"]
            if kind != NAMESPACE:
                await made.worker.delete(kind, about["name"], about.get("namespace"))


async def queue_of(hub: Hub) -> dict[str, Any]:
    """Return what the manager's queue says."""
    found = await hub.manager.get(CLUSTER_QUEUE.at("v1beta2"), f"{hub.prefix}-all")
    spec: dict[str, Any] = found["spec"]
    return spec


async def runs(it: Inside, hub: Hub, tenant: str) -> None:
    """Have a job go to the worker and end there."""
    job = await asked(it, "POST", "/jobs", **hub.body("first", "exit 0"), tenant_id=tenant)

    async def over() -> bool:
        found = await asked(it, "GET", f"/jobs/{job['id']}")
        assert found["status"] not in ("failed", "cancelled"), found
        return bool(found["status"] == "completed" and found["cluster_id"] == hub.cluster_ids[-1])

    await wait_until_async(over, "it ended on the worker", deadline_s=90, interval_s=0.2)


async def test_accounts_of_an_administrator_suffice_for_a_worker_and_its_manager_leaves_nothing(
    hub: Hub, second_rig: RunningCluster, tmp_path: Path
) -> None:
    admin = second_rig.connection()
    limited = await ensure_access(admin)
    await ensure_multikueue_account(admin)
    async with KubeClient(limited) as client:
        assert not await client.can_i("create", CLUSTER_ROLE_BINDING)
    more = {"addons": [], "admission": "kueue"}
    async with inside(tmp_path) as it:
        for name, text, role in zip(
            hub.names, (hub.texts[0], write_kubeconfig(limited)), ("manager", "worker"), strict=True
        ):
            made = await registered(it, name, text, role=role, **more)
            hub.cluster_ids.append(made["cluster"]["id"])
        step = (await steps_of(it, made["workflow_id"]))["join_multikueue"]
        assert (step["status"], step["output"]["managers"]) == ("completed", [hub.names[0]])
        tenant = str((await asked(it, "POST", "/tenants", name=hub.tenant))["id"])
        await hub.connect(it, 1)
        await runs(it, hub, tenant)

        deleted = await it.client.delete(f"/clusters/{hub.names[0]}")
        run = deleted.json()["workflow_id"]
        assert (await end_of(it, run))["status"] == "completed"
        left = (await steps_of(it, run))["leave_managers"]["output"]
        assert left["workers"] == [hub.names[1]]
        [told] = left["warnings"]
        assert told.startswith(f"On {hub.names[1]} stays what these credentials may not delete: ")
        assert "ClusterRole gpuplane-multikueue" in told, "an administrator made it"
        kinds = (ADMISSION_CHECK, CHECK), (MULTIKUEUE_CONFIG, CONFIG)
        for kind, name in kinds:
            assert await hub.manager.find(kind.at("v1beta2"), name) is None
        assert stale_secrets(await hub.manager.list(SECRET, KUEUE), ()) == []
        assert stale_workers(await hub.manager.list(MULTIKUEUE_CLUSTER.at("v1beta2")), ()) == []
        stopped = await queue_of(hub)
        assert stopped["stopPolicy"] == "Hold"
        assert CHECK not in str(stopped.get("admissionChecksStrategy"))

        again = await registered(it, hub.names[0], hub.texts[0], role="manager", **more)
        hub.cluster_ids.append(again["cluster"]["id"])
        assert (await queue_of(hub))["stopPolicy"] == "None"
