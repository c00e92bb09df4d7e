"""Clusters that are not as one would like: labels that never come, charts that nobody has, an
OpenShift that makes do with its own."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kube.accelerators import NFD
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.errors import KubeError
from gpuplane.loops.clusters.catalogue import find_addon
from rig.api import Api
from rig.binaries import Binaries
from rig.nodes import build_node
from rig.rigs import RigPlan, running_rig
from tests.faults.inside import QUICK, Inside, inside
from tests.kubernetes.clusters.worlds import pack, registered, steps_of
from tests.waiting import wait_until_async

NEVER_READY = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: stand-in, namespace: "{{ .Release.Namespace }}"}
spec:
  selector: {matchLabels: {app: stand-in}}
  template:
    metadata: {labels: {app: stand-in}}
    spec:
      nodeSelector: {nobody: has-this-label}
      containers: [{name: main, image: busybox}]
"""
OPENSHIFT = (
    ("security.openshift.io", "SecurityContextConstraints", "securitycontextconstraints"),
    ("route.openshift.io", "Route", "routes"),
    ("config.openshift.io", "Ingress", "ingresses"),
)
"""Group, kind and plural of what tells an OpenShift, and where its routes lead."""


def definition(group: str, kind: str, plural: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Groups of OpenShift are protected names, which Kubernetes lets nobody take by accident.
        "metadata": {"name": f"{plural}.{group}", "annotations": {
            "api-approved.kubernetes.io": "unapproved, a stand-in for tests"}},
        "spec": {"group": group, "scope": "Cluster", "versions": [version],
                 "names": {"plural": plural, "kind": kind}},
    }  # fmt: skip


async def pretend_openshift(text: str) -> None:
    """Serve the groups by which an OpenShift is known, with the domain of its routes."""
    domain = {"apiVersion": "config.openshift.io/v1", "kind": "Ingress",
              "metadata": {"name": "cluster"}, "spec": {"domain": "apps.east.example"}}  # fmt: skip
    async with KubeClient(read_kubeconfig(text)) as client:
        for each in OPENSHIFT:
            await client.apply(definition(*each))

        async def is_made() -> bool:
            try:
                await client.apply(domain)
            except KubeError:
                return False  # a new kind is not served at once, and its storage is made first
            return True

        await wait_until_async(is_made, "the domain of its routes is named", deadline_s=60)
        for group, _, _ in OPENSHIFT:
            assert await client.served(group) is not None


async def addons_of(it: Inside) -> dict[str, tuple[str, str]]:
    """Return what became of each add-on, and what is said of it."""
    found = (await it.client.get("/clusters/east/addons")).json()["items"]
    return {each["name"]: (each["state"], each["message"]) for each in found}


@pytest.mark.timeout(300)  # a cluster of its own, and Helm some times
async def test_labels_that_never_come_charts_nobody_has_and_an_openshift_are_told_and_it_goes_on(
    rig_binaries: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charts = tmp_path / "charts"
    charts.mkdir()
    nfd, hami = find_addon("nfd"), find_addon("hami")
    assert nfd is not None
    assert hami is not None
    pack(charts, nfd, NEVER_READY)
    pack(charts, hami)
    for name, value in {
        "HELM": str(rig_binaries["helm"]), "CHARTS": str(charts), "HAMI_SCHEDULER_PORT": "31994",
        "NFD_DETECTION_TIMEOUT_S": "0.5",
    }.items():  # fmt: skip
        monkeypatch.setitem(QUICK, f"GPUPLANE_CLUSTERS_{name}", value)
    with running_rig(RigPlan(workers=0, nodes=[], process_nodes=[], kueue=False)) as own:
        text = own.manager.kubeconfig.read_text()
        with contextlib.closing(own.manager.api()) as api:
            node = build_node("h100", "bare-1")
            labels = node["metadata"]["labels"]
            for name in [name for name in labels if name.startswith(NFD)]:
                del labels[name]
            api.create(node)
            async with inside(tmp_path / "plain") as it:
                made = await registered(it, "east", text, addons=["nfd", "aibrix"])
                await check_that_it_went_on_without_labels(it, made["workflow_id"])
            await pretend_openshift(text)
            async with inside(tmp_path / "openshift") as it:
                await registered(it, "east", text, addons=["gpu-operator", "hami", "prometheus"])
                await check_that_openshift_is_known(it)
            check_that_hami_may_run_there(api)


async def check_that_it_went_on_without_labels(it: Inside, run_id: str) -> None:
    step = (await steps_of(it, run_id))["deploy_nfd"]
    assert step["status"] == "completed"
    assert (step["output"]["labelled"], step["output"]["looks"]) == (0, 2)
    assert "No node had labels after 1 s" in step["output"]["warning"]
    became = await addons_of(it)
    assert became["nfd"][0] == "installed"
    assert "No node had labels" in became["nfd"][1]
    assert became["aibrix"][0] == "left_out"
    assert "gateway.envoyproxy.io" in became["aibrix"][1]
    node = (await it.client.get("/clusters/east/nodes/bare-1")).json()
    assert (node["type"], node["nfd_detected"], node["detection_method"]) == ("GPU", False, "hami")
    assert (await it.client.get("/clusters/east")).json()["state"] == "AVAILABLE"


async def check_that_openshift_is_known(it: Inside) -> None:
    cluster = (await it.client.get("/clusters/east")).json()
    assert (cluster["state"], cluster["distribution"]) == ("AVAILABLE", "openshift")
    assert cluster["ingress_url"] == "https://apps.east.example"
    became = await addons_of(it)
    for name in ("gpu-operator", "prometheus"):
        state, said = became[name]
        assert state == "left_out"
        assert said.startswith("OpenShift: ")
    assert became["hami"] == ("installed", "")


def check_that_hami_may_run_there(api: Api) -> None:
    """Look for the constraints that its accounts may use, and for the port that it was given."""
    base = "/apis/rbac.authorization.k8s.io/v1/namespaces/hami-system/rolebindings"
    bound = {
        (binding["roleRef"]["name"], subject["name"])
        for binding in (api.find(base) or {})["items"]
        for subject in binding["subjects"]
        if binding["roleRef"]["name"].startswith("system:openshift:")
    }
    assert bound == {
        ("system:openshift:scc:privileged", "hami-device-plugin"),
        ("system:openshift:scc:nonroot-v2", "hami-admission"),
    }
    marks = api.find("/api/v1/namespaces/hami-system/configmaps/hami-marks")
    assert marks is not None
    values = json.loads(marks["data"]["values"])
    assert values["scheduler"]["service"]["monitorPort"] == 31_994
