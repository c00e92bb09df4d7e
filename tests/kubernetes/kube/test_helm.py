"""Helm through its binary, on the rig's cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.helm import Chart, Helm, HelmError
from tests.kubernetes.rigged import RunningCluster

TEMPLATE = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}
data:
  count: {{ .Values.count | quote }}
{{ if .Values.broken }}{{ fail "this chart is broken" }}{{ end }}
"""
SCHEMA = '{"properties": {"count": {"type": "integer"}, "password": {"enum": ["a", "b"]}}}'


@pytest.fixture
def chart(tmp_path: Path) -> Chart:
    folder = tmp_path / "little"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: little\nversion: 0.1.0\n")
    (folder / "values.schema.json").write_text(SCHEMA)
    (folder / "templates" / "map.yaml").write_text(TEMPLATE)
    return Chart(str(folder))


@pytest.fixture
def helm(rig: RunningCluster, tmp_path: Path) -> Helm:
    return Helm(rig.connection(), binary=rig.binaries["helm"], home=tmp_path / "helm")


async def test_a_release_is_installed_brought_forward_back_and_taken_away(
    helm: Helm, chart: Chart, namespace: str, client: KubeClient
) -> None:
    first = await helm.upgrade_install("one", namespace, chart, {"count": 1})
    assert (first.name, first.revision, first.status) == ("one", 1, "deployed")
    second = await helm.upgrade_install("one", namespace, chart, {"count": 2})
    assert (second.revision, second.chart) == (2, "little-0.1.0")
    assert (await client.get(kinds.CONFIG_MAP, "one", namespace))["data"] == {"count": "2"}
    listed = await helm.list(namespace)
    assert [dataclasses.replace(one, description="") for one in listed] == [
        dataclasses.replace(second, description="")
    ]
    assert await helm.get_values("one", namespace) == {"count": 2}
    await helm.rollback("one", namespace)
    assert (await client.get(kinds.CONFIG_MAP, "one", namespace))["data"] == {"count": "1"}
    found = await helm.status("one", namespace)
    assert found is not None
    assert found.revision == 3
    assert await helm.uninstall("one", namespace)
    assert not await helm.uninstall("one", namespace)
    assert await helm.status("one", namespace) is None
    assert await client.find(kinds.CONFIG_MAP, "one", namespace) is None


async def test_objects_of_others_are_taken_over_only_when_that_is_asked_for(
    helm: Helm, chart: Chart, namespace: str, client: KubeClient
) -> None:
    meta = {"name": "one", "namespace": namespace}
    await client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    with pytest.raises(HelmError) as caught:
        await helm.upgrade_install("one", namespace, chart, {"count": 1})
    assert caught.value.reason == "OwnedByOthers"
    found = await helm.upgrade_install("one", namespace, chart, {"count": 1}, take_ownership=True)
    assert found.status == "deployed"


async def test_what_hinders_it_is_told_in_a_word_and_a_sentence_without_secrets(
    rig: RunningCluster, helm: Helm, chart: Chart, namespace: str, tmp_path: Path
) -> None:
    stranger = dataclasses.replace(rig.connection(), token="nobody-at-all")
    other = Helm(stranger, binary=rig.binaries["helm"], home=tmp_path / "other")
    away = dataclasses.replace(rig.connection(), server="https://127.0.0.1:1")
    lost = Helm(away, binary=rig.binaries["helm"], home=tmp_path / "lost")
    cases = [
        (helm, chart, {"count": "many"}, "InvalidValues", "got string, want integer"),
        (helm, chart, {"password": "hunter2hunter2"}, "InvalidValues", "password"),
        (helm, chart, {"broken": True}, "ChartFailed", "this chart is broken"),
        (helm, Chart(str(tmp_path / "none")), {}, "ChartNotAvailable", "none"),
        (other, chart, {"count": 1}, "Unauthorized", "credentials"),
        (lost, chart, {"count": 1}, "Unreachable", "127.0.0.1:1"),
    ]
    for tried, where, values, reason, text in cases:
        with pytest.raises(HelmError) as caught:
            await tried.upgrade_install("one", namespace, where, values)
        assert (caught.value.reason, text in caught.value.message) == (reason, True)
        assert "hunter2" not in str(caught.value)
        assert "nobody-at-all" not in str(caught.value)
    with pytest.raises(HelmError) as caught:
        await helm.get_values("nobody", namespace)
    assert caught.value.reason == "NotThere"


async def test_manifests_are_made_without_a_cluster(
    rig: RunningCluster, chart: Chart, tmp_path: Path
) -> None:
    away = dataclasses.replace(rig.connection(), server="https://127.0.0.1:1")
    helm = Helm(away, binary=rig.binaries["helm"], home=tmp_path / "helm")
    made = await helm.template("one", "ml", chart, {"count": 7})
    assert 'count: "7"' in made
    assert (await helm.version()).startswith("v")
