"""The charts of the add-ons as their projects publish them, rendered with the values they get here.

They are no part of this project: `GPUPLANE_PUBLISHED_CHARTS` names a folder that has them, each as
`helm pull` names it. Without it these tests are left out.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from gpuplane.core.provisioning.specs import GPU_TAINT_KEY
from gpuplane.kit.yaml_texts import load_documents
from gpuplane.kube.credentials import Connection
from gpuplane.kube.hami import SCHEDULER_LABELS
from gpuplane.kube.helm import Chart, Helm
from gpuplane.loops.clusters.catalogue import (
    Addon,
    compute_values,
    find_addon,
    load_addons,
    merge_values,
)
from rig.binaries import Binaries
from tests.unit.loops.clusters.test_charts_as_published import FACTS, NFD

# Read once: every test gets an environment without the developer's settings.
FOLDER = os.environ.get("GPUPLANE_PUBLISHED_CHARTS", "")
PORT = 31_990
WRITE = {
    "url": "https://metrics.example/write",
    "authorization": {"credentials": {"name": "gpuplane-metrics-key", "key": "key"}},
}
Object = dict[str, Any]


def file_of(addon: Addon) -> Path:
    """Return the file of an add-on's chart; without one the test is left out."""
    if not FOLDER:
        pytest.skip("published charts: GPUPLANE_PUBLISHED_CHARTS names no folder that has them")
    for name in addon.file_names:
        if (path := Path(FOLDER, name)).is_file():
            return path
    pytest.skip(f"published charts: {FOLDER} has no {' or '.join(addon.file_names)}")


def pinned() -> list[Any]:
    """Return each add-on in each of its versions."""
    return [
        pytest.param(
            addon.for_kubernetes(f"v{pin.kubernetes[0]}.0"), id=f"{addon.name}-{pin.version}"
        )
        for addon in load_addons()
        for pin in addon.pins
    ]


@pytest.fixture
def helm(rig_binaries: Binaries, tmp_path: Path) -> Helm:
    nowhere = Connection("https://127.0.0.1:1", token="t")
    return Helm(nowhere, binary=rig_binaries["helm"], home=tmp_path / "helm")


async def render(
    helm: Helm,
    addon: Addon,
    *company: str,
    more: Mapping[str, Any] | None = None,
    kubernetes: str = "",
    role: str = "worker",
) -> list[Object]:
    """Return what a chart makes with our values."""
    values = compute_values(addon, {"hami_port": PORT}, role, company)
    chart = Chart(str(file_of(addon)))
    text = await helm.template(
        addon.release,
        addon.namespace,
        chart,
        merge_values(values, more or {}),
        kube_version=kubernetes or "1.34.4",
    )
    return load_documents(text)


def find(objects: list[Object], kind: str, **labels: str) -> Object:
    """Return the one object of a kind, or the one of its name."""
    name = labels.get("name")
    found = [
        each
        for each in objects
        if each["kind"] == kind and name in (None, each["metadata"]["name"])
    ]
    [one] = found
    return one


@pytest.mark.parametrize("addon", pinned())
def test_the_values_that_were_looked_up_are_those_of_the_chart(addon: Addon) -> None:
    with tarfile.open(file_of(addon)) as archive:
        found = archive.extractfile(f"{addon.chart_name}/values.yaml")
        assert found is not None
        [defaults] = load_documents(found.read().decode())
    first = find_addon(addon.name)
    assert first is not None
    for path in FACTS[addon.name, first.version]:
        at: Any = defaults
        for part in path.split("."):
            assert isinstance(at, Mapping), path
            assert part in at, path
            at = at[part]


@pytest.mark.parametrize("addon", pinned())
async def test_a_chart_is_rendered_for_all_kubernetes_it_is_said_to_be_made_for(
    helm: Helm, addon: Addon
) -> None:
    for version in addon.kubernetes:
        for count in range(len(addon.beside) + 1):
            for company in combinations(sorted(addon.beside), count):
                assert await render(helm, addon, *company, kubernetes=f"{version}.0")


@pytest.mark.parametrize("addon", pinned())
async def test_what_tells_its_health_and_what_openshift_grants_are_there(
    helm: Helm, addon: Addon
) -> None:
    objects = await render(helm, addon)
    workload = addon.workload
    assert workload is not None
    if workload.kind != "StatefulSet":  # that of Prometheus is made by its operator
        told = [each["metadata"].get("labels") or {} for each in objects
                if each["kind"] == workload.kind]  # fmt: skip
        assert any(workload.labels.items() <= labels.items() for labels in told)
    if addon.served:
        groups = [each["spec"]["group"] for each in objects
                  if each["kind"] == "CustomResourceDefinition"]  # fmt: skip
        assert addon.served in groups
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    assert {name for names in addon.openshift.scc.values() for name in names} <= accounts


