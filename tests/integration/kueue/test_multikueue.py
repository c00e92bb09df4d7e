"""A worker that is none any more leaves nothing on its manager, and its account is taken away."""

from __future__ import annotations

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import MULTIKUEUE_CLUSTER, SECRET
from gpuplane.kube.kueue.keeping import keeping_objects
from gpuplane.kube.kueue.multikueue import (
    NAMESPACE,
    TOKEN_SECRET,
    cluster_of_worker,
    secret_name,
    worker_name,
    worker_objects,
)
from gpuplane.kube.kueue.names import MANAGED_LABEL, MANAGED_VALUE
from gpuplane.loops.kueue.multikueue import forget_workers, revoke
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
