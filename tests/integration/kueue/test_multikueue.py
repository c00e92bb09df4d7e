"""A worker that is none any more leaves nothing on its manager, and its account is taken away."""

from __future__ import annotations

import pytest

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Forbidden
from gpuplane.kube.kinds import CLUSTER_ROLE, MULTIKUEUE_CLUSTER, MULTIKUEUE_CONFIG, SECRET
from gpuplane.kube.kueue.keeping import keeping_objects
from gpuplane.kube.kueue.multikueue import (
    ACCOUNT,
    CONFIG,
    NAMESPACE,
    TOKEN_SECRET,
    cluster_of_worker,
    places_of_workers,
    secret_name,
    worker_name,
    worker_objects,
)
from gpuplane.kube.kueue.names import MANAGED_LABEL, MANAGED_VALUE, ApiVersion
from gpuplane.kube.preflight import look_at
from gpuplane.loops.kueue.multikueue import forget_workers, grant, revoke
from gpuplane.loops.kueue.retiring import forget_worker, revoke_all
from tests.integration.kube.scripted import Reply
from tests.integration.kueue.stored import Stored

WORKERS = MULTIKUEUE_CLUSTER.at("v1beta2")
OURS = {MANAGED_LABEL: MANAGED_VALUE}


def secret(stored: Stored, name: str, labels: dict[str, str]) -> str:
    stored.put(SECRET, {"metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}})
    return SECRET.path(NAMESPACE, name)


async def test_credentials_of_former_workers_go_first_also_those_an_interruption_left(
    client: KubeClient, stored: Stored
) -> None:
    for name in ("w01-near", "w02-far"):
        stored.put(WORKERS, {"metadata": {"name": name, "labels": OURS}})
    kept = [secret(stored, secret_name("w01-near"), OURS), secret(stored, TOKEN_SECRET, OURS)]
    kept.append(secret(stored, secret_name("w09-theirs"), {}))
    far = secret(stored, secret_name("w02-far"), OURS)
    lost = secret(stored, secret_name("w03-lost"), OURS)
    await forget_workers(client, WORKERS, ["w01-near"])
    assert stored.deleted == [far, lost, WORKERS.path(None, "w02-far")]
    assert sorted(stored.objects) == sorted([*kept, WORKERS.path(None, "w01-near")])


async def test_nothing_of_the_account_of_managers_stays_on_a_worker_that_is_dropped(
    client: KubeClient, stored: Stored
) -> None:
    for each in (*worker_objects(), *keeping_objects()):
        await client.apply(each)
    assert len(stored.objects) == 6
    await revoke(client)
    assert stored.objects == {}
    await revoke(client)
    assert stored.objects == {}


def test_the_cluster_of_a_worker_is_read_from_its_name_on_the_manager() -> None:
    assert cluster_of_worker(worker_name(11, "far-away")) == "far-away"


async def test_what_the_credentials_may_not_delete_on_a_worker_is_named_and_the_rest_goes(
    client: KubeClient, stored: Stored
) -> None:
    for each in (*worker_objects(), *keeping_objects()):
        await client.apply(each)
    path = CLUSTER_ROLE.path(None, ACCOUNT)
    refused = Reply(403, {"reason": "Forbidden", "message": "cannot delete it"})
    stored.refuse("DELETE", path, refused)
    assert await revoke_all(client) == {f"ClusterRole {ACCOUNT}": "cannot delete it"}
    assert list(stored.objects) == [path]


async def test_a_deleted_worker_leaves_its_manager_and_the_others_keep_their_names(
    client: KubeClient, stored: Stored
) -> None:
    configs = MULTIKUEUE_CONFIG.at("v1beta2")
    order = ["w01-far", "w02-so-far", "w03-near"]
    stored.put(configs, {"metadata": {"name": CONFIG}, "spec": {"clusters": order}})
    for name in order:
        stored.put(WORKERS, {"metadata": {"name": name, "labels": OURS}})
        secret(stored, secret_name(name), OURS)
    interrupted = secret(stored, secret_name("w07-far"), OURS)
    await forget_worker(client, ApiVersion.V1BETA2, "far")
    assert interrupted not in stored.objects
    for name in order:
        kept = [stored.get(WORKERS, name), stored.get(SECRET, secret_name(name), NAMESPACE)]
        assert [each is not None for each in kept] == [name != "w01-far"] * 2
    config = stored.get(configs, CONFIG)
    assert config is not None
    assert config["spec"]["clusters"] == order[1:]
    for name in ("so-far", "near", "near"):
        await forget_worker(client, ApiVersion.V1BETA2, name)
    assert stored.objects == {}


def test_workers_are_read_back_at_their_places() -> None:
    assert places_of_workers(["w03-near", "w01-far", "theirs"]) == ["far", "", "near"]
    assert places_of_workers([]) == []


async def test_credentials_that_may_make_no_role_join_by_the_account_an_administrator_made(
    client: KubeClient, stored: Stored
) -> None:
    refused = Reply(403, {"reason": "Forbidden", "message": "cannot patch it"})
    stored.refuse("PATCH", CLUSTER_ROLE.path(None, ACCOUNT), refused)
    with pytest.raises(Forbidden):
        await grant(client)
    assert stored.get(SECRET, TOKEN_SECRET, NAMESPACE) is None
    metadata = {"name": TOKEN_SECRET, "namespace": NAMESPACE}
    stored.put(SECRET, {"metadata": metadata, "data": {"token": "YWJj"}})
    assert '"token": "abc"' in await grant(client)


@pytest.mark.parametrize("is_worker", [True, False])
async def test_what_joining_a_manager_takes_is_named_for_workers_until_the_account_is_there(
    client: KubeClient, stored: Stored, *, is_worker: bool
) -> None:
    version = {"major": "1", "minor": "34", "gitVersion": "v1.34.4"}
    stored.refuse("GET", "/version", Reply(body=version))
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    stored.refuse("POST", path, Reply(201, {"status": {"allowed": False}}))
    for there in (False, True):
        if there:
            secret(stored, TOKEN_SECRET, OURS)
        look = await look_at(client, "https://far", is_worker=is_worker)
        told = [each for each in look.missing if "--for-multikueue" in each.sentence]
        assert len(told) == (2 if is_worker and not there else 0)
        assert not [each for each in told if each.is_required]
