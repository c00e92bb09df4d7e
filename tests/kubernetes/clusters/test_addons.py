"""Add-ons as Helm releases on a real API server: installed, adopted, or left out by name."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.domains.clusters.service import AddonStatus
from gpuplane.kube import kinds
from gpuplane.kube.helm import Chart, Helm
from gpuplane.loops.clusters.addons import KEY_SECRET, adopt, bring_in
from gpuplane.loops.clusters.catalogue import Addon, find_addon
from gpuplane.loops.clusters.tools import AddonSettings, ClusterTools
from tests.faults.inside import Inside, inside
from tests.kubernetes.clusters.worlds import pack, registered
from tests.kubernetes.rigged import RunningCluster


@pytest.fixture
def nfd(namespace: str) -> Addon:
    """The add-on NFD, in a namespace of the test's own and under a name that nobody else has."""
    found = find_addon("nfd")
    assert found is not None
    return dataclasses.replace(
        found, namespace=namespace, release="nfd-of-test", chart=f"nfd-{namespace}", served=""
    )


@pytest.fixture
async def world(
    rig: RunningCluster, tmp_path: Path
) -> AsyncIterator[tuple[Inside, ClusterTools, Any]]:
    """A control plane with the cluster registered, and tools that know Helm and a chart folder."""
    charts = tmp_path / "charts"
    charts.mkdir()
    async with inside(tmp_path) as it:
        await registered(it, "east", rig.kubeconfig.read_text(), addons=[])
        loop: Any = it.control.loops["clusters"]
        tools: ClusterTools = dataclasses.replace(
            loop._tools,
            addons=AddonSettings(helm=str(rig.binaries["helm"]), charts=str(charts)),
        )
        found = (await it.client.get("/clusters/east")).json()
        yield it, tools, await tools.cluster(found["id"])


async def test_a_chart_of_the_folder_is_installed_and_kept_when_it_is_tried_again(
    world: tuple[Inside, ClusterTools, Any], nfd: Addon
) -> None:
    it, tools, cluster = world
    pack(Path(tools.addons.charts), nfd)
    first = await bring_in(tools, cluster, nfd, None, 1)
    assert isinstance(first, AddonStatus)
    assert (first.state, first.message) == ("installed", "")
    helm = await tools.helm(cluster)
    release = await helm.status(nfd.release, nfd.namespace)
    assert release is not None
    assert (release.status, release.revision) == ("deployed", 1)
    await bring_in(tools, cluster, nfd, None, 1)
    again = await helm.status(nfd.release, nfd.namespace)
    assert again is not None
    assert again.revision == 1
    listed = (await it.client.get("/clusters/east/addons")).json()["items"]
    assert {each["name"]: each["state"] for each in listed}["nfd"] == "installed"
    await helm.uninstall(nfd.release, nfd.namespace)


@pytest.mark.parametrize("repo", ["", "https://127.0.0.1:1/charts"], ids=["none", "away"])
async def test_a_chart_that_cannot_be_had_is_told_by_name_and_no_try_is_wasted_on_it(
    world: tuple[Inside, ClusterTools, Any], nfd: Addon, repo: str
) -> None:
    it, tools, cluster = world
    nowhere = dataclasses.replace(nfd, repo=repo)
    status = await bring_in(tools, cluster, nowhere, None, 1)
    assert isinstance(status, AddonStatus)
    assert status.state == "failed"
    assert "cannot be had" in status.message
    assert nfd.chart in status.message
    assert f"{nfd.chart_name}-{nfd.version}.tgz into the folder of" in status.message
    assert (await it.client.get("/clusters/east")).json()["state"] == "AVAILABLE"


async def test_a_release_of_somebody_else_is_adopted_as_it_is(
    world: tuple[Inside, ClusterTools, Any], nfd: Addon
) -> None:
    _, tools, cluster = world
    pack(Path(tools.addons.charts), nfd)
    helm: Helm = await tools.helm(cluster)
    path = Path(tools.addons.charts) / f"{nfd.chart_name}-{nfd.version}.tgz"
    await helm.upgrade_install("theirs", nfd.namespace, Chart(str(path)), {})
    left = await bring_in(tools, cluster, nfd, None, 1)
    assert isinstance(left, AddonStatus)
    assert left.state == "present"
    assert "theirs" in left.message
    taken = await adopt(tools, cluster, nfd)
    assert isinstance(taken, AddonStatus)
    assert (taken.state, taken.release_name) == ("adopted", "theirs")
    kept = await bring_in(tools, cluster, nfd, None, 1)
    assert isinstance(kept, AddonStatus)
    assert (kept.state, kept.release_name) == ("adopted", "theirs")
    await helm.uninstall("theirs", nfd.namespace)


