"""The client's verbs against a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.kube import kinds, shapes
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.credentials import Connection
from gpuplane.kube.errors import (
    AlreadyThere,
    BadRequest,
    Conflict,
    FieldConflict,
    FieldOwner,
    Forbidden,
    Invalid,
    NotThere,
    TooManyRequests,
    Unauthorized,
)
from gpuplane.kube.informers import Informer
from gpuplane.kube.kubeconfigs import write_kubeconfig
from gpuplane.kube.sessions import ClientLimits
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async


def a_map(name: str, namespace: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


def a_pod(name: str, namespace: str, *command: str, kind: str = "process") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"rig.gpuplane.io/kind": kind},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "busybox", "command": list(command)}],
        },
    }


async def running(client: KubeClient, pod: dict[str, Any]) -> str:
    """Make a pod and return its name when it runs."""
    await client.create(pod)
    meta = pod["metadata"]

    async def runs() -> bool:
        found = await client.get(kinds.POD, meta["name"], meta["namespace"])
        statuses = found["status"].get("containerStatuses", [])
        return any("running" in one["state"] for one in statuses)

    await wait_until_async(runs, f"{meta['name']} runs", deadline_s=60)
    return str(meta["name"])


async def test_an_object_is_made_read_changed_replaced_and_deleted(
    client: KubeClient, namespace: str
) -> None:
    made = await client.create(a_map("a", namespace, x="1"))
    assert await client.get(kinds.CONFIG_MAP, "a", namespace) == made
    with pytest.raises(AlreadyThere):
        await client.create(a_map("a", namespace))
    await client.patch(kinds.CONFIG_MAP, "a", {"data": {"y": "2"}}, namespace)
    with pytest.raises(Conflict, match="modified"):
        await client.replace(made | {"data": {"x": "3"}})
    present = await client.get(kinds.CONFIG_MAP, "a", namespace)
    assert (await client.replace(present | {"data": {"x": "3"}}))["data"] == {"x": "3"}
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    with pytest.raises(Conflict):
        await client.patch(kinds.CONFIG_MAP, "a", stale | {"data": {"z": "1"}}, namespace)
    await client.delete(kinds.CONFIG_MAP, "a", namespace, uid="another")
    assert await client.find(kinds.CONFIG_MAP, "a", namespace) is not None
    await client.delete(kinds.CONFIG_MAP, "a", namespace, uid=made["metadata"]["uid"])
    await client.delete(kinds.CONFIG_MAP, "a", namespace)
    assert await client.find(kinds.CONFIG_MAP, "a", namespace) is None


async def test_what_is_applied_is_ours_and_what_others_own_is_told_with_owner_and_field(
    rig: RunningCluster, client: KubeClient, namespace: str
) -> None:
    async with KubeClient(rig.connection(), field_manager="somebody") as other:
        await other.apply(a_map("a", namespace, x="theirs"))
    await client.apply(a_map("a", namespace, y="ours"))
    with pytest.raises(FieldConflict) as caught:
        await client.apply(a_map("a", namespace, x="ours"))
    assert caught.value.owners == (FieldOwner(".data.x", "somebody"),)
    tried = await client.apply(a_map("a", namespace, x="ours"), force=True, dry_run=True)
    assert tried["data"]["x"] == "ours"
    found = await client.get(kinds.CONFIG_MAP, "a", namespace)
    assert found["data"] == {"x": "theirs", "y": "ours"}
    await client.apply(a_map("a", namespace, x="ours"), force=True)
    assert (await client.get(kinds.CONFIG_MAP, "a", namespace))["data"] == {"x": "ours"}


async def test_lists_are_whole_however_small_the_pages_and_follow_selectors(
    rig: RunningCluster, namespace: str
) -> None:
    async with KubeClient(rig.connection(), limits=ClientLimits(page_size=3)) as client:
        for count in range(8):
            one = a_map(f"m{count}", namespace)
            one["metadata"]["labels"] = {"odd": str(count % 2)}
            await client.create(one)
        odd = await client.list(kinds.CONFIG_MAP, namespace, {"odd": "1"})
        assert [one["metadata"]["name"] for one in odd] == ["m1", "m3", "m5", "m7"]
        named = await client.list(kinds.CONFIG_MAP, namespace, None, {"metadata.name": "m2"})
        assert [(one["kind"], one["metadata"]["name"]) for one in named] == [("ConfigMap", "m2")]


async def test_a_bad_object_is_refused_by_field(client: KubeClient, namespace: str) -> None:
    pod = a_pod("a", namespace)
    pod["spec"]["containers"] = []
    with pytest.raises(Invalid) as caught:
        await client.create(pod)
    assert [one.field for one in caught.value.fields] == ["spec.containers"]
    pod["spec"]["containers"] = "none"
    with pytest.raises(BadRequest):
        await client.create(pod)
    with pytest.raises(NotThere):
        await client.create({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {}})


async def test_a_watch_tells_changes_from_a_version_on(client: KubeClient, namespace: str) -> None:
    _, version = await client.list_as(kinds.CONFIG_MAP, shapes.BareObject, namespace)
    await client.create(a_map("a", namespace))
    await client.delete(kinds.CONFIG_MAP, "a", namespace)
    told = []
    async for word, obj in client.watch(
        kinds.CONFIG_MAP, namespace, resource_version=version, timeout_s=20
    ):
        if obj["metadata"]["name"] == "a":
            told.append(word)
        if word == "DELETED":
            break
    assert told == ["ADDED", "DELETED"]


async def test_an_informer_follows_what_is_done_with_another_client(
    rig: RunningCluster, client: KubeClient, namespace: str
) -> None:
    informer: Informer[Any] = Informer(client, kinds.CONFIG_MAP, namespace=namespace)
    changes: list[str] = []
    informer.on_change(lambda change: changes.append(f"{change.kind} {change.name}"))
    informer.start()
    assert await informer.wait_synced(30)
    async with KubeClient(rig.connection()) as other:
        await other.create(a_map("a", namespace))
        await other.patch(kinds.CONFIG_MAP, "a", {"data": {"x": "1"}}, namespace)
        await other.delete(kinds.CONFIG_MAP, "a", namespace)
    expected = ["ADDED a", "MODIFIED a", "DELETED a"]
    await wait_until_async(lambda: changes[-3:] == expected, f"{expected}")
    await informer.stop()
    assert informer.get(namespace, "a") is None


async def test_rights_are_asked_from_the_cluster_and_missing_ones_are_told(
    rig: RunningCluster, client: KubeClient, namespace: str
) -> None:
    where = {"namespace": namespace}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "few"} | where}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "few"} | where,
        "rules": [{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "few"} | where,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "few"},
        "subjects": [{"kind": "ServiceAccount", "name": "few"} | where],
    }
    for obj in (account, role, binding):
        await client.apply(obj)
    async with KubeClient(await connection_of(rig, client, namespace, "few")) as few:
        assert await few.can_i("list", kinds.POD, namespace)
        assert await few.can_i("get", kinds.POD, namespace, subresource="log")
        assert not await few.can_i("list", kinds.POD)
        assert not await few.can_i("create", kinds.POD, namespace)
        rules = await few.list_rules(namespace)
        assert rules.allow("list", kinds.POD)
        assert rules.allow("get", kinds.POD, "log")
        assert not rules.allow("delete", kinds.POD)
        with pytest.raises(Forbidden, match="cannot create resource"):
            await few.create(a_map("a", namespace))


async def connection_of(
    rig: RunningCluster, client: KubeClient, namespace: str, account: str
) -> Connection:
    """Return a connection as a ServiceAccount, through a kubeconfig as somebody would send it."""
    admin = rig.connection()
    token = await client.issue_token(account, namespace, expires_s=900)
    found = read_kubeconfig(
        write_kubeconfig(Connection(admin.server, ca_pem=admin.ca_pem, token=token))
    )
    assert found.expires_at is not None
    return found


async def test_credentials_that_are_none_are_told_as_such(rig: RunningCluster) -> None:
    admin = rig.connection()
    stranger = Connection(admin.server, ca_pem=admin.ca_pem, token="nobody")
    async with KubeClient(stranger) as client:
        with pytest.raises(Unauthorized):
            await client.list(kinds.POD)


async def test_a_client_certificate_opens_the_cluster_as_its_own_user(
    rig: RunningCluster,
) -> None:
    folder = rig.kubeconfig.resolve().parent / "certificates"
    pair = folder / "kube-apiserver-kubelet-client"  # of the group system:masters
    admin = rig.connection()
    sent = Connection(
        admin.server,
        ca_pem=admin.ca_pem,
        certificate_pem=pair.with_suffix(".crt").read_text(encoding="ascii"),
        key_pem=pair.with_suffix(".key").read_text(encoding="ascii"),
    )
    read = read_kubeconfig(write_kubeconfig(sent))
    assert read.expires_at is not None
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    async with KubeClient(read) as client:
        assert await client.can_i("delete", kinds.NAMESPACE)
        who = await client.create(review)
    assert who["status"]["userInfo"]["username"] == "kube-apiserver-kubelet-client"


async def test_what_is_served_is_found_with_its_versions(client: KubeClient) -> None:
    version = await client.version()
    assert (version.major, version.minor) == (1, 34)
    batch = await client.served("batch")
    assert batch is not None
    assert batch.preferred == "v1"
    assert await client.served("no.such.group") is None
    assert await client.resolve(kinds.JOB.at("v1alpha1")) == kinds.JOB
    assert await client.resolve(kinds.SCALED_OBJECT) is None
    found = await client.kind_of(
        {"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema"}
    )
    assert (found.plural, found.namespaced) == ("flowschemas", False)


async def test_a_command_runs_in_a_container_with_input_output_and_exit_code(
    client: KubeClient, namespace: str
) -> None:
    name = await running(client, a_pod("sleeper", namespace, "sleep", "300"))
    script = "cat; echo out; echo bad >&2; exit 3"
    found = await client.exec(name, namespace, "main", ["sh", "-c", script], b"in\n")
    assert (found.exit_code, found.stdout, found.stderr) == (3, b"in\nout\n", b"bad\n")
    big = bytes(range(256)) * 4_000
    echoed = await client.exec(name, namespace, "main", ["cat"], big)
    assert (echoed.exit_code, echoed.stdout) == (0, big)
    with pytest.raises(NotThere):
        await client.exec("nobody", namespace, "main", ["true"])
    await client.delete(kinds.POD, name, namespace, grace_s=0)


async def test_a_log_is_read_and_followed_to_its_end(client: KubeClient, namespace: str) -> None:
    script = "echo one; echo two; read line < /dev/null; sleep 1; echo three"
    name = await running(client, a_pod("talker", namespace, "sh", "-c", script))
    pieces = [piece async for piece in client.follow_log(name, namespace, "main")]
    assert b"".join(pieces) == b"one\ntwo\nthree\n"
    assert await client.read_log(name, namespace, tail_lines=1) == b"three\n"
    assert await client.read_log(name, namespace, limit_bytes=4) == b"one\n"
    with pytest.raises(NotThere):
        await client.read_log("nobody", namespace)


async def test_an_eviction_that_a_budget_forbids_is_told_and_one_that_it_allows_is_done(
    client: KubeClient, namespace: str
) -> None:
    name = await running(client, a_pod("kept", namespace, "sleep", "300"))
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
    }
    await client.apply(budget)

    async def counted() -> bool:
        found = await client.get(kinds.POD_DISRUPTION_BUDGET, "all", namespace)
        return bool(found.get("status", {}).get("observedGeneration"))

    await wait_until_async(counted, "the budget is counted")
    with pytest.raises(TooManyRequests, match="disruption budget"):
        await client.evict(name, namespace, 0)
    await client.delete(kinds.POD_DISRUPTION_BUDGET, "all", namespace)
    await client.evict(name, namespace, 0)
    await client.evict("nobody", namespace, 0)

    async def is_gone() -> bool:
        return await client.find(kinds.POD, name, namespace) is None

    await wait_until_async(is_gone, "the pod is gone", deadline_s=60)
