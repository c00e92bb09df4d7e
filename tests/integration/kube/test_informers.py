"""Informers when watches end, break, fall behind or lie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuplane.kube import kinds, shapes
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.informers import Change, Informer
from gpuplane.kube.sessions import ClientLimits
from tests.clocks import FakeClock
from tests.integration.kube.scripted import Reply, Request, ScriptedServer, Stream
from tests.waiting import wait_until_async


def a_pod(name: str, version: int, node: str = "", **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ml", "resourceVersion": str(version)} | meta,
        "spec": {"nodeName": node},
        "status": {"phase": "Running"},
    }


class Cluster:
    """What the scripted server holds, and the watches that it has open."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 10
        self.page = 500
        self.lists = 0
        self.watches: list[tuple[Request, Stream]] = []
        self.refusals: list[Reply] = []
        server.handler = self.answer

    def answer(self, request: Request) -> Reply | Stream:
        if self.refusals:
            return self.refusals.pop(0)
        if request.param("watch"):
            stream = Stream()
            self.watches.append((request, stream))
            return stream
        begin = int(request.param("continue") or 0)
        self.lists += begin == 0
        names = sorted(self.pods)
        meta = {"resourceVersion": str(self.version)}
        if begin + self.page < len(names):
            meta["continue"] = str(begin + self.page)
        items = [self.pods[name] for name in names[begin : begin + self.page]]
        return Reply(body={"metadata": meta, "items": items})

    def put(self, name: str, node: str = "", word: str | None = None) -> None:
        self.version += 1
        word = word or ("MODIFIED" if name in self.pods else "ADDED")
        self.pods[name] = a_pod(name, self.version, node)
        for _, stream in self.watches[-1:]:
            stream.event(word, self.pods[name])

    def drop(self, name: str) -> None:
        self.version += 1
        gone = a_pod(name, self.version)
        del self.pods[name]
        self.watches[-1][1].event("DELETED", gone)

    async def watched(self, count: int = 1) -> tuple[Request, Stream]:
        await wait_until_async(lambda: len(self.watches) >= count, f"{count} watches")
        return self.watches[-1]


@pytest.fixture
def cluster(server: ScriptedServer) -> Cluster:
    return Cluster(server)


class Watched:
    """An informer with what it told."""

    def __init__(self, informer: Informer[shapes.SlimPod]) -> None:
        self.informer = informer
        self.changes: list[str] = []
        informer.on_change(self._note)

    def _note(self, change: Change[shapes.SlimPod]) -> None:
        self.changes.append(f"{change.kind} {change.name}")

    def names(self) -> list[str]:
        return sorted(pod.metadata.name for pod in self.informer.items())

    async def told(self, *changes: str) -> None:
        await wait_until_async(
            lambda: self.changes[-len(changes) :] == list(changes), f"{changes} of {self.changes}"
        )


@pytest.fixture
async def watched(cluster: Cluster) -> AsyncIterator[Watched]:
    async with KubeClient(cluster.server.connection()) as client:
        informer: Informer[shapes.SlimPod] = Informer(client, kinds.POD, decode=shapes.SlimPod)
        informer.add_index("node", lambda pod: [pod.spec.node_name] if pod.spec.node_name else [])
        found = Watched(informer)
        yield found
        await informer.stop()


async def started(watched: Watched, cluster: Cluster, *names: str) -> Stream:
    for name in names:
        cluster.put(name)
    watched.informer.start()
    assert await watched.informer.wait_synced(20)
    return (await cluster.watched())[1]


async def test_what_is_there_is_listed_in_pages_and_changes_follow_in_order(
    watched: Watched, cluster: Cluster
) -> None:
    cluster.page = 2
    await started(watched, cluster, "a", "b", "c", "d", "e")
    assert watched.names() == ["a", "b", "c", "d", "e"]
    cluster.put("f", "n1")
    cluster.put("a", "n1")
    cluster.drop("f")
    await watched.told("ADDED f", "MODIFIED a", "DELETED f")
    assert cluster.lists == 1
    request = cluster.watches[0][0]
    assert request.param("allowWatchBookmarks") == "true"
    assert request.param("resourceVersion") == "15"
    assert 160 <= int(request.param("timeoutSeconds") or 0) <= 200