async def test_what_was_installed_without_helm_is_adopted_by_a_release(
    world: tuple[Inside, ClusterTools, Any], nfd: Addon, namespace: str
) -> None:
    _, tools, cluster = world
    pack(Path(tools.addons.charts), nfd)
    name = f"{nfd.release}-marks"
    about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    async with tools.client(cluster) as client:
        await client.create(about, namespace)
        left = await bring_in(tools, cluster, nfd, None, 1)
        assert isinstance(left, AddonStatus)
        assert left.state == "present"
        assert "clusters adopt" in left.message
        taken = await adopt(tools, cluster, nfd)
        assert isinstance(taken, AddonStatus)
        assert (taken.state, taken.release_name) == ("adopted", nfd.release)
        owned = await client.get(kinds.CONFIG_MAP, name, namespace)
    assert owned["metadata"]["annotations"]["meta.helm.sh/release-name"] == nfd.release
    helm: Helm = await tools.helm(cluster)
    await helm.uninstall(nfd.release, namespace)


def writing_to(tools: ClusterTools, receiver: str) -> ClusterTools:
    return dataclasses.replace(tools, addons=dataclasses.replace(tools.addons, receiver=receiver))


async def test_remote_write_is_off_until_there_is_a_receiver_and_has_a_key_that_holds(
    world: tuple[Inside, ClusterTools, Any], namespace: str
) -> None:
    it, tools, cluster = world
    found = find_addon("prometheus")
    assert found is not None
    prometheus = dataclasses.replace(
        found, namespace=namespace, release="prom-of-test", chart=f"prom-{namespace}", served=""
    )
    pack(Path(tools.addons.charts), prometheus)
    helm: Helm = await tools.helm(cluster)

    async def bring(receiver: str) -> tuple[int, dict[str, Any]]:
        """Return the revision of the release, and what it is told of Prometheus."""
        became = await bring_in(writing_to(tools, receiver), cluster, prometheus, None, 1)
        assert isinstance(became, AddonStatus)
        assert (became.state, became.message) == ("installed", "")
        release = await helm.status(prometheus.release, namespace)
        assert release is not None
        values = await helm.get_values(prometheus.release, namespace)
        told = values["prometheus"]["prometheusSpec"]
        assert told["serviceMonitorSelectorNilUsesHelmValues"] is False
        written = {key: told[key] for key in ("remoteWrite", "externalLabels") if key in told}
        return release.revision, written

    async def key_there() -> str | None:
        """Return the key that Prometheus has there."""
        async with tools.client(cluster) as client:
            kept = await client.find(kinds.SECRET, KEY_SECRET, namespace)
        return None if kept is None else base64.b64decode(kept["data"]["key"]).decode()

    async def keys() -> dict[str, bool]:
        """Return the keys that were handed over by their hints, and whether they hold."""
        listed = (await it.client.get("/clusters/east/keys")).json()["items"]
        return {
            each["hint"]: each["revoked_at"] is None
            for each in listed
            if each["issued_by"] == "system"
        }

    assert await bring("") == (1, {})
    assert (await key_there(), await keys()) == (None, {})
    revision, told = await bring("https://metrics.example/write")
    assert revision == 2
    assert told["remoteWrite"][0]["url"] == "https://metrics.example/write"
    assert told["remoteWrite"][0]["authorization"]["credentials"]["name"] == KEY_SECRET
    assert told["externalLabels"] == {"cluster": "east", "cluster_id": str(cluster.id)}
    first = await key_there()
    assert first is not None
    assert await keys() == {first[:11]: True}
    assert (await bring("https://metrics.example/write"))[0] == 2
    assert await key_there() == first
    listed = (await it.client.get("/clusters/east/keys")).json()["items"]
    for each in listed:
        await it.client.delete(f"/clusters/east/keys/{each['id']}")
    assert (await bring("https://metrics.example/write"))[0] == 2
    second = await key_there()
    assert second is not None
    assert await keys() == {first[:11]: False, second[:11]: True}
    assert await bring("") == (3, {})
    await helm.uninstall(prometheus.release, namespace)
