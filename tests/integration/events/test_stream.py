"""Events take their place in commit order, are listed, streamed with resume, and pruned."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from sqlalchemy import text

from gpuplane.db.database import Database
from gpuplane.db.leases import LeaseKeeper
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.events import service
from gpuplane.domains.events.rules import wants
from gpuplane.domains.events.service import NewEvent
from gpuplane.kit.access import Role
from gpuplane.kit.bodies import page_request
from gpuplane.kit.feeds import Feed
from gpuplane.kit.pagination import Page, PageRequest
from gpuplane.loops.relay import RelayLoop
from tests.clocks import NOON_MS, FakeClock
from tests.databases import make_tables
from tests.http_app import Server, listening


def an_event(kind: str = "job.running", **more: Any) -> NewEvent:
    return NewEvent(
        kind=kind, **{"at": NOON_MS, "subject_kind": "job", "subject_id": uuid4(), **more}
    )


@pytest.fixture
def database(database_url: str) -> Any:
    opened = Database(database_url)
    make_tables(opened)
    yield opened
    opened.close()


def a_relay(database: Database, feed: Feed | None = None, owner: str = "one") -> RelayLoop:
    leases = LeaseKeeper(database, FakeClock(), owner)
    return RelayLoop(database, leases, (feed or Feed()).publish)


async def record(database: Database, *events: NewEvent) -> None:
    await database.write("tests.record", lambda s: service.record_many(s, events))


async def positions(database: Database) -> list[tuple[str, int | None]]:
    def query(session: ReadSession) -> list[tuple[str, int | None]]:
        found = session.sql.execute(text("SELECT kind, position FROM events_events ORDER BY seq"))
        return [(row[0], row[1]) for row in found]

    return await database.read(query)


async def test_events_get_consecutive_positions_in_the_order_of_commit(
    database: Database,
) -> None:
    relay = a_relay(database)
    await record(database, an_event("a.one"), an_event("a.two"))
    assert await positions(database) == [("a.one", None), ("a.two", None)]
    await relay.run_once()
    await record(database, an_event("a.three"))
    await relay.run_once()
    assert await positions(database) == [("a.one", 1), ("a.two", 2), ("a.three", 3)]


async def test_a_relay_without_news_writes_nothing(database: Database) -> None:
    relay = a_relay(database)
    assert await relay.run_once() is False
    assert "events.relay" not in database.times


@pytest.mark.postgresql
async def test_a_second_process_leaves_the_stream_to_the_holder_of_the_lease(
    postgresql_url: str,
) -> None:
    database = Database(postgresql_url)
    make_tables(database)
    try:
        await record(database, an_event("a.one"))
        await a_relay(database, owner="one").run_once()
        await record(database, an_event("a.two"))
        await a_relay(database, owner="two").run_once()
        assert await positions(database) == [("a.one", 1), ("a.two", None)]
    finally:
        database.close()


@pytest.mark.postgresql
async def test_relays_at_the_same_time_give_each_position_once(postgresql_url: str) -> None:
    database = Database(postgresql_url)
    make_tables(database)
    try:
        await record(database, *(an_event() for _ in range(300)))
        relays = [database.write("events.relay", service.relay) for _ in range(6)]
        counts = await asyncio.gather(*relays)
        assert sum(counts) == 300
        found = sorted(position or 0 for _, position in await positions(database))
        assert found == list(range(1, 301))
    finally:
        database.close()


@pytest.mark.postgresql
async def test_an_event_whose_transaction_commits_late_is_not_skipped(
    postgresql_url: str,
) -> None:
    database = Database(postgresql_url)
    make_tables(database)
    inside, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(session: Any) -> None:
        service.record(session, an_event("slow.first"))
        loop.call_soon_threadsafe(inside.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

    try:
        task = asyncio.create_task(database.write("tests.slow", slow))
        await inside.wait()
        await record(database, an_event("quick.second"))
        await a_relay(database).run_once()
        assert await positions(database) == [("quick.second", 1)]
        go_on.set()
        await task
        await a_relay(database).run_once()
        assert await positions(database) == [("slow.first", 2), ("quick.second", 1)]
    finally:
        go_on.set()
        database.close()


async def test_ten_thousand_events_are_recorded_and_relayed_in_seconds(
    database: Database,
) -> None:
    events = [an_event() for _ in range(10_000)]
    started = time.monotonic()
    await record(database, *events)
    relay = a_relay(database)
    assert await relay.run_once() is True
    while await relay.run_once():
        pass
    assert time.monotonic() - started < 20
    assert await database.read(service.last_position) == 10_000


# -- lists ------------------------------------------------------------------------------------


async def relayed(server: Server, *events: NewEvent) -> None:
    await record(server.database, *events)
    feed: Feed = server.ports["event_feed"]
    loop = RelayLoop(server.database, LeaseKeeper(server.database, server.clock, "t"), feed.publish)
    while await loop.run_once():
        pass


async def kinds(client: httpx2.AsyncClient, query: str) -> list[str]:
    answer = await client.get(f"/api/v1/events?{query}")
    assert answer.status_code == 200, answer.text
    return [event["kind"] for event in answer.json()["items"]]


async def test_events_are_found_by_what_they_are_about(any_server: Server) -> None:
    job, cluster = uuid4(), uuid4()
    await relayed(
        any_server,
        an_event("job.queued", subject_id=job, at=NOON_MS),
        an_event("job.running", subject_id=job, cluster_id=cluster, at=NOON_MS + 1_000),
        an_event("node.lost", subject_kind="node", subject_id="n1", at=NOON_MS + 2_000),
        an_event("jobs_%.odd", at=NOON_MS + 3_000),
    )
    client = any_server.http
    assert await kinds(client, f"job_id={job}") == ["job.running", "job.queued"]
    assert await kinds(client, f"job_id={job}&sort=seq") == ["job.queued", "job.running"]
    assert await kinds(client, f"cluster_id={cluster}") == ["job.running"]
    assert await kinds(client, "kind=job.*") == ["job.running", "job.queued"]
    assert await kinds(client, "kind=node.lost&kind=job.queued") == ["node.lost", "job.queued"]
    assert await kinds(client, "subject_kind=node&subject_id=n1") == ["node.lost"]
    since = "since=2026-03-01T12:00:01Z&until=2026-03-01T12:00:03Z"
    assert await kinds(client, since) == ["node.lost", "job.running"]


def _events_of(session: ReadSession, job: UUID, page: PageRequest) -> Page[service.Event]:
    return service.list_events_of(session, "job", job, page)


async def test_what_happened_to_a_thing_is_listed_in_order_of_time_however_late_it_is_told(
    database: Database,
) -> None:
    job = uuid4()
    await record(database, an_event("job.queued", subject_id=job, at=NOON_MS),
                 an_event("job.ended", subject_id=job, at=NOON_MS + 2_000))  # fmt: skip
    await record(database, an_event("job.running", subject_id=job, at=NOON_MS + 1_000),
                 an_event("job.progress", subject_id=job, at=NOON_MS + 1_000))  # fmt: skip
    seen: list[str] = []
    cursor: str | None = None
    while not seen or cursor is not None:
        page = page_request(3, cursor, sort=service.SORT_TIME)
        found = await database.read(partial(_events_of, job=job, page=page))
        seen += [event.kind for event in found.items]
        cursor = found.next_cursor
    assert seen == ["job.queued", "job.running", "job.progress", "job.ended"]


async def test_a_tenant_sees_its_own_events_alone(any_server: Server) -> None:
    acme, project = await any_server.make_tenant("acme")
    rival, _ = await any_server.make_tenant("rival")
    other = await any_server.make_project(acme, "other")
    _, token = await any_server.make_user("ada", Role.MEMBER, acme, project)
    _, boss = await any_server.make_user("boss", Role.VIEWER, acme, project, on="tenant")
    await relayed(
        any_server,
        an_event("job.mine", tenant_id=acme, project_id=project),
        an_event("job.other", tenant_id=acme, project_id=other),
        an_event("job.rival", tenant_id=rival),
        an_event("job.platform"),
    )
    assert await kinds(any_server.client(token), "kind=job.") == ["job.mine"]
    assert await kinds(any_server.client(boss), "kind=job.") == ["job.other", "job.mine"]
    assert await kinds(any_server.client(token), f"tenant_id={rival}") == []


# -- the stream -------------------------------------------------------------------------------


class Reader:
    """Reads frames of an event stream as a browser does."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._lines = answer.aiter_lines()
        self.last_id = ""

    async def next(self) -> dict[str, Any]:
        """Return the next event's data, remembering ids on the way."""
        async with asyncio.timeout(20):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if name == "id":
                    self.last_id = value
                elif name == "data":
                    found: dict[str, Any] = json.loads(value)
                    return found
        raise AssertionError("the stream ended")

    async def rest(self) -> list[str]:
        """Return the data lines up to the end of the stream."""
        return [line async for line in self._lines if line.startswith("data: ")]

    async def first_id(self) -> str:
        """Return the position the stream starts from."""
        async for line in self._lines:
            if line.startswith("id: "):
                return line.removeprefix("id: ")
        raise AssertionError("the stream ended")


