"""An operator that serves given namespaces: what it reads, and one of them that it may not read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuplane.kube.clients import KubeClient
from gpuplane.operator.leader import GRANTED_S, Leader
from gpuplane.operator.meters import Meters
from gpuplane.operator.models import Models
from tests.clocks import FakeClock
from tests.integration.kube.scripted import Reply, Request, ScriptedServer, Stream
from tests.unit.operator.builders import workload_object
from tests.waiting import wait_until_async


class Cluster:
    """A cluster with a workload in each namespace, some of which may not be read."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.closed: set[str] = set()
        server.handler = self.answer

    def answer(self, request: Request) -> Reply | Stream:
        parts = request.path.split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
        if namespace in self.closed:
            return Reply(403, {"reason": "Forbidden", "message": "no right"})
        if request.param("watch"):
            return Stream()
        if parts[-1] == "kueue.x-k8s.io":
            return Reply(404, {"reason": "NotFound"})
        found: list[dict[str, Any]] = []
        if parts[-1] == "gpuworkloads":
            found = [workload_object("w", f"uid-{namespace}")]
            found[0]["metadata"]["namespace"] = namespace
        return Reply(body={"metadata": {"resourceVersion": "5"}, "items": found})

    def listed(self) -> set[str]:
        """Return the paths of which whole lists were asked for."""
        return {each.path for each in self.server.requests if not each.param("watch")}


@pytest.fixture
def cluster(server: ScriptedServer) -> Cluster:
    return Cluster(server)


@contextlib.asynccontextmanager
async def leading(client: KubeClient, clock: FakeClock, **told: Any) -> AsyncIterator[Leader]:
    """A leader that reads the cluster and never acts."""
    leader = Leader(client, Models({}), Meters(), clock, may_act=lambda: False, **told)
    try:
        yield leader
    finally:
        await leader.stop()


async def test_an_operator_of_given_namespaces_reads_nothing_of_any_other(
    cluster: Cluster, client: KubeClient, clock: FakeClock
) -> None:
    told: dict[str, Any] = {"namespaces": ("a", "b"), "provisioning_class": "c"}
    async with leading(client, clock, serves_layouts=False, **told) as leader:
        assert await leader.start()
        assert set(leader.world.keys()) == {("a", "w"), ("b", "w")}
    wide = {path for path in cluster.listed() if "/namespaces/" not in path}
    assert wide <= {"/api/v1/nodes", "/apis/kueue.x-k8s.io"}
    for namespace in ("a", "b"):
        read = {path for path in cluster.listed() if f"/namespaces/{namespace}/" in path}
        kinds = {"jobs", "pods", "gpuworkloads", "provisioningrequests"}
        assert {path.rsplit("/", 1)[1] for path in read} == kinds


async def test_a_namespace_that_may_not_be_read_holds_none_of_the_others_up(
    cluster: Cluster, client: KubeClient, clock: FakeClock
) -> None:
    cluster.closed = {"b"}
    async with leading(client, clock, namespaces=("a", "b")) as leader:
        starting = asyncio.create_task(leader.start())
        await wait_until_async(lambda: leader.world.keys(), "the other is read")
        assert not starting.done(), "rights that are made just now are waited for"
        await clock.advance(GRANTED_S)
        assert await starting
        assert set(leader.world.keys()) == {("a", "w")}
        cluster.closed.clear()

        async def read() -> bool:
            await clock.advance(60)
            return leader.world.find_workload(("b", "w")) is not None

        await wait_until_async(read, "it is served once it may be read")
