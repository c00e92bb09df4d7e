"""What was read in the charts of the pinned add-ons holds for the values that are given to them.

A table of facts about other people's charts, each looked up in the chart at its version. A version
that is pinned anew, or a value that was not looked up, fails here until somebody has looked.
`tests/kubernetes/clusters/test_published_charts.py` renders the charts themselves where they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest

from gpuplane.core.provisioning.specs import GPU_TAINT_KEY
from gpuplane.kube.accelerators import read_pci
from gpuplane.loops.clusters.catalogue import (
    Addon,
    Situation,
    compute_company,
    compute_values,
    find_addon,
    load_addons,
    merge_values,
)

NFD = "feature.node.kubernetes.io/"
FACTS: dict[tuple[str, str], frozenset[str]] = {
    ("nfd", "0.18.3"): frozenset({"worker.tolerations", "worker.config"}),
    ("gpu-operator", "v25.10.1"): frozenset(
        {
            "nfd.enabled",
            "mig.strategy",
            "dcgmExporter.enabled",
            "dcgmExporter.serviceMonitor.enabled",
            "daemonsets.tolerations",
            "devicePlugin.enabled",
        }
    ),
    ("hami", "2.9.0"): frozenset(
        {
            "scheduler.service.monitorPort",
            "devicePlugin.nvidiaNodeSelector",
            "devicePlugin.tolerations",
            "devicePlugin.runtimeClassName",
            "devicePlugin.gpuOperatorToolkitReady.enabled",
        }
    ),
    ("prometheus", "81.6.9"): frozenset(
        {
            "grafana.enabled",
            "alertmanager.enabled",
            "prometheus.prometheusSpec.serviceMonitorSelectorNilUsesHelmValues",
            "prometheus.prometheusSpec.podMonitorSelectorNilUsesHelmValues",
        }
    ),
    ("dcgm-exporter", "4.8.2"): frozenset({"serviceMonitor.enabled", "tolerations", "affinity"}),
    ("aibrix", "0.7.0"): frozenset(
        {
            "controllerManager.container.image.tag",
            "gatewayPlugin.container.image.tag",
            "gpuOptimizer.container.image.repository",
            "gpuOptimizer.container.image.tag",
            "metadata.service.container.image.tag",
        }
    ),
    ("kueue", "0.15.0"): frozenset({"managerConfig.controllerManagerConfigYaml"}),
}
"""Add-on and version to the paths of values that its values.yaml has; what is below is free."""

GPU_OPERATOR_KNOWS = frozenset(
    f"{NFD}{name}"
    for name in ("pci-10de.present", "pci-0302_10de.present", "pci-0300_10de.present")
)
"""By which of NFD's labels the GPU operator knows a node of GPUs: `gpuNodeLabels` of
controllers/state_manager.go at v25.10.1 and v25.3.4. It labels those `nvidia.com/gpu.present`."""

DEVICE_WORKLOADS = {
    "nfd": "worker.tolerations",
    "gpu-operator": "daemonsets.tolerations",
    "hami": "devicePlugin.tolerations",
    "dcgm-exporter": "tolerations",
}
"""What runs on GPU nodes, and where its chart takes tolerations; all but the GPU operator's have
none of their own for the taint of GPU nodes."""


def addon(name: str) -> Addon:
    found = find_addon(name)
    assert found is not None
    return found


def paths_of(values: Mapping[str, Any], known: frozenset[str], path: str = "") -> set[str]:
    """Return the paths of values, down to one that is known or to what is no map."""
    found = set()
    for key, each in values.items():
        own = f"{path}.{key}" if path else key
        if own in known or not isinstance(each, Mapping):
            found.add(own)
        else:
            found |= paths_of(each, known, own)
    return found


def value_at(values: Mapping[str, Any], path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


def variants() -> list[tuple[Addon, str, tuple[str, ...]]]:
    """Return every add-on with every role and company that changes its values."""
    return [
        (each, role, company)
        for each in load_addons()
        for role in (each.of_role or ("",))
        for count in range(len(each.beside) + 1)
        for company in combinations(sorted(each.beside), count)
    ]


@pytest.mark.parametrize(
    ("each", "role", "company"),
    variants(),
    ids=["-".join((each.name, role, *company)) for each, role, company in variants()],
)
def test_every_value_that_is_given_is_one_that_the_chart_of_this_version_has(
    each: Addon, role: str, company: tuple[str, ...]
) -> None:
    known = FACTS.get((each.name, each.version))
    assert known is not None, f"look at the chart {each.chart} {each.version}, then write it down"
    values = compute_values(each, {"hami_port": 31_993}, role, company)
    assert paths_of(values, known) <= known


def test_the_labels_of_nfd_are_those_by_which_the_gpu_operator_knows_its_nodes() -> None:
    config = compute_values(addon("nfd"), {})["worker"]["config"]["sources"]
    pci = config["pci"]
    device = {"class": "0302", "vendor": "10de", "device": "2330"}
    assert any(device["class"].startswith(each) for each in pci["deviceClassWhitelist"])
    fields = "_".join(device[each] for each in pci["deviceLabelFields"])
    [rule] = config["custom"]
    matched = rule["matchFeatures"][0]["matchExpressions"]
    assert rule["matchFeatures"][0]["feature"] == "pci.device"
    assert matched["vendor"] == {"op": "In", "value": [device["vendor"]]}
    assert any(re.search(each, device["class"]) for each in matched["class"]["value"])
    labels = {f"{NFD}pci-{fields}.present": "true"}
    labels |= {f"{NFD}{name}": value for name, value in rule["labels"].items()}
    assert GPU_OPERATOR_KNOWS & set(labels), "else none of its operands runs anywhere"
    assert ("0302", "10de", "2330") in read_pci(labels), "the model is told by the device"


@pytest.mark.parametrize(("name", "path"), DEVICE_WORKLOADS.items())
def test_what_looks_after_devices_runs_on_nodes_with_the_taint_of_gpu_nodes(
    name: str, path: str
) -> None:
    tolerations = value_at(compute_values(addon(name), {"hami_port": 1}), path)
    assert any(
        each["effect"] == "NoSchedule"
        and each["operator"] == "Exists"
        and each.get("key", GPU_TAINT_KEY) == GPU_TAINT_KEY
        for each in tolerations
    )


def test_hami_runs_where_the_labels_of_its_company_say_that_there_are_gpus() -> None:
    alone = compute_values(addon("hami"), {"hami_port": 1})["devicePlugin"]
    assert alone["nvidiaNodeSelector"] == {"gpu": None, f"{NFD}pci-10de.present": "true"}
    assert "runtimeClassName" not in alone, "nobody makes the class where there is no operator"
    beside = compute_values(addon("hami"), {"hami_port": 1}, "", {"gpu-operator"})["devicePlugin"]
    assert beside["nvidiaNodeSelector"] == {"gpu": None, "nvidia.com/gpu.present": "true"}
    assert beside["runtimeClassName"] == "nvidia"


@pytest.mark.parametrize(("company", "offers"), [((), True), (("hami",), False)])
def test_one_device_plugin_offers_the_gpus_and_not_none_or_two(
    company: tuple[str, ...], offers: bool
) -> None:
    values = compute_values(addon("gpu-operator"), {}, "", company)
    assert values.get("devicePlugin", {}).get("enabled", True) is offers


@pytest.mark.parametrize("name", ["gpu-operator", "dcgm-exporter"])
def test_the_exporter_is_scraped_where_there_is_a_prometheus_and_nowhere_else(name: str) -> None:
    path = {"gpu-operator": "dcgmExporter.serviceMonitor", "dcgm-exporter": "serviceMonitor"}[name]
    beside = compute_values(addon(name), {}, "", {"prometheus"})
    assert value_at(beside, path)["enabled"] is True
    alone = compute_values(addon(name), {})
    with_default = merge_values({"dcgmExporter": {"serviceMonitor": {"enabled": False}}}, alone)
    assert value_at(with_default, path)["enabled"] is False
    spec = compute_values(addon("prometheus"), {})["prometheus"]["prometheusSpec"]
    assert spec["serviceMonitorSelectorNilUsesHelmValues"] is False, "it takes monitors of others"


def a_situation(**more: Any) -> Situation:
    plain: dict[str, Any] = {
        "kubernetes_version": "v1.34.4",
        "distribution": "kubernetes",
        "vendors": frozenset({"nvidia"}),
    }
    return Situation(**(plain | more))


def test_company_is_what_is_in_and_what_the_same_registration_brings_in_later() -> None:
    operator, hami = addon("gpu-operator"), addon("hami")
    everything = compute_company(operator, a_situation())
    assert {"hami", "prometheus"} <= everything
    assert "nfd" not in everything, "it came before; were it in, that would be seen"
    alone = a_situation(wanted=frozenset({"gpu-operator"}))
    assert compute_company(operator, alone) == frozenset()
    assert compute_company(operator, a_situation(wanted=frozenset(), in_place=frozenset({"hami"})))
    assert "gpu-operator" not in compute_company(hami, a_situation()), "its chart was not to be had"
    openshift = a_situation(distribution="openshift")
    assert "prometheus" not in compute_company(operator, openshift)


def test_values_are_merged_as_helm_merges_them_and_a_null_takes_an_own_one_away() -> None:
    own = {"a": {"b": 1, "c": [1, 2]}, "d": None, "e": "x"}
    assert merge_values(own, {"a": {"c": [3], "f": None}, "e": None}) == {
        "a": {"b": 1, "c": [3], "f": None},
        "d": None,
    }
    assert own["a"] == {"b": 1, "c": [1, 2]}


def test_a_chart_is_found_by_the_name_that_its_project_gives_the_file() -> None:
    assert addon("nfd").file_names == (
        "node-feature-discovery-0.18.3.tgz",
        "node-feature-discovery-chart-0.18.3.tgz",
    )
    assert addon("hami").file_names == ("hami-2.9.0.tgz",)