@pytest.fixture
async def stream_url(any_server: Server) -> AsyncIterator[str]:
    async with listening(any_server.app) as url:
        yield url
        any_server.ports["event_feed"].close()


def opened(server: Server, url: str, query: str = "", **headers: str) -> Any:
    client = httpx2.AsyncClient(base_url=url, timeout=20)
    server.clients.append(client)
    given = {"Authorization": f"Bearer {server.admin_token}", **headers}
    return client.stream("GET", f"/api/v1/events/stream{query}", headers=given)


async def test_the_stream_shows_what_happens_and_resumes_where_it_was_left(
    any_server: Server, stream_url: str
) -> None:
    async with opened(any_server, stream_url, "?kind=job.*") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        reader = Reader(answer)
        await reader.first_id()
        await relayed(any_server, an_event("job.one"), an_event("node.no"), an_event("job.two"))
        assert [(await reader.next())["kind"] for _ in range(2)] == ["job.one", "job.two"]
        last = reader.last_id
    await relayed(any_server, an_event("job.three"))
    headers = {"Last-Event-ID": last}
    async with opened(any_server, stream_url, "?kind=job.*", **headers) as answer:
        reader = Reader(answer)
        assert (await reader.next())["kind"] == "job.three"
        await relayed(any_server, an_event("job.four"))
        assert (await reader.next())["kind"] == "job.four"


