"""An informer and a client while the API server, and etcd below it, are killed, frozen and back."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.errors import KubeError, Unreachable
from gpuplane.kube.informers import Informer
from gpuplane.kube.sessions import ClientLimits
from rig.binaries import Binaries
from rig.rigs import RigPlan, running_rig
from tests.waiting import wait_until_async

LIMITS = ClientLimits(connect_s=2, request_s=3)


def a_map(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
    }


async def create_when_it_answers(client: KubeClient, name: str) -> None:
    async def made() -> bool:
        try:
            await client.apply(a_map(name))
        except KubeError:
            return False
        return True

    await wait_until_async(made, f"{name} is made", deadline_s=60)


async def follow(informer: Informer[Any], name: str) -> None:
    await wait_until_async(
        lambda: informer.get("default", name), f"{name} is seen: {informer.state}", deadline_s=60
    )


@pytest.mark.timeout(300)
async def test_nothing_is_lost_while_parts_of_the_cluster_are_killed_frozen_and_back(
    rig_binaries: Binaries,
) -> None:
    plan = RigPlan(workers=0, nodes=(), process_nodes=(), kueue=False)
    with running_rig(plan) as rig:
        connection = read_kubeconfig(rig.manager.kubeconfig.read_text(encoding="utf-8"))
        parts = rig.manager.parts
        async with KubeClient(connection, limits=LIMITS) as client:
            changes: list[str] = []
            informer: Informer[Any] = Informer(client, kinds.CONFIG_MAP, namespace="default")
            informer.on_change(lambda change: changes.append(f"{change.kind} {change.name}"))
            informer.start()
            assert await informer.wait_synced(30)
            await client.apply(a_map("before"))
            await follow(informer, "before")

            parts["kube-apiserver"].kill()
            await wait_until_async(lambda: informer.state.last_error, "the loss is told")
            with pytest.raises(Unreachable):
                await client.list(kinds.POD)
            assert informer.get("default", "before") is not None
            parts["kube-apiserver"].start_again()
            await create_when_it_answers(client, "killed")
            await follow(informer, "killed")

            parts["kube-apiserver"].freeze()
            with pytest.raises(Unreachable) as caught:
                await client.get(kinds.CONFIG_MAP, "before", "default")
            parts["kube-apiserver"].thaw()
            assert caught.value.reason == "Timeout"
            await create_when_it_answers(client, "frozen")
            await follow(informer, "frozen")

            parts["etcd"].kill()
            parts["etcd"].start_again()
            await create_when_it_answers(client, "etcd")
            await follow(informer, "etcd")
            await client.delete(kinds.CONFIG_MAP, "before", "default")
            await wait_until_async(
                lambda: informer.get("default", "before") is None, "the deletion is seen"
            )
            assert informer.state.last_error == ""
            await informer.stop()
    ours = [change for change in changes if not change.endswith("kube-root-ca.crt")]
    added = [change for change in ours if change.startswith("ADDED")]
    assert added == ["ADDED before", "ADDED killed", "ADDED frozen", "ADDED etcd"]
    assert ours[-1] == "DELETED before"
