"""The client against what API servers answer seldom: waits, rotations, cut connections, lies."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import (
    Conflict,
    Gone,
    KubeError,
    NotThere,
    ServerTrouble,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    Unreadable,
)
from gpuplane.kube.sessions import ClientLimits
from tests.certificates import DAY
from tests.clocks import FakeClock
from tests.integration.kube.scripted import Reply, Request, ScriptedServer, Stream
from tests.waiting import wait_until_async

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "ml"}}


def refusal(code: int, reason: str, **details: Any) -> Reply:
    body = {"kind": "Status", "reason": reason, "message": f"{reason}!", "details": details}
    return Reply(code, body)


async def test_a_request_carries_the_token_and_says_who_asks(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.handler = lambda request: Reply(body=POD)
    assert await client.get(kinds.POD, "a", "ml") == POD
    request = server.requests[0]
    assert (request.method, request.path) == ("GET", "/api/v1/namespaces/ml/pods/a")
    assert request.headers["authorization"] == "Bearer the-token"
    assert request.headers["user-agent"].startswith("gpuplane/")


async def test_a_client_certificate_is_shown_and_leaves_no_file(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    pair = server.authority.sign("deployer")
    connection = server.connection(token=None, certificate_pem=pair.certificate, key_pem=pair.key)
    server.handler = lambda request: Reply(body=POD)
    async with KubeClient(connection) as client:
        await client.get(kinds.POD, "a", "ml")
    assert server.requests[0].peer == "deployer"
    assert "authorization" not in server.requests[0].headers
    assert list(folder.iterdir()) == []


async def test_what_it_was_asked_to_wait_for_is_waited_for(
    server: ScriptedServer, client: KubeClient, clock: FakeClock
) -> None:
    answers = [Reply(429, {}, {"Retry-After": "2"}), Reply(503, {}, {"Retry-After": "3"})]
    server.handler = lambda request: answers.pop(0) if answers else Reply(body=POD)
    asked = asyncio.create_task(client.create(POD))
    while not asked.done():
        await clock.advance(1)
        await asyncio.wait([asked], timeout=0.01)
    assert (await asked)["metadata"]["name"] == "a"
    assert len(server.requests) == 3
    assert clock.monotonic() >= 5


async def test_a_wait_that_would_outlast_the_request_is_told_and_not_begun(
    server: ScriptedServer,
) -> None:
    server.handler = lambda request: Reply(429, {}, {"Retry-After": "5"})
    async with KubeClient(server.connection(), limits=ClientLimits(request_s=4)) as client:
        with pytest.raises(TooManyRequests) as caught:
            await client.get(kinds.POD, "a", "ml")
    assert caught.value.retry_after_s == 5
    assert len(server.requests) == 1


async def test_it_gives_up_after_its_retries(server: ScriptedServer, clock: FakeClock) -> None:
    server.handler = lambda request: Reply(429, {}, {"Retry-After": "0"})
    limits = ClientLimits(retries=2)
    async with KubeClient(server.connection(), limits=limits) as client:
        with pytest.raises(TooManyRequests):
            await client.get(kinds.POD, "a", "ml")
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "answer",
    [
        Reply(429, {}, {"Retry-After": "3600"}),
        Reply(429, {}),
        Reply(503, {}),
        Reply(500, {}, {"Retry-After": "1"}),
    ],
    ids=["an hour", "no wait named", "503 without a wait", "another failure"],
)
async def test_other_waits_are_told_and_not_waited_for(
    server: ScriptedServer, client: KubeClient, answer: Reply
) -> None:
    server.handler = lambda request: answer
    with pytest.raises((TooManyRequests, ServerTrouble)):
        await client.get(kinds.POD, "a", "ml")
    assert len(server.requests) == 1


async def test_an_eviction_that_a_budget_forbids_is_told_at_once(
    server: ScriptedServer, client: KubeClient
) -> None:
    causes = [{"reason": "DisruptionBudget", "message": "The budget a needs 1 healthy pods"}]
    server.handler = lambda request: refusal(
        429, "TooManyRequests", retryAfterSeconds=1, causes=causes
    )
    with pytest.raises(TooManyRequests):
        await client.evict("a", "ml", 30)
    assert len(server.requests) == 1
    assert server.requests[0].json["deleteOptions"] == {"gracePeriodSeconds": 30}


async def test_a_token_file_is_read_again_when_it_was_replaced(
    server: ScriptedServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("first\n", encoding="ascii")
    server.handler = lambda request: Reply(body=POD)
    async with KubeClient(server.connection(token=None, token_file=file)) as client:
        await client.get(kinds.POD, "a", "ml")
        renewed = tmp_path / "renewed"
        renewed.write_text("second\n", encoding="ascii")
        renewed.replace(file)
        await client.get(kinds.POD, "a", "ml")
        file.unlink()
        await client.get(kinds.POD, "a", "ml")
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer first", "Bearer second", "Bearer second"]


async def test_an_answer_401_reads_the_token_file_once_more(
    server: ScriptedServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old", encoding="ascii")

    def handler(request: Request) -> Reply:
        if request.headers["authorization"] == "Bearer old":
            file.write_text("newer", encoding="ascii")
            return refusal(401, "Unauthorized")
        return Reply(body=POD)

    server.handler = handler
    async with KubeClient(server.connection(token=None, token_file=file)) as client:
        assert await client.get(kinds.POD, "a", "ml") == POD
    assert len(server.requests) == 2


async def test_expired_credentials_are_told_as_such(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.handler = lambda request: refusal(401, "Unauthorized")
    with pytest.raises(Unauthorized):
        await client.get(kinds.POD, "a", "ml")
    assert len(server.requests) == 1


async def test_a_connection_that_the_server_closed_meanwhile_is_no_failure(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.handler = lambda request: Reply(body=POD)
    await client.get(kinds.POD, "a", "ml")
    server.drop_connections()
    assert await client.get(kinds.POD, "a", "ml") == POD
    assert server.connections == 2


async def test_a_server_that_is_away_is_unreachable_and_is_reached_again(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.handler = lambda request: Reply(body=POD)
    await server.stop()
    with pytest.raises(Unreachable) as caught:
        await client.create(POD)
    assert "the-token" not in str(caught.value)
    await server.start()
    assert await client.create(POD) == POD


async def test_a_server_that_says_nothing_is_given_up(server: ScriptedServer) -> None:
    silence = asyncio.Event()

    async def handler(request: Request) -> Reply:
        await silence.wait()
        return Reply()

    server.handler = handler
    async with KubeClient(server.connection(), limits=ClientLimits(request_s=0.2)) as client:
        with pytest.raises(Unreachable) as caught:
            await client.get(kinds.POD, "a", "ml")
    silence.set()
    assert caught.value.reason == "Timeout"


async def test_a_request_that_is_called_off_ends_at_once_and_leaves_no_connection(
    server: ScriptedServer, client: KubeClient
) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Reply:
        asked.set()
        await left.wait()
        return Reply(body=POD)

    server.handler = handler
    for way in (client.get(kinds.POD, "a", "ml"), anext(client.follow_log("a", "ml"))):
        asked.clear()
        request = asyncio.ensure_future(way)
        await asked.wait()
        request.cancel()
        await asyncio.wait([request], timeout=2)
        assert request.cancelled()
    left.set()
    await wait_until_async(lambda: server.open_connections() == 0, "no connection is left")


async def let_run(turns: int) -> None:
    """Give the loop so many turns: no event tells how far a request has come inside the library."""
    for _ in range(turns):
        await asyncio.sleep(0)


def is_sending(task: asyncio.Task[Any]) -> bool:
    """Return whether a task is a request that the library carries."""
    return getattr(task.get_coro(), "__qualname__", "") == "AsyncClient.send"


@pytest.mark.parametrize("times", [1, 2], ids=["once", "again-while-it-ends"])
async def test_a_handshake_that_is_called_off_leaves_no_request_and_no_socket(
    server: ScriptedServer, times: int
) -> None:
    for turns in range(30):
        async with KubeClient(server.connection()) as client:
            request = asyncio.create_task(client.get(kinds.POD, "a", "ml"))
            await let_run(turns)
            for _ in range(times):
                request.cancel()
                await let_run(1)
            await asyncio.wait([request])
        assert not any(is_sending(each) for each in asyncio.all_tasks()), turns
    gc.collect()  # a socket that was left would be told here, and warnings are errors
    await wait_until_async(lambda: server.open_connections() == 0, "no connection is left")


async def test_a_server_that_drips_is_given_up(server: ScriptedServer) -> None:
    stream = Stream()

    def handler(request: Request) -> Stream:
        return stream

    server.handler = handler

    async def drip() -> None:
        while not stream.closed.is_set():
            stream.send(b" ")
            await asyncio.wait([asyncio.create_task(stream.closed.wait())], timeout=0.02)

    dripping = asyncio.create_task(drip())
    async with KubeClient(server.connection(), limits=ClientLimits(request_s=0.3)) as client:
        with pytest.raises(Unreachable):
            await client.get(kinds.POD, "a", "ml")
    await dripping


async def test_a_slow_cluster_does_not_slow_another(server: ScriptedServer, tmp_path: Path) -> None:
    held = asyncio.Event()

    async def slow(request: Request) -> Reply:
        await held.wait()
        return Reply(body=POD)

    server.handler = slow
    folder = tmp_path / "other"
    folder.mkdir()
    other = ScriptedServer(folder)
    await other.start()
    other.handler = lambda request: Reply(body=POD)
    async with KubeClient(server.connection()) as first, KubeClient(other.connection()) as second:
        waiting = [asyncio.create_task(first.get(kinds.POD, "a", "ml")) for _ in range(40)]
        for _ in range(50):
            assert await second.get(kinds.POD, "a", "ml") == POD
        assert not any(task.done() for task in waiting)
        held.set()
        assert await asyncio.gather(*waiting) == [POD] * 40
    await other.stop()


async def test_a_certificate_that_is_not_trusted_ends_the_connection_before_the_token_is_sent(
    server: ScriptedServer, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = ScriptedServer(folder)
    connection = server.connection(ca_pem=other.authority.certificate)
    async with KubeClient(connection) as client:
        with pytest.raises(Unreachable) as caught:
            await client.version()
    assert caught.value.reason == "CertificateNotTrusted"
    assert server.requests == []


async def test_a_certificate_of_another_name_or_time_is_not_trusted(tmp_path: Path) -> None:
    for hosts, ends in ((("elsewhere.example",), DAY), (("127.0.0.1",), -DAY / 2)):
        server = ScriptedServer(tmp_path)
        await server.start(pair=server.authority.sign("server", hosts=hosts, ends=ends))
        async with KubeClient(server.connection()) as client:
            with pytest.raises(Unreachable) as caught:
                await client.version()
        assert caught.value.reason == "CertificateNotTrusted"
        await server.stop()


async def test_the_name_of_the_certificate_may_be_told_apart_from_the_address(
    tmp_path: Path,
) -> None:
    server = ScriptedServer(tmp_path)
    await server.start(pair=server.authority.sign("server", hosts=("api.east.example",)))
    server.handler = lambda request: Reply(body={"major": "1", "minor": "28+"})
    async with KubeClient(server.connection(tls_server_name="api.east.example")) as client:
        found = await client.version()
    await server.stop()
    assert (found.major, found.minor) == (1, 28)


async def test_a_redirect_is_not_followed(server: ScriptedServer, client: KubeClient) -> None:
    server.handler = lambda request: Reply(302, b"", {"Location": "https://127.0.0.1:1/"})
    with pytest.raises(Unreadable, match="redirects are not followed"):
        await client.get(kinds.POD, "a", "ml")


@pytest.mark.parametrize(
    "answer",
    [
        Reply(200, b"<html>login</html>", {"Content-Type": "text/html"}),
        Reply(200, b"[1]"),
        Reply(200, b""),
    ],
)
async def test_an_answer_that_is_no_object_is_refused(
    server: ScriptedServer, client: KubeClient, answer: Reply
) -> None:
    server.handler = lambda request: answer
    with pytest.raises(Unreadable):
        await client.get(kinds.POD, "a", "ml")


async def test_an_answer_without_end_is_cut_also_when_it_is_packed(server: ScriptedServer) -> None:
    packed = gzip.compress(b'{"a": "' + b"x" * (4 << 20) + b'"}')
    server.handler = lambda request: Reply(200, packed, {"Content-Encoding": "gzip"})
    assert len(packed) < 10_000
    limits = ClientLimits(body_bytes=1 << 20)
    async with KubeClient(server.connection(), limits=limits) as client:
        with pytest.raises(Unreadable, match="longer than"):
            await client.get(kinds.POD, "a", "ml")


async def test_a_list_is_read_in_pages_and_begun_anew_when_its_token_is_too_old(
    server: ScriptedServer, client: KubeClient
) -> None:
    gone = [True]

    def handler(request: Request) -> Reply:
        if request.param("continue") is None:
            meta = {"resourceVersion": "5", "continue": "more"}
            return Reply(body={"metadata": meta, "items": [POD | {"metadata": {"name": "a"}}]})
        if gone.pop() if gone else False:
            return refusal(410, "Expired")
        return Reply(
            body={"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "b"}}]}
        )

    server.handler = handler
    found = await client.list(kinds.POD, "ml", {"app": "x"}, "status.phase!=Failed")
    assert [one["metadata"]["name"] for one in found] == ["a", "b"]
    assert {(one["apiVersion"], one["kind"]) for one in found} == {("v1", "Pod")}
    assert [request.param("limit") for request in server.requests] == ["500"] * 4
    assert server.requests[0].param("labelSelector") == "app=x"
    assert server.requests[0].param("fieldSelector") == "status.phase!=Failed"


async def test_a_list_whose_token_is_always_too_old_ends(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.handler = lambda request: (
        Reply(body={"metadata": {"continue": "x"}, "items": []})
        if request.param("continue") is None
        else refusal(410, "Expired")
    )
    with pytest.raises(Gone):
        await client.list(kinds.POD)
    assert len(server.requests) == 6


async def test_an_answer_nested_too_deeply_is_unreadable(
    server: ScriptedServer, client: KubeClient
) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    server.handler = lambda _: Reply(body=b'{"metadata":{},"x":' + deep + b',"items":[]}')
    with pytest.raises(Unreadable):
        await client.get(kinds.POD, "a", "ml")
    with pytest.raises(Unreadable):
        await client.list(kinds.POD, "ml")
    server.handler = lambda _: Reply(404, b'{"details":' + deep + b"}")
    with pytest.raises(NotThere):
        await client.get(kinds.POD, "a", "ml")


async def test_a_delete_of_another_of_the_same_name_leaves_it_alone(
    server: ScriptedServer, client: KubeClient
) -> None:
    def handler(request: Request) -> Reply:
        if request.method == "DELETE":
            return refusal(409, "Conflict")
        return Reply(body={"metadata": {"name": "a", "uid": "new"}})

    server.handler = handler
    await client.delete(kinds.POD, "a", "ml", uid="old", grace_s=5)
    assert server.requests[0].json == {
        "propagationPolicy": "Background",
        "preconditions": {"uid": "old"},
        "gracePeriodSeconds": 5,
    }
    with pytest.raises(Conflict):
        await client.delete(kinds.POD, "a", "ml", uid="new")


async def test_replacing_without_a_version_and_applying_without_a_name_are_refused(
    client: KubeClient,
) -> None:
    with pytest.raises(ValueError, match="resourceVersion"):
        await client.replace(POD)
    with pytest.raises(ValueError, match="no name"):
        await client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {}})
    with pytest.raises(ValueError, match="namespace"):
        await client.create(POD, "other")


async def test_nothing_of_a_secret_reaches_the_log(
    server: ScriptedServer, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.handler = lambda request: refusal(403, "Forbidden")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "namespace": "ml"},
        "stringData": {"password": "correct horse"},
    }
    with pytest.raises(KubeError) as caught:
        await client.apply(secret)
    told = caplog.text + str(caught.value) + repr(client.connection) + repr(vars(caught.value))
    assert server.requests[0].json == secret
    assert "correct horse" not in told
    assert "the-token" not in told


async def test_a_closed_client_says_so(server: ScriptedServer) -> None:
    client = KubeClient(server.connection())
    await client.close()
    with pytest.raises(Unreachable, match="closed"):
        await client.version()


@pytest.mark.parametrize(
    "way",
    [
        lambda client: client.get(kinds.POD, "a", "ml"),
        lambda client: anext(client.follow_log("a", "ml")),
        lambda client: anext(client.watch(kinds.POD, resource_version="1")),
    ],
    ids=["a request", "a log", "a watch"],
)
@pytest.mark.parametrize("begun", [False, True])
async def test_what_is_under_way_when_a_client_is_closed_ends_as_unreachable(
    server: ScriptedServer, way: Callable[[KubeClient], Awaitable[Any]], begun: bool
) -> None:
    asked, left, stream = asyncio.Event(), asyncio.Event(), Stream()

    async def handler(request: Request) -> Reply | Stream:
        asked.set()
        if not begun:
            await left.wait()
        return stream

    server.handler = handler
    client = KubeClient(server.connection())
    under_way = asyncio.ensure_future(way(client))
    await asyncio.wait_for(asked.wait(), 20)
    await asyncio.wait([under_way], timeout=0.05)
    await client.close()
    left.set()
    with pytest.raises(Unreachable):
        await asyncio.wait_for(under_way, 20)


async def test_a_key_that_does_not_fit_its_certificate_is_told_without_it(
    server: ScriptedServer,
) -> None:
    one, other = server.authority.sign("one"), server.authority.sign("other")
    connection = server.connection(certificate_pem=one.certificate, key_pem=other.key)
    async with KubeClient(connection) as client:
        with pytest.raises(Unreachable) as caught:
            await client.version()
    assert caught.value.reason == "Tls"
    assert "PRIVATE" not in str(caught.value)


async def test_what_is_served_is_asked_once_in_a_while(
    server: ScriptedServer, client: KubeClient, clock: FakeClock
) -> None:
    group = {
        "versions": [{"version": "v1beta1"}, {"version": "v1beta2"}],
        "preferredVersion": {"version": "v1beta2"},
    }
    resources = {
        "resources": [
            {"name": "workloads", "kind": "Workload", "namespaced": True},
            {"name": "workloads/status", "kind": "Workload", "namespaced": True},
        ]
    }

    def handler(request: Request) -> Reply:
        parts = request.path.split("/")
        if parts[2] != "kueue.x-k8s.io":
            return refusal(404, "NotFound")
        return Reply(body=group if len(parts) == 3 else resources)

    server.handler = handler
    found = await client.served("kueue.x-k8s.io")
    assert found is not None
    assert (found.preferred, found.versions) == ("v1beta2", ("v1beta2", "v1beta1"))
    assert await client.resolve(kinds.WORKLOAD.at("v1alpha1")) == kinds.WORKLOAD.at("v1beta2")
    assert await client.resolve(kinds.WORKLOAD) == kinds.WORKLOAD
    assert await client.resolve(kinds.COHORT) is None
    assert await client.served("keda.sh") is None
    asked = len(server.requests)
    await client.served("kueue.x-k8s.io")
    assert len(server.requests) == asked
    await clock.advance(4)
    assert await client.served("keda.sh") is None
    asked += 1
    assert len(server.requests) == asked
    await clock.advance(61)
    await client.served("kueue.x-k8s.io")
    assert len(server.requests) == asked + 1
