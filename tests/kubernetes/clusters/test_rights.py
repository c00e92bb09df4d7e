"""Rights that are missing are named one by one, and nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpuplane.kube.clients import KubeClient
from tests.faults.inside import inside
from tests.kubernetes.rigged import RunningCluster


@pytest.fixture
def reader(rig: RunningCluster, namespace: str) -> Iterator[tuple[str, str]]:
    """A ServiceAccount that may read nodes and nothing else, as (namespace, name)."""
    api = rig.api()
    about = {"name": f"{namespace}-reader"}
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": about, "rules": [rule]}  # fmt: skip
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": about,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **about},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    try:
        api.create(role)
        api.create(binding)
        yield namespace, "default"
        base = "/apis/rbac.authorization.k8s.io/v1"
        api.delete(f"{base}/clusterrolebindings/{about['name']}")
        api.delete(f"{base}/clusterroles/{about['name']}")
    finally:
        api.close()


async def test_each_missing_right_is_named_and_nothing_is_stored(
    rig: RunningCluster, reader: tuple[str, str], tmp_path: Path
) -> None:
    async with KubeClient(rig.connection()) as client:
        issued = await client.issue_token(reader[1], reader[0], expires_s=600)
    document = yaml.safe_load(rig.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": getattr(issued, "token", issued)}
    async with inside(tmp_path) as it:
        body = {"name": "poor", "kubeconfig": yaml.safe_dump(document)}
        refused = await it.client.post("/clusters", json=body)
        assert (refused.status_code, refused.json()["code"]) == (422, "cluster_rights_missing")
        named = {each["field"] for each in refused.json()["errors"]}
        assert {"pods", "pods/log", "jobs.batch", "namespaces"} <= named
        assert "nodes" not in named
        assert (await it.client.get("/clusters/poor")).status_code == 404


async def test_credentials_that_the_server_does_not_know_are_refused(
    rig: RunningCluster, tmp_path: Path
) -> None:
    document = yaml.safe_load(rig.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": "nobody-knows-this-token"}
    async with inside(tmp_path) as it:
        body = {"name": "stranger", "kubeconfig": yaml.safe_dump(document)}
        refused = await it.client.post("/clusters", json=body)
        assert (refused.status_code, refused.json()["code"]) == (
            422, "cluster_credentials_refused",
        )  # fmt: skip
        assert "nobody-knows-this-token" not in refused.text
