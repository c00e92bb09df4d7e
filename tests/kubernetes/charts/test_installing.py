"""The charts installed by Helm on a real cluster, and the extender with the chart's rights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import pytest

from gpuplane.extender.serving import Extender, ExtenderSettings
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import DEPLOYMENT, POD, SECRET
from tests.kubernetes.accounts import PRODUCT, account_of, run
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

# The webhooks of this release would be asked about every test's GPUWorkloads: its pods stay
# pending, so that the API server finds nobody to ask, and goes on.
ALONE = ["server.enabled=false", "operator.webhooks.failurePolicy=Ignore",
         "operator.nodeSelector.no=where"]  # fmt: skip


async def test_an_upgrade_keeps_the_certificate_and_changes_what_was_asked_for(
    rig: RunningCluster, namespace: str
) -> None:
    release, secret = namespace, f"{namespace}-gpuplane-operator-webhooks"
    sets = [word for value in ALONE for word in ("--set", value)]
    reach = ["--kubeconfig", str(rig.kubeconfig), "-n", namespace]
    install = ["upgrade", "--install", release, str(PRODUCT), "--skip-crds", *reach, *sets]
    async with KubeClient(rig.connection()) as client:
        try:
            await asyncio.to_thread(run, rig, "helm", *install)
            first = await client.get(SECRET, secret, namespace)
            again = [*install, "--set", "operator.replicas=3"]
            await asyncio.to_thread(run, rig, "helm", *again)
            second = await client.get(SECRET, secret, namespace)
            found = await client.get(DEPLOYMENT, f"{release}-gpuplane-operator", namespace)
        finally:
            await asyncio.to_thread(run, rig, "helm", "uninstall", release, *reach)
        assert second["data"] == first["data"]
        assert found["spec"]["replicas"] == 3


@pytest.mark.parametrize("binds", [False, True], ids=["advises", "binds"])
async def test_the_extender_does_its_work_with_the_rights_of_the_chart(
    rig: RunningCluster, namespace: str, add_nodes: Callable[..., list[str]], *, binds: bool
) -> None:
    (node,) = add_nodes("h100", 1, f"o-x-{namespace[-6:]}")
    values = ["extender.enabled=true", f"extender.bind={str(binds).lower()}"]
    async with (
        KubeClient(rig.connection()) as admin,
        account_of(rig, admin, namespace, "extender", *values) as connection,
        KubeClient(connection) as client,
    ):
        assert len(await _serve_one_pod(client, admin, namespace, node, binds=binds)) == 2


async def _serve_one_pod(
    client: KubeClient, admin: KubeClient, namespace: str, node: str, *, binds: bool
) -> list[str]:
    """Return the GPUs that the extender chose for one pod, bound by it or by somebody else."""
    role = Extender(client, ExtenderSettings(host="127.0.0.1", port=0, binds=binds))
    port = await role.start()
    try:
        assert await role.wait_ready(20)
        pod = await admin.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": "p",
                    "namespace": namespace,
                    "annotations": {"rig.gpuplane.io/hold": "true"},
                },
                "spec": {
                    "schedulerName": "nobody",
                    "containers": [
                        {
                            "name": "c",
                            "image": "x",
                            "resources": {"limits": {"nvidia.com/gpu": "2"}},
                        }
                    ],
                },
            }
        )
        if binds:
            asked = {"PodName": "p", "PodNamespace": namespace, "Node": node,
                     "PodUID": pod["metadata"]["uid"]}  # fmt: skip
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                answer = await http.post("/bind", json=asked)
            assert answer.json() == {"Error": ""}
        else:
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            await admin.create(
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "p", "namespace": namespace},
                    "target": target,
                },
                namespace,
            )
        return await _chosen_gpus(admin, namespace)
    finally:
        await role.stop()


async def _chosen_gpus(admin: KubeClient, namespace: str) -> list[str]:
    async def written() -> str:
        found = await admin.get(POD, "p", namespace)
        return str((found["metadata"].get("annotations") or {}).get("gpuplane.io/gpu-ids", ""))

    return (await wait_until_async(written, "the GPUs are written down")).split(",")