@pytest.mark.parametrize("name", ["nfd", "hami", "dcgm-exporter"])
async def test_daemons_run_on_nodes_with_the_taint_of_gpu_nodes(helm: Helm, name: str) -> None:
    addon = find_addon(name)
    assert addon is not None
    pod = find(await render(helm, addon), "DaemonSet")["spec"]["template"]["spec"]
    assert [each for each in pod["tolerations"] if each.get("key", GPU_TAINT_KEY) == GPU_TAINT_KEY]


@pytest.mark.parametrize("company", [(), ("hami",), ("hami", "prometheus")])
@pytest.mark.parametrize("addon", [each for each in pinned() if "gpu-operator" in str(each.id)])
async def test_the_gpu_operator_is_told_of_the_device_plugin_and_prometheus_beside_it(
    helm: Helm, addon: Addon, company: tuple[str, ...]
) -> None:
    spec = find(await render(helm, addon, *company), "ClusterPolicy")["spec"]
    assert spec["devicePlugin"]["enabled"] is ("hami" not in company)
    assert spec["dcgmExporter"]["serviceMonitor"]["enabled"] is ("prometheus" in company)
    assert spec["mig"]["strategy"] == "mixed"
    [toleration] = spec["daemonsets"]["tolerations"]
    assert toleration == {"operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize("company", [(), ("gpu-operator",)])
async def test_hami_runs_on_gpu_nodes_by_the_runtime_that_shows_it_devices(
    helm: Helm, company: tuple[str, ...]
) -> None:
    addon = find_addon("hami")
    assert addon is not None
    objects = await render(helm, addon, *company)
    pod = find(objects, "DaemonSet")["spec"]["template"]["spec"]
    if company:
        assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
        assert pod["runtimeClassName"] == "nvidia"
        assert [each["name"] for each in pod["initContainers"]] == ["toolkit-validation"]
    else:
        assert pod["nodeSelector"] == {f"{NFD}pci-10de.present": "true"}
        assert "runtimeClassName" not in pod
    config = find(objects, "ConfigMap", name="hami-scheduler-device")["data"]["device-config.yaml"]
    assert f'runtimeClassName: "{"nvidia" if company else ""}"' in config, "for jobs too"
    services = [each for each in objects if each["kind"] == "Service"
                and SCHEDULER_LABELS.items() <= each["metadata"]["labels"].items()]  # fmt: skip
    [ports] = [each["spec"]["ports"] for each in services]
    [monitor] = [each for each in ports if each["name"] == "monitor"]
    assert (monitor["port"], monitor["nodePort"]) == (PORT, PORT)


async def test_prometheus_takes_the_monitors_of_others_and_writes_with_the_clusters_key(
    helm: Helm,
) -> None:
    addon, exporter = find_addon("prometheus"), find_addon("dcgm-exporter")
    assert addon is not None
    assert exporter is not None
    more = {"prometheus": {"prometheusSpec": {"remoteWrite": [WRITE]}}}
    spec = find(await render(helm, addon, more=more), "Prometheus")["spec"]
    assert spec["remoteWrite"] == [WRITE]
    for kind in ("serviceMonitor", "podMonitor"):
        assert spec[f"{kind}Selector"] == {}
        assert spec[f"{kind}NamespaceSelector"] == {}
    monitors = [each for each in await render(helm, exporter, "prometheus")
                if each["kind"] == "ServiceMonitor"]  # fmt: skip
    assert len(monitors) == 1
    alone = await render(helm, exporter)
    assert "ServiceMonitor" not in {each["kind"] for each in alone}
    affinity = find(alone, "DaemonSet")["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" in affinity


@pytest.mark.parametrize("role", ["manager", "worker"])
async def test_the_pod_webhook_of_kueue_holds_up_no_pod_of_others_while_kueue_is_down(
    helm: Helm, role: str
) -> None:
    addon = find_addon("kueue")
    assert addon is not None
    objects = await render(helm, addon, role=role)
    hooks = find(objects, "MutatingWebhookConfiguration")["webhooks"]
    policies = {each["name"]: each["failurePolicy"] for each in hooks}
    assert policies["mpod.kb.io"] == "Ignore"
    assert policies["mdeployment.kb.io"] == "Fail", "or services would start unasked"
