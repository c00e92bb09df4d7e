"""A registration brings the published charts of the add-ons into a cluster of this test's own.

Only where `GPUPLANE_PUBLISHED_CHARTS` names a folder that has them. Images do not run there: what
makes the charts' pods is real, and KWOK says of each that it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.helm import Helm
from gpuplane.kube.kinds import DAEMON_SET, NODE
from gpuplane.loops.clusters.catalogue import find_addon
from rig.binaries import Binaries
from rig.rigs import RigPlan, running_rig
from tests.faults.inside import QUICK, Inside, inside
from tests.kubernetes.clusters.test_published_charts import FOLDER, file_of
from tests.kubernetes.clusters.worlds import register
from tests.waiting import wait_until_async

NAMES = ("nfd", "gpu-operator", "hami", "prometheus")
RUNTIME = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
"""What the GPU operator makes once it runs; without it no pod of HAMi's plugin is let in."""
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
DEVICE_PODS = {"nfd-node-feature-discovery-worker": 2, "hami-device-plugin": 1}
"""The nodes that each is to run on: every one, and the one with GPUs."""


async def until_over(it: Inside, run_id: str) -> None:
    """Wait until a registration is done: charts are large, and their CRDs take their time."""

    async def over() -> str:
        run = (await it.client.get(f"/runs/{run_id}")).json()
        return str(run["status"]) if run["status"] in ("completed", "failed") else ""

    ended = await wait_until_async(over, "it is registered", deadline_s=600, interval_s=0.5)
    assert ended == "completed"


async def statuses(it: Inside) -> dict[str, tuple[str, str]]:
    listed: list[dict[str, Any]] = (await it.client.get("/clusters/east/addons")).json()["items"]
    return {each["name"]: (each["state"], each["message"]) for each in listed}


@pytest.mark.timeout(900)
async def test_published_charts_come_in_together_on_nodes_with_taints_and_stay_as_they_are(
    rig_binaries: Binaries, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in NAMES:
        addon = find_addon(name)
        assert addon is not None
        file_of(addon)
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_HELM", rig_binaries["helm"])
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_CHARTS", FOLDER)
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_NFD_DETECTION_TIMEOUT_S", "1")
    with running_rig(RigPlan(nodes=[("h100", 1), ("cpu", 1)], process_nodes=[])) as rig:
        text = rig.manager.kubeconfig.read_text()
        helm = Helm(read_kubeconfig(text), binary=rig_binaries["helm"], home=tmp_path / "helm")
        async with inside(tmp_path) as it, KubeClient(read_kubeconfig(text)) as client:
            await client.apply(RUNTIME)
            await client.patch(NODE, "h100-1", {"spec": {"taints": [TAINT]}})
            made = await register(it, "east", text)
            await until_over(it, made["workflow_id"])
            became = await statuses(it)
            assert {name: became[name] for name in NAMES} == dict.fromkeys(NAMES, ("installed", ""))
            assert became["dcgm-exporter"] == ("left_out", "gpu-operator brings the same.")
            assert became["kueue"][0] == "present", "the rig has its own"
            told = {each["metadata"]["name"]: each["status"]["numberReady"]
                    for each in await client.list(DAEMON_SET)}  # fmt: skip
            assert {name: told[name] for name in DEVICE_PODS} == DEVICE_PODS

            again = await it.client.post("/clusters/east/registration", json={})
            await until_over(it, again.json()["workflow_id"])
            assert {each.revision for each in await helm.list()} == {1}, "nothing was said anew"
