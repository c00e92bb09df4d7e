"""The Kubernetes backend against a cluster that refuses, falls silent, or is let go of."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.interface import AttemptRef, Unavailable
from gpuplane.backends.kubernetes.backend import SILENT_S, KubernetesBackend
from gpuplane.backends.kubernetes.names import ATTEMPT_ID, CLUSTER
from gpuplane.backends.kubernetes.records import (
    FORGOTTEN,
    decide_evict,
    encode_record,
    read_record,
)
from gpuplane.backends.kubernetes.views import ClusterView
from gpuplane.backends.kubernetes.watching import ClusterWatch
from gpuplane.core.ids import AttemptId
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import JOB_SET
from tests.clocks import FakeClock
from tests.integration.kube.scripted import Answer, Reply, Request, ScriptedServer, Stream
from tests.waiting import wait_until_async


class Cluster:
    """What the scripted server tells: empty lists, quiet watches, and what a test put there."""

    def __init__(self) -> None:
        self.objects: dict[str, list[dict[str, Any]]] = {}
        """By the last part of a list's path."""
        self.named: dict[str, dict[str, Any]] = {}
        """Objects that are there one by one."""
        self.forbidden: set[str] = set()
        self.groups: dict[str, str] = {}
        self.watches: list[Stream] = []
        self.is_away = False
        self.is_hushed = False
        """Refuses lists and watches, and takes everything else."""
        self.changes: list[Request] = []
        self.held: asyncio.Event | None = None
        """Keeps whoever asks for namespaces waiting."""

    async def answer(self, request: Request) -> Answer:
        if self.held is not None and "/namespaces/" in request.path:
            await self.held.wait()
        if self.is_away:
            return Reply(503, {"kind": "Status", "reason": "ServiceUnavailable"})
        if request.method != "GET":
            self.changes.append(request)
            return self._change(request)
        what = request.path.rsplit("/", 1)[-1]
        if request.path.startswith("/apis/") and request.path.count("/") == 2:
            return self._group(what)
        if what == "version":
            return Reply(body={"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        if self.is_hushed:
            return Reply(503, {"kind": "Status", "reason": "ServiceUnavailable"})
        if what in self.forbidden:
            return Reply(403, {"kind": "Status", "reason": "Forbidden", "message": "no"})
        if what in self.named:
            return Reply(body=self.named[what])
        if request.param("watch"):
            self.watches.append(Stream())
            mark = {"kind": "Bookmark", "metadata": {"resourceVersion": "11"}}
            self.watches[-1].event("BOOKMARK", mark)
            return self.watches[-1]
        items = self.objects.get(what, [])
        return Reply(body={"metadata": {"resourceVersion": "10"}, "items": items})

    def _group(self, name: str) -> Reply:
        if name not in self.groups:
            return Reply(404, {"kind": "Status", "reason": "NotFound"})
        version = {"groupVersion": f"{name}/{self.groups[name]}", "version": self.groups[name]}
        return Reply(body={"kind": "APIGroup", "name": name, "versions": [version]})

    def _change(self, request: Request) -> Reply:
        if request.path.endswith("selfsubjectaccessreviews"):
            asked = request.json["spec"]["resourceAttributes"]["resource"]
            return Reply(201, {"status": {"allowed": asked not in self.forbidden}})
        if request.method == "PUT":
            obj = request.json
            obj["metadata"]["resourceVersion"] = "20"
            self.named[obj["metadata"]["name"]] = obj
            return Reply(body=obj)
        return Reply(body={"kind": "Status", "status": "Success"})


@pytest.fixture
def cluster(server: ScriptedServer) -> Cluster:
    found = Cluster()
    server.handler = found.answer
    return found


@pytest.fixture
async def backend(
    cluster: Cluster, client: KubeClient, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[KubernetesBackend]:
    found = KubernetesBackend(client, "east", tmp_path, clock)
    yield found
    await found.stop()


async def test_who_waits_for_a_cluster_that_is_let_go_of_is_told_so_and_not_cancelled(
    cluster: Cluster, backend: KubernetesBackend, server: ScriptedServer
) -> None:
    cluster.held = asyncio.Event()
    waiting = asyncio.create_task(backend.observe())
    await wait_until_async(lambda: server.requests, "the cluster is being opened")
    await backend.stop()
    cluster.held.set()
    with pytest.raises(Unavailable, match="let go of"):
        await waiting


async def test_who_waits_for_a_cluster_and_is_cancelled_itself_is_cancelled(
    cluster: Cluster, backend: KubernetesBackend, server: ScriptedServer
) -> None:
    cluster.held = asyncio.Event()
    waiting = asyncio.create_task(backend.observe())
    await wait_until_async(lambda: server.requests, "the cluster is being opened")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    cluster.held.set()
    assert (await backend.observe()).replicas == ()


@pytest.mark.parametrize("may_list", [True, False])
async def test_sets_of_jobs_are_listened_to_where_they_may_be_listed_and_else_left_out(
    cluster: Cluster, backend: KubernetesBackend, server: ScriptedServer, may_list: bool
) -> None:
    cluster.groups = {JOB_SET.group: JOB_SET.version}
    cluster.forbidden = set() if may_list else {JOB_SET.plural}
    assert (await backend.observe()).replicas == ()
    asked = [each for each in server.requests if each.path.endswith(f"/{JOB_SET.plural}")]
    assert bool(asked) is may_list


async def test_a_cluster_that_is_listened_to_again_after_a_failure_gets_no_second_informer(
    cluster: Cluster, client: KubeClient, clock: FakeClock, server: ScriptedServer
) -> None:
    cluster.is_away = True
    watch = ClusterWatch(client, ClusterView(), "east", "gpuplane-system", clock, lambda: None)
    first = asyncio.create_task(watch.start(jobsets=True))
    await wait_until_async(lambda: watch.trouble, "the first list has failed")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    cluster.is_away = False
    again = asyncio.create_task(watch.start(jobsets=True))
    while not again.done():
        await clock.advance(1)
        await asyncio.wait([again], timeout=0.01)
    assert await again
    assert [each.kind for each in watch.informers].count(JOB_SET) == 1
    await watch.stop()


async def pass_until(clock: FakeClock, so: Callable[[], Awaitable[bool]]) -> None:
    """Let time pass until it is so; requests take their own time beside it."""
    end = clock.monotonic() + 10 * SILENT_S
    while not await so():
        assert clock.monotonic() < end
        await clock.advance(1)
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.01)


async def fall_silent(
    cluster: Cluster, server: ScriptedServer, backend: KubernetesBackend, clock: FakeClock
) -> None:
    """Have lists and watches refused until the backend has heard nothing for its limit."""

    async def is_silent() -> bool:
        return not (await backend.probe()).reachable

    cluster.is_hushed = True
    server.drop_connections()
    await pass_until(clock, is_silent)


async def be_heard(cluster: Cluster, backend: KubernetesBackend, clock: FakeClock) -> None:
    """Have lists and watches answered until the backend has heard of all of them."""

    async def is_heard() -> bool:
        return (await backend.probe()).reachable

    cluster.is_hushed = False
    await pass_until(clock, is_heard)


async def test_nothing_is_said_of_replicas_while_the_cluster_is_silent_beyond_its_limit(
    cluster: Cluster, backend: KubernetesBackend, server: ScriptedServer, clock: FakeClock
) -> None:
    cursor = (await backend.observe_replicas_since("")).cursor
    await fall_silent(cluster, server, backend, clock)
    with pytest.raises(Unavailable):
        await backend.observe()
    with pytest.raises(Unavailable):
        await backend.observe_replicas_since(cursor)
    await be_heard(cluster, backend, clock)
    assert (await backend.observe()).replicas == ()


async def test_nothing_is_swept_while_the_cluster_is_silent_beyond_its_limit(
    cluster: Cluster, backend: KubernetesBackend, server: ScriptedServer, clock: FakeClock
) -> None:
    labels = {CLUSTER: "east", ATTEMPT_ID: str(uuid.UUID(int=7))}
    made: dict[str, Any] = {
        "name": "j",
        "namespace": "t",
        "uid": "u",
        "resourceVersion": "9",
        "labels": labels,
    }
    made["creationTimestamp"] = "2026-03-01T12:00:00Z"  # the clock's beginning
    cluster.objects["jobs"] = [{"metadata": made}]
    await backend.observe()
    await fall_silent(cluster, server, backend, clock)
    await clock.advance(backend.settings.orphan_s)
    with pytest.raises(Unavailable):
        await backend.sweep()
    assert [each for each in cluster.changes if each.method == "DELETE"] == []
    await be_heard(cluster, backend, clock)
    await backend.sweep()
    deleted = {each.path for each in cluster.changes if each.method == "DELETE"}
    assert deleted == {"/apis/batch/v1/namespaces/t/jobs/j"}


async def test_the_record_of_a_withdrawn_offer_is_forgotten_by_a_sweep_once_it_is_old(
    cluster: Cluster, backend: KubernetesBackend, clock: FakeClock, tmp_path: Path
) -> None:
    ref = AttemptRef(AttemptId(uuid.UUID(int=7)), 1)
    record = decide_evict(None, ref, "Withdrawn", clock.now_ms())
    told = encode_record(record, "east", "gpuplane-system")
    told["metadata"]["resourceVersion"] = "9"
    cluster.objects["configmaps"] = [told]
    cluster.named[told["metadata"]["name"]] = told
    output = tmp_path / "kubernetes" / "east" / "logs" / str(ref.attempt_id)
    output.mkdir(parents=True)
    assert [each.ref for each in (await backend.observe()).replicas] == [ref]
    await backend.sweep()
    assert [each.ref for each in (await backend.observe()).replicas] == [ref]
    # Records tell the time of day; to let the watches' days go by one by one would take minutes.
    clock.step((backend.settings.forgotten_s + 1) * 1000)
    await backend.sweep()
    assert (await backend.observe()).replicas == ()
    kept = read_record(cluster.named[told["metadata"]["name"]]["data"])
    assert (kept.fate if kept is not None else "", output.exists()) == (FORGOTTEN, False)