async def test_the_list_streams_when_asked_for_an_event_stream(
    any_server: Server, stream_url: str
) -> None:
    client = any_server.client(any_server.admin_token)
    client = httpx2.AsyncClient(base_url=stream_url, headers=client.headers, timeout=20)
    any_server.clients.append(client)
    await relayed(any_server, an_event("job.one"))
    headers = {"Accept": "text/event-stream", "Last-Event-ID": "0"}
    async with client.stream("GET", "/api/v1/events?kind=job.*", headers=headers) as answer:
        assert (await Reader(answer).next())["kind"] == "job.one"


async def test_more_events_than_one_batch_arrive_complete_and_in_order(
    any_server: Server, stream_url: str
) -> None:
    start = await any_server.database.read(service.last_position)
    names = [f"bulk.n{number}" for number in range(450)]
    await relayed(any_server, *(an_event(name) for name in names))
    async with opened(any_server, stream_url, f"?after={start}&kind=bulk.*") as answer:
        reader = Reader(answer)
        assert [(await reader.next())["kind"] for _ in names] == names


async def test_an_expired_position_is_gone_and_a_damaged_one_is_refused(
    any_server: Server,
) -> None:
    await relayed(any_server, *(an_event("job.old") for _ in range(5)))
    pruned = await any_server.database.write(
        "events.prune", lambda s: service.prune(s, NOON_MS + 1)
    )
    assert pruned == 5
    gone = await any_server.http.get("/api/v1/events/stream", headers={"Last-Event-ID": "2"})
    assert (gone.status_code, gone.json()["code"]) == (410, "cursor_expired")
    beyond = await any_server.http.get("/api/v1/events/stream", headers={"Last-Event-ID": "999"})
    assert beyond.status_code == 410
    for damaged in ("x", "-1", "9" * 30, "1.5"):
        refused = await any_server.http.get(
            "/api/v1/events/stream", headers={"Last-Event-ID": damaged}
        )
        assert refused.status_code == 400
    assert await kinds(any_server.http, "kind=job.old") == []


async def test_the_audit_trail_is_kept_longer_than_the_rest(database: Database) -> None:
    await record(database, an_event("job.old"), an_event("secret.accessed", audit=True))
    await a_relay(database).run_once()

    async def prune(audited_before: int) -> int:
        return await database.write(
            "events.prune", lambda s: service.prune(s, NOON_MS + 1, audited_before)
        )

    assert await prune(NOON_MS - 1) == 1
    assert [kind for kind, _ in await positions(database)] == ["secret.accessed"]
    assert await prune(NOON_MS + 1) == 1
    assert await positions(database) == []


async def test_a_reader_too_many_is_sent_away(any_server: Server) -> None:
    feed: Feed = any_server.ports["event_feed"]
    feed.readers = feed.max_readers
    answer = await any_server.http.get("/api/v1/events/stream")
    assert (answer.status_code, answer.json()["code"]) == (503, "too_many_streams")
    assert answer.headers["Retry-After"] == "10"


async def test_a_stream_ends_when_the_server_stops_and_frees_its_place(
    any_server: Server, stream_url: str
) -> None:
    feed: Feed = any_server.ports["event_feed"]
    async with opened(any_server, stream_url) as answer:
        reader = Reader(answer)
        await reader.first_id()
        assert feed.readers == 1
        feed.close()
        async with asyncio.timeout(20):
            assert await reader.rest() == []
    assert feed.readers == 0


async def test_a_things_own_events_are_listed_before_they_are_relayed(
    any_server: Server,
) -> None:
    job = uuid4()
    await record(any_server.database, an_event("job.queued", subject_id=job))
    page = await any_server.database.read(
        lambda s: service.list_events_of(s, "job", job, PageRequest())
    )
    assert [event.kind for event in page.items] == ["job.queued"]
    assert page.items[0].position is None


def test_a_filter_of_kinds_matches_exact_words_and_prefixes() -> None:
    assert wants((), "job.completed")
    assert wants(("job.completed",), "job.completed")
    assert not wants(("job.complete",), "job.completed")
    assert wants(("job.*",), "job.completed")
    assert wants(("job.",), "job.completed")
    assert not wants(("node.*", "job.failed"), "job.completed")