async def test_objects_are_found_by_index_as_they_move(watched: Watched, cluster: Cluster) -> None:
    await started(watched, cluster, "a")
    cluster.put("a", "n1")
    cluster.put("b", "n1")
    await watched.told("MODIFIED a", "ADDED b")

    def on(node: str) -> list[str]:
        return [pod.metadata.name for pod in watched.informer.by_index("node", node)]

    assert on("n1") == ["a", "b"]
    cluster.put("a", "n2")
    cluster.drop("b")
    await watched.told("MODIFIED a", "DELETED b")
    assert (on("n1"), on("n2"), on("n3")) == ([], ["a"], [])
    assert watched.informer.get("ml", "b") is None
    assert watched.informer.get("ml", "a") is not None


async def test_a_watch_that_the_server_ends_goes_on_where_it_was(
    watched: Watched, cluster: Cluster
) -> None:
    stream = await started(watched, cluster, "a")
    stream.event("BOOKMARK", {"metadata": {"resourceVersion": "77"}})
    stream.end()
    request, _ = await cluster.watched(2)
    assert request.param("resourceVersion") == "77"
    assert cluster.lists == 1


async def test_a_watch_that_breaks_goes_on_where_it_was_and_loses_nothing(
    watched: Watched, cluster: Cluster
) -> None:
    stream = await started(watched, cluster, "a")
    cluster.put("b")
    await watched.told("ADDED b")
    stream.cut()
    request, _ = await cluster.watched(2)
    assert request.param("resourceVersion") == "12"
    cluster.put("c")
    await watched.told("ADDED c")
    assert (cluster.lists, watched.informer.state.failures) == (1, 0)


@pytest.mark.parametrize("way", ["event", "answer"])
async def test_a_version_that_the_server_has_forgotten_is_listed_again_and_told_as_changes(
    watched: Watched, cluster: Cluster, way: str
) -> None:
    stream = await started(watched, cluster, "a", "b", "c")
    cluster.version += 100
    del cluster.pods["a"]
    cluster.pods["b"] = a_pod("b", cluster.version)
    cluster.pods["d"] = a_pod("d", cluster.version)
    gone = {"code": 410, "reason": "Expired", "message": "too old resource version"}
    if way == "event":
        stream.event("ERROR", gone)
    else:
        cluster.refusals = [Reply(410, gone)]
        stream.end()
    await cluster.watched(2)
    assert watched.names() == ["b", "c", "d"]
    assert sorted(watched.changes[-3:]) == ["ADDED d", "DELETED a", "MODIFIED b"]
    assert cluster.lists == 2


async def test_a_version_from_before_shows_a_gap_and_everything_is_listed_again(
    watched: Watched, cluster: Cluster
) -> None:
    stream = await started(watched, cluster, "a", "b")
    cluster.pods = {"a": a_pod("a", 3)}  # an etcd restored from a copy counts from before
    cluster.version = 3
    stream.event("MODIFIED", a_pod("a", 3))
    await cluster.watched(2)
    assert watched.names() == ["a"]
    assert cluster.lists == 2


async def test_it_says_that_the_server_is_away_keeps_what_it_knew_and_comes_back(
    watched: Watched, cluster: Cluster
) -> None:
    await started(watched, cluster, "a")
    informer = watched.informer
    await cluster.server.stop()
    await wait_until_async(lambda: informer.state.failures > 0, "a failure is counted")
    assert "cannot be reached" in informer.state.last_error
    assert watched.names() == ["a"]
    cluster.put("b")
    await cluster.server.start()
    await cluster.watched(2)
    cluster.watches[-1][1].event("ADDED", cluster.pods["b"])
    await watched.told("ADDED b")
    assert (informer.state.failures, informer.state.last_error) == (0, "")
    silent_s = informer.silent_s()
    assert silent_s is not None
    assert silent_s < 20


async def test_a_server_that_is_back_is_heard_of_before_anything_changes_there(
    watched: Watched, cluster: Cluster
) -> None:
    await started(watched, cluster, "a")
    informer = watched.informer
    returned: list[int] = []
    informer.on_return(lambda: returned.append(informer.state.failures))
    await cluster.server.stop()
    await wait_until_async(lambda: informer.state.failures > 0, "a failure is counted")
    assert returned == []
    await cluster.server.start()
    await wait_until_async(lambda: informer.state.failures == 0, "the watch stands")
    assert (cluster.lists, informer.state.last_error) == (1, "")
    assert returned == [0]


async def test_a_watch_of_what_never_changes_is_opened_anew_and_is_no_failure(
    cluster: Cluster,
) -> None:
    limits = ClientLimits(stream_idle_s=1.2)
    cluster.put("a")
    async with KubeClient(cluster.server.connection(), limits=limits) as client:
        informer: Informer[dict[str, Any]] = Informer(client, kinds.POD)
        informer.start()
        await cluster.watched(3)
        assert (informer.state.failures, informer.state.last_error) == (0, "")
        await informer.stop()
    assert cluster.lists == 1


