"""Which add-ons fit a cluster, and what is done about each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane.kube.helm import HelmError, Release
from gpuplane.kube.kueue.dispatching import DISPATCHER
from gpuplane.loops.clusters.addons import chart_of
from gpuplane.loops.clusters.catalogue import (
    Addon,
    Situation,
    compute_values,
    decide,
    find_addon,
    load_addons,
)


def a_situation(**more: Any) -> Situation:
    """Return a cluster with NVIDIA devices and nothing in it."""
    plain = Situation("v1.34.4", "kubernetes", vendors=frozenset({"nvidia"}))
    return replace(plain, **more)


def addon(name: str) -> Addon:
    """Return an add-on of the list."""
    found = find_addon(name)
    assert found is not None
    return found


def test_the_list_has_what_a_registration_installs_in_its_order() -> None:
    assert [each.name for each in load_addons()] == [
        "nfd", "gpu-operator", "hami", "prometheus", "dcgm-exporter", "aibrix", "kueue",
    ]  # fmt: skip


def test_every_addon_is_pinned_to_one_version_and_to_versions_of_kubernetes() -> None:
    for each in load_addons():
        assert each.version[0] in "v0123456789"
        assert each.fits("v1.30.1")
        assert not each.fits("v1.10.0")
        assert not each.fits("v1.99.0")


@pytest.mark.parametrize("name", ["gpu-operator", "hami", "dcgm-exporter"])
def test_what_needs_nvidia_devices_is_left_out_without_them(name: str) -> None:
    decision = decide(addon(name), a_situation(vendors=frozenset({"habana"})))
    assert (decision.verb, decision.reason) == ("leave_out", "No node has NVIDIA devices.")


def test_what_is_absent_and_fits_is_installed() -> None:
    assert decide(addon("nfd"), a_situation()).verb == "install"
    assert decide(addon("hami"), a_situation()).verb == "install"


def test_a_version_of_kubernetes_that_a_chart_is_not_made_for_is_named() -> None:
    decision = decide(addon("kueue"), a_situation(kubernetes_version="v1.27.3"))
    assert decision.verb == "leave_out"
    assert "1.29 to 1.35" in decision.reason
    assert "v1.27.3" in decision.reason


def test_an_older_cluster_gets_the_newest_version_that_is_made_for_it() -> None:
    operator = addon("gpu-operator")
    assert operator.for_kubernetes("v1.34.4").version == "v25.10.1"
    old = operator.for_kubernetes("v1.29.2")
    assert (old.version, old.kubernetes) == ("v25.3.4", ("1.29", "1.33"))
    assert decide(old, a_situation(kubernetes_version="v1.29.2")).verb == "install"


def test_a_cluster_that_no_version_is_made_for_is_told_all_there_are() -> None:
    ancient = addon("gpu-operator").for_kubernetes("v1.40.0")
    decision = decide(ancient, a_situation(kubernetes_version="v1.40.0"))
    assert decision.verb == "leave_out"
    for word in ("v25.10.1", "1.30 to 1.35", "v25.3.4", "1.29 to 1.33", "v1.40.0"):
        assert word in decision.reason


def test_every_addon_says_where_its_version_was_read() -> None:
    for each in load_addons():
        assert each.version.removeprefix("v") in each.source.replace("\n", " ") or each.older


def test_the_page_tells_the_versions_that_are_pinned() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/clusters.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    for each in load_addons():
        versions = ", else ".join(pin.version for pin in each.pins)
        ranges = ", ".join(f"{first} to {last}" for first, last in
                           (pin.kubernetes for pin in each.pins))  # fmt: skip
        assert rows[each.name].endswith(f"{versions} | {ranges} |")


def test_what_an_addon_needs_and_is_not_there_is_named() -> None:
    needed = frozenset({"gateway.networking.k8s.io", "gateway.envoyproxy.io"})
    decision = decide(addon("aibrix"), a_situation(served=frozenset({"gateway.networking.k8s.io"})))
    assert decision.verb == "leave_out"
    assert decision.reason == "It needs gateway.envoyproxy.io, which is not served there."
    assert decide(addon("aibrix"), a_situation(served=needed)).verb == "install"


def test_what_was_not_asked_for_is_left_out() -> None:
    decision = decide(addon("nfd"), a_situation(wanted=frozenset({"kueue"})))
    assert (decision.verb, decision.reason) == ("leave_out", "It was not asked for.")


def test_a_release_of_somebody_else_is_left_alone_until_it_is_adopted() -> None:
    theirs = Release("my-nfd", "kube-system", 3, "deployed", "node-feature-discovery-0.16.0")
    seen = a_situation(releases=(theirs,))
    left = decide(addon("nfd"), seen)
    assert (left.verb, left.release) == ("present", theirs)
    assert "my-nfd" in left.reason
    adopted = decide(addon("nfd"), seen, {"kube-system/my-nfd"})
    assert (adopted.verb, adopted.release) == ("install", theirs)


def test_a_release_of_ours_is_kept_at_the_pinned_version_and_brought_to_it_else() -> None:
    nfd = addon("nfd")
    now = Release(nfd.release, nfd.namespace, 1, "deployed", f"{nfd.chart_name}-{nfd.version}")
    old = Release(nfd.release, nfd.namespace, 1, "deployed", f"{nfd.chart_name}-0.15.0")
    broken = Release(nfd.release, nfd.namespace, 1, "failed", f"{nfd.chart_name}-{nfd.version}")
    assert decide(nfd, a_situation(releases=(now,))).verb == "keep"
    assert decide(nfd, a_situation(releases=(old,))).verb == "install"
    assert decide(nfd, a_situation(releases=(broken,))).verb == "install"


def test_what_is_served_without_a_release_is_somebody_elses() -> None:
    decision = decide(addon("kueue"), a_situation(served=frozenset({"kueue.x-k8s.io"})))
    assert decision.verb == "present"
    assert "without Helm" in decision.reason


def test_the_exporter_is_left_out_where_the_gpu_operator_brings_it() -> None:
    decision = decide(addon("dcgm-exporter"), a_situation(in_place=frozenset({"gpu-operator"})))
    assert decision.reason == "gpu-operator brings the same."


@pytest.mark.parametrize("name", ["nfd", "gpu-operator", "prometheus"])
def test_what_openshift_brings_itself_is_refused_there_by_name(name: str) -> None:
    decision = decide(addon(name), a_situation(distribution="openshift"))
    assert decision.verb == "leave_out"
    assert decision.reason.startswith("OpenShift: ")
    assert decide(addon("hami"), a_situation(distribution="openshift")).verb == "install"


def test_settings_fill_in_the_values_of_a_chart() -> None:
    values = compute_values(addon("hami"), {"hami_port": 32_000})
    assert values["scheduler"]["service"]["monitorPort"] == 32_000
    assert addon("hami").values.get("scheduler") is None


def test_a_chart_in_no_repository_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(HelmError, match=r"aibrix-0\.7\.0\.tgz"):
        chart_of(addon("aibrix"), "")
    (tmp_path / "aibrix-0.7.0.tgz").write_bytes(b"")
    assert chart_of(addon("aibrix"), str(tmp_path)).ref.endswith("aibrix-0.7.0.tgz")
    published = "node-feature-discovery-chart-0.18.3.tgz"
    (tmp_path / published).write_bytes(b"")
    assert chart_of(addon("nfd"), str(tmp_path)).ref.endswith(published)


def test_the_kueue_of_a_manager_leaves_nominating_to_the_order_of_preference() -> None:
    values = compute_values(addon("kueue"), {}, "manager")
    told = yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"])
    assert told["multiKueue"] == {"dispatcherName": DISPATCHER}
    assert told["integrations"]["frameworks"][0] == "batch/job"
    values = compute_values(addon("kueue"), {}, "worker")
    assert yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"]) == {
        name: each for name, each in told.items() if name != "multiKueue"
    }


@pytest.mark.parametrize("role", ["manager", "worker"])
def test_the_kueue_that_is_installed_admits_services_and_holds_up_no_other_pods(role: str) -> None:
    values = compute_values(addon("kueue"), {}, role)
    told = yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"])
    assert "deployment" in told["integrations"]["frameworks"]
    assert "pod" not in told["integrations"]["frameworks"]
