"""Events reach webhooks signed, once it can; failures are retried, then given up aloud."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from fastapi import FastAPI, Request, Response
from sqlalchemy import text

from gpuplane.core.ids import ClusterId
from gpuplane.db.leases import LeaseKeeper
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.events import service
from gpuplane.domains.events.rules import compute_next_try
from gpuplane.domains.events.service import NewEvent, WebhookPolicy
from gpuplane.kit.access import Role
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kit.targets import address_refusal, literal_address, parse_target
from gpuplane.loops.relay import RelayLoop
from gpuplane.loops.webhooks import WebhookLoop
from tests.http_app import Server, listening, running_server

POLICY = WebhookPolicy(allowed_hosts=("127.0.0.0/8",), tries=3, disable_after=4, per_tenant=5)


@dataclass(frozen=True)
class FoundCluster:
    id: ClusterId


CLUSTER = FoundCluster(ClusterId(uuid4()))


@dataclass
class Receiver:
    """A real HTTP server that takes deliveries, or refuses them."""

    url: str = ""
    status: int = 200
    taken: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/hook")
        async def hook(request: Request) -> Response:
            self.taken.append((dict(request.headers), await request.body()))
            return Response(status_code=self.status, headers={"Location": "http://10.0.0.1/"})

        return app

    def kinds(self) -> list[str]:
        return [headers["gpuplane-event"] for headers, _ in self.taken]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    async with listening(made.app()) as url:
        made.url = f"{url}/hook"
        yield made


@pytest.fixture
async def hooked(database_url: str, sealing_keys: SealingKeys) -> AsyncIterator[Server]:
    ports = {
        "webhook_policy": POLICY,
        "find_cluster": lambda _, key: CLUSTER if key in ("demo", str(CLUSTER.id)) else None,
    }
    async with running_server(database_url, sealing_keys, ports=ports) as server:
        yield server


@pytest.fixture
async def sender(hooked: Server) -> AsyncIterator[WebhookLoop]:
    async with httpx2.AsyncClient(trust_env=False, follow_redirects=False) as client:
        yield WebhookLoop(
            hooked.database,
            hooked.clock,
            LeaseKeeper(hooked.database, hooked.clock, "test"),
            hooked.ports["sealing"],
            POLICY,
            client,
            lambda: 0.5,
        )


async def happen(server: Server, *kinds: str, **more: Any) -> None:
    events = [
        NewEvent(
            kind=kind,
            **{
                "at": server.clock.now_ms(),
                "subject_kind": "job",
                "subject_id": uuid4(),
                "tenant_id": server.admin.tenant_id,
                **more,
            },
        )
        for kind in kinds
    ]
    await server.database.write("tests.record", lambda s: service.record_many(s, events))
    leases = LeaseKeeper(server.database, server.clock, "test")
    await RelayLoop(server.database, leases, lambda: None).run_once()


async def make_hook(server: Server, receiver: Receiver, **body: Any) -> dict[str, Any]:
    answer = await server.http.post("/api/v1/webhooks", json={"url": receiver.url, **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def run(loop: WebhookLoop) -> None:
    while await loop.run_once():
        pass


async def log_of(server: Server, webhook_id: str) -> list[dict[str, Any]]:
    answer = await server.http.get(f"/api/v1/webhooks/{webhook_id}/deliveries")
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def test_a_completion_callback_gets_the_wanted_events_signed(
    hooked: Server, sender: WebhookLoop, receiver: Receiver
) -> None:
    made = await make_hook(hooked, receiver, kinds=["job.completed", "job.failed"])
    await happen(hooked, "job.running", "job.completed")
    await run(sender)
    assert receiver.kinds() == ["job.completed"]
    headers, body = receiver.taken[0]
    stamp, _, signature = headers["gpuplane-signature"].partition(",v1=")
    signed = f"{stamp.removeprefix('t=')}.".encode() + body
    expected = hmac.new(made["secret"].encode(), signed, hashlib.sha256).hexdigest()
    assert signature == expected
    assert json.loads(body)["kind"] == "job.completed"
    log = await log_of(hooked, made["webhook"]["id"])
    assert [(one["state"], one["tries"], one["last_status"]) for one in log] == [
        ("delivered", 1, 200)
    ]


async def test_a_failed_delivery_is_retried_later_and_not_before(
    hooked: Server, sender: WebhookLoop, receiver: Receiver
) -> None:
    made = await make_hook(hooked, receiver, kinds=["job.*"])
    receiver.status = 500
    await happen(hooked, "job.completed")
    await run(sender)
    await run(sender)
    assert len(receiver.taken) == 1
    receiver.status = 204
    hooked.clock.advance(6)
    await run(sender)
    assert len(receiver.taken) == 2
    assert len({headers["gpuplane-delivery"] for headers, _ in receiver.taken}) == 1
    log = await log_of(hooked, made["webhook"]["id"])
    assert [(one["state"], one["tries"]) for one in log] == [("delivered", 2)]


async def test_a_webhook_that_only_fails_is_disabled_aloud_and_can_be_started_again(
    hooked: Server, sender: WebhookLoop, receiver: Receiver
) -> None:
    made = await make_hook(hooked, receiver, kinds=["job.*"])
    webhook_id = made["webhook"]["id"]
    receiver.status = 302  # redirects are not followed: they are failures
    await happen(hooked, "job.one", "job.two")
    for _ in range(4):
        await run(sender)
        hooked.clock.advance(3_600)
    shown = (await hooked.http.get(f"/api/v1/webhooks/{webhook_id}")).json()
    assert shown["state"] == "disabled"
    assert shown["state_reason"] == "4 tries in a row failed."
    assert {one["state"] for one in await log_of(hooked, webhook_id)} == {"failed"}
    told = (await hooked.http.get("/api/v1/events?kind=webhook.disabled")).json()["items"]
    assert [one["subject_id"] for one in told] == [webhook_id]

    await happen(hooked, "job.missed")
    receiver.status = 200
    receiver.taken.clear()
    path = f"/api/v1/webhooks/{webhook_id}"
    assert (await hooked.http.patch(path, json={"state": "active"})).status_code == 200
    await happen(hooked, "job.seen")
    await run(sender)
    assert receiver.kinds() == ["job.seen"]


async def test_a_delivery_is_given_up_after_its_tries(
    hooked: Server, sender: WebhookLoop, receiver: Receiver
) -> None:
    made = await make_hook(hooked, receiver, kinds=["job.*"])
    receiver.status = 500
    await happen(hooked, "job.one", subject_id="the-one")
    for _ in range(3):
        await run(sender)
        hooked.clock.advance(3_600)
    log = await log_of(hooked, made["webhook"]["id"])
    given_up = [one for one in log if one["event_kind"] == "job.one"]
    assert [(one["state"], one["tries"]) for one in given_up] == [("failed", 3)]
    assert given_up[0]["last_error"] == "The receiver answered 500."


async def test_a_tenants_webhook_never_hears_of_another_tenant(
    hooked: Server, sender: WebhookLoop, receiver: Receiver
) -> None:
    acme, _ = await hooked.make_tenant("acme")
    await make_hook(hooked, receiver, kinds=["job.*"])
    await happen(hooked, "job.theirs", tenant_id=acme)
    await happen(hooked, "job.platform", tenant_id=None)
    await happen(hooked, "job.ours")
    await run(sender)
    assert receiver.kinds() == ["job.ours"]


async def test_a_webhook_can_follow_one_job_alone(
    hooked: Server, sender: WebhookLoop, receiver: Receiver
) -> None:
    await make_hook(hooked, receiver, subject_id="job-7")
    await happen(hooked, "job.completed", subject_id="job-8")
    await happen(hooked, "job.completed", subject_id="job-7")
    await run(sender)
    assert [json.loads(body)["subject_id"] for _, body in receiver.taken] == ["job-7"]


async def test_a_clusters_webhook_hears_of_that_cluster_by_whoever_asks(
    hooked: Server, sender: WebhookLoop, receiver: Receiver
) -> None:
    acme, project = await hooked.make_tenant("acme")
    _, token = await hooked.make_user("op", Role.OPERATOR, acme, project, on="tenant")
    body = {"url": receiver.url, "kinds": ["job.*"]}
    path = "/api/v1/clusters/demo/webhooks"
    of_platform = await hooked.http.post(path, json=body)
    of_tenant = await hooked.client(token).post(path, json=body)
    assert of_platform.json()["webhook"]["tenant_id"] is None
    assert of_tenant.json()["webhook"]["tenant_id"] == str(acme)
    await happen(hooked, "job.elsewhere")
    await happen(hooked, "job.ours", cluster_id=CLUSTER.id)
    await happen(hooked, "job.theirs", cluster_id=CLUSTER.id, tenant_id=acme)
    await run(sender)
    assert sorted(receiver.kinds()) == ["job.ours", "job.theirs", "job.theirs"]
    listed = (await hooked.client(token).get(path)).json()["items"]
    assert [one["id"] for one in listed] == [of_tenant.json()["webhook"]["id"]]
    foreign = f"{path}/{of_platform.json()['webhook']['id']}"
    assert (await hooked.client(token).delete(foreign)).status_code == 404
    assert (await hooked.http.delete(foreign)).status_code == 200
    missing = await hooked.http.get("/api/v1/clusters/none/webhooks")
    assert (missing.status_code, missing.json()["code"]) == (404, "cluster_not_found")


async def test_the_secret_is_shown_once_and_lies_sealed(hooked: Server, receiver: Receiver) -> None:
    made = await make_hook(hooked, receiver)
    shown = (await hooked.http.get(f"/api/v1/webhooks/{made['webhook']['id']}")).text
    assert made["secret"] not in shown

    def stored(session: ReadSession) -> bytes:
        return bytes(session.scalar(text("SELECT secret FROM events_webhooks")))

    assert made["secret"].encode() not in await hooked.database.read(stored)


async def test_a_tenant_has_a_limit_of_webhooks(hooked: Server, receiver: Receiver) -> None:
    for _ in range(POLICY.per_tenant):
        await make_hook(hooked, receiver)
    refused = await hooked.http.post("/api/v1/webhooks", json={"url": receiver.url})
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_webhooks")


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/x",
        "http://[::1]/x",
        "http://[::ffff:10.0.0.1]/",
        "http://169.254.169.254/latest/meta-data",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://0/",
        "http://127.0.0.1./",
        "http://localhost/",
        "http://any.localhost/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[fe80::1%25eth0]/",
        "http://127%2e0.0.1/",
        "http://999.1.1.1/",
        "http://user:password@example.com/",
        "ftp://example.com/x",
        "file:///etc/passwd",
        "http://exa mple.com/",
        "http:///x",
        "http://example.com:99999/",
    ],
)
async def test_an_address_inside_is_refused_at_once(server: Server, url: str) -> None:
    answer = await server.http.post("/api/v1/webhooks", json={"url": url})
    assert (answer.status_code, answer.json()["field"]) == (422, "url")


async def test_a_name_that_leads_inside_is_refused_when_sending(
    database_url: str, sealing_keys: SealingKeys, receiver: Receiver
) -> None:
    strict = WebhookPolicy(tries=1)
    # Allowed when it was made, as a name is whose address has changed since.
    lax = WebhookPolicy(allowed_hosts=("0x7f.1",))
    async with (
        running_server(database_url, sealing_keys, ports={"webhook_policy": lax}) as server,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        loop = WebhookLoop(
            server.database,
            server.clock,
            LeaseKeeper(server.database, server.clock, "test"),
            sealing_keys,
            strict,
            client,
            lambda: 0.5,
        )
        port = receiver.url.rsplit(":", 1)[1].split("/")[0]
        made = await make_hook(server, Receiver(url=f"http://0x7f.1:{port}/hook"), kinds=["job.*"])
        await happen(server, "job.completed")
        await run(loop)
        log = await log_of(server, made["webhook"]["id"])
        assert log[0]["state"] == "failed"
        assert "inside a private network" in log[0]["last_error"]
    assert receiver.taken == []


def test_addresses_inside_are_known_whatever_their_form() -> None:
    for inside in ("127.0.0.1", "::1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0"):
        assert address_refusal("host", inside, ())
    for inside in ("::ffff:127.0.0.1", "fe80::1", "fd00::1", "100.64.0.1", "224.0.0.1"):
        assert address_refusal("host", inside, ())
    assert address_refusal("host", "93.184.216.34", ()) is None


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("0x7f000001", "127.0.0.1"),
        ("0X7F.0.0.1".lower(), "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("10.1", "10.0.0.1"),
        ("10.1.258", "10.1.1.2"),
        ("8.8.8.8", "8.8.8.8"),
        ("256.0.0.1", "256.0.0.1"),
        ("09.0.0.1", None),
        ("example.com", None),
        ("cafe", None),
        ("1.example", None),
    ],
)
def test_numbers_are_read_as_the_resolver_reads_them(host: str, address: str | None) -> None:
    assert literal_address(host) == address
    if address is not None and address != host:
        assert socket.inet_ntoa(socket.inet_aton(host)) == address


def test_the_operator_allows_hosts_suffixes_and_networks() -> None:
    assert address_refusal("ci.corp", "10.0.0.1", ("ci.corp",)) is None
    assert address_refusal("ci.corp.example", "10.0.0.1", ("*.corp.example",)) is None
    assert address_refusal("other", "10.0.0.1", ("10.0.0.0/24",)) is None
    assert address_refusal("other", "10.0.1.1", ("10.0.0.0/24", "ci.corp"))


def test_retries_double_up_to_an_hour_with_jitter() -> None:
    assert compute_next_try(0, 1, 0.5) == 5_000
    assert compute_next_try(0, 3, 0.5) == 20_000
    assert compute_next_try(0, 30, 0.5) == 3_600_000
    assert compute_next_try(0, 1, 0.0) == 4_000
    assert compute_next_try(0, 1, 0.999) < 6_000


def test_an_address_is_taken_apart() -> None:
    target = parse_target("https://example.com/a?b=c")
    assert target is not None
    assert (target.host, target.port, target.path) == ("example.com", 443, "/a?b=c")
    assert parse_target("https://user@example.com/") is None