async def test_a_storm_of_refusals_is_answered_with_growing_pauses(
    watched: Watched, cluster: Cluster
) -> None:
    cluster.refusals = [Reply(429, {}), Reply(500, {})]
    await started(watched, cluster, "a")
    assert watched.names() == ["a"]
    assert len(cluster.server.requests) == 4


async def test_a_server_that_forgets_at_once_is_not_asked_in_a_circle(cluster: Cluster) -> None:
    gone = {"code": 410, "reason": "Expired", "message": "always too old"}

    def handler(request: Request) -> Reply:
        if request.param("watch"):
            return Reply(410, gone)
        return Reply(body={"metadata": {"resourceVersion": "1"}, "items": []})

    cluster.server.handler = handler
    clock = FakeClock()
    async with KubeClient(cluster.server.connection()) as client:
        informer: Informer[dict[str, Any]] = Informer(client, kinds.POD, clock=clock)
        informer.start()
        await wait_until_async(lambda: informer.state.last_error, "it pauses and says why")
        assert (informer.state.lists, informer.state.watches) == (2, 2)
        await clock.advance(1)
        await wait_until_async(lambda: informer.state.watches == 3, "it tries again")
        await informer.stop()
    assert "always too old" in informer.state.last_error


async def test_a_server_that_cannot_watch_is_not_asked_in_a_circle(cluster: Cluster) -> None:
    def handler(request: Request) -> Reply:
        if request.param("watch"):
            return Reply(body=b"")
        return Reply(body={"metadata": {"resourceVersion": "1"}, "items": []})

    cluster.server.handler = handler
    async with KubeClient(cluster.server.connection()) as client:
        informer: Informer[dict[str, Any]] = Informer(client, kinds.POD, clock=FakeClock())
        informer.start()
        await wait_until_async(lambda: informer.state.last_error, "it pauses and says why")
        await informer.stop()
    assert "ended the watch as soon as" in informer.state.last_error
    assert (informer.state.lists, informer.state.watches) == (1, 1)


async def test_a_kind_that_is_taken_away_takes_its_objects_along(
    watched: Watched, cluster: Cluster
) -> None:
    stream = await started(watched, cluster, "a")
    cluster.refusals = [Reply(404, {"reason": "NotFound"})]
    stream.end()
    await watched.told("DELETED a", "ADDED a")
    assert watched.names() == ["a"]


async def test_a_line_that_is_no_event_leads_to_a_new_list(
    watched: Watched, cluster: Cluster
) -> None:
    stream = await started(watched, cluster, "a")
    cluster.pods["b"] = a_pod("b", 99)
    stream.send(b"<html>\n")
    await watched.told("ADDED b")
    assert cluster.lists == 2


async def test_an_object_of_another_shape_is_counted_and_hides_no_others(
    watched: Watched, cluster: Cluster
) -> None:
    cluster.pods["odd"] = {"metadata": {"name": "odd", "resourceVersion": "1", "labels": 5}}
    stream = await started(watched, cluster, "a")
    stream.event("ADDED", {"metadata": {"name": "odder", "resourceVersion": "90", "labels": []}})
    stream.event("ADDED", a_pod("b", 91))
    await watched.told("ADDED b")
    assert watched.names() == ["a", "b"]
    assert watched.informer.state.unreadable == 2


async def test_an_object_that_cannot_be_converted_hides_no_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for name, node in (("a", "n1"), ("b", "strange"), ("c", "n1")):
        cluster.put(name, node)

    def convert(pod: dict[str, Any]) -> str:
        if pod["spec"]["nodeName"] == "strange":
            raise LookupError("nobody foresaw it")
        return str(pod["metadata"]["name"])

    async with KubeClient(cluster.server.connection()) as client:
        informer: Informer[str] = Informer(client, kinds.POD, convert=convert)
        informer.add_index("name", lambda name: [name])
        informer.start()
        assert await informer.wait_synced(20)
        assert informer.items() == ["a", "c"]
        await cluster.watched()
        cluster.put("c", "strange")
        cluster.put("b", "n1")
        await wait_until_async(lambda: informer.get("ml", "b"), "the watch goes on")
        assert (informer.items(), informer.by_index("name", "c")) == (["a", "b"], [])
        await informer.stop()
    state = informer.state
    assert (cluster.lists, state.failures, state.unreadable) == (1, 0, 2)
    assert caplog.text.count("ml/b cannot be converted: LookupError") == 1
    assert "ml/c" not in caplog.text


async def test_an_object_without_a_name_hides_no_others(cluster: Cluster) -> None:
    cluster.put("a")
    cluster.pods["odd"] = {"kind": "Pod"}
    async with KubeClient(cluster.server.connection()) as client:
        informer: Informer[dict[str, Any]] = Informer(client, kinds.POD)
        informer.start()
        assert await informer.wait_synced(20)
        await informer.stop()
    assert [pod["metadata"]["name"] for pod in informer.items()] == ["a"]


async def test_a_list_that_tells_a_token_twice_is_an_error_and_has_an_end(
    cluster: Cluster,
) -> None:
    cluster.server.handler = lambda _: Reply(body={"metadata": {"continue": "x"}, "items": []})
    async with KubeClient(cluster.server.connection()) as client:
        informer: Informer[dict[str, Any]] = Informer(client, kinds.POD, clock=FakeClock())
        informer.start()
        await wait_until_async(lambda: informer.state.last_error, "the error is told")
        await informer.stop()
    assert "no end" in informer.state.last_error


async def test_a_line_without_end_is_not_kept(cluster: Cluster) -> None:
    limits = ClientLimits(line_bytes=1_000)
    async with KubeClient(cluster.server.connection(), limits=limits) as client:
        found = Watched(Informer(client, kinds.POD, decode=shapes.SlimPod))
        stream = await started(found, cluster, "a")
        for _ in range(30):
            stream.send(b"x" * 100)
        await cluster.watched(2)
        await found.informer.stop()
    assert cluster.lists == 2


async def test_more_objects_than_are_kept_are_an_error_and_not_memory(cluster: Cluster) -> None:
    for count in range(20):
        cluster.put(f"p{count:02}")
    async with KubeClient(cluster.server.connection()) as client:
        informer: Informer[dict[str, Any]] = Informer(client, kinds.POD, max_objects=10)
        informer.start()
        await wait_until_async(lambda: informer.state.last_error, "the error is told")
        await informer.stop()
    assert "more than 10 pods" in informer.state.last_error
    assert not informer.synced


async def test_what_is_kept_may_be_made_of_what_was_read(cluster: Cluster) -> None:
    cluster.put("a", "n1")
    async with KubeClient(cluster.server.connection()) as client:
        informer: Informer[str] = Informer(
            client, kinds.POD, namespace="ml", convert=lambda pod: str(pod["spec"]["nodeName"])
        )
        informer.start()
        assert await informer.wait_synced(20)
        await informer.stop()
    assert informer.items() == ["n1"]
    assert cluster.server.requests[0].path == "/api/v1/namespaces/ml/pods"


async def test_a_callback_that_fails_hinders_neither_the_others_nor_the_informer(
    watched: Watched, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(change: Change[shapes.SlimPod]) -> None:
        raise LookupError(change.name)

    watched.informer.on_change(fail)
    later: list[str] = []
    watched.informer.on_change(lambda change: later.append(change.name))
    await started(watched, cluster, "a")
    cluster.put("b")
    await watched.told("ADDED b")
    assert later == ["a", "b"]
    assert "a callback failed" in caplog.text


async def test_waiting_for_a_change_misses_none_between_looking_and_waiting(
    watched: Watched, cluster: Cluster
) -> None:
    await started(watched, cluster, "a")
    seen = watched.informer.generation
    assert not await watched.informer.wait_changed(0.01, since=seen)
    cluster.put("b")
    await watched.told("ADDED b")
    assert await watched.informer.wait_changed(0, since=seen)
    waiting = asyncio.create_task(watched.informer.wait_changed(20))
    await asyncio.sleep(0)
    cluster.put("c")
    assert await waiting


async def test_everything_is_looked_at_again_at_each_resync(cluster: Cluster) -> None:
    async with KubeClient(cluster.server.connection()) as client:
        informer: Informer[shapes.SlimPod] = Informer(
            client, kinds.POD, decode=shapes.SlimPod, resync_s=0, relist_s=0
        )
        found = Watched(informer)
        stream = await started(found, cluster, "a")
        cluster.put("b")
        stream.end()
        await cluster.watched(2)
        await informer.stop()
    assert found.changes[:4] == ["ADDED a", "ADDED b", "RESYNCED a", "RESYNCED b"]
    assert cluster.lists == 2


async def test_a_stopped_informer_closes_its_watch_and_keeps_what_it_knew(
    watched: Watched, cluster: Cluster
) -> None:
    stream = await started(watched, cluster, "a")
    await watched.informer.stop()
    await asyncio.wait_for(stream.closed.wait(), 20)
    assert watched.names() == ["a"]
