"""A real app on a real database, asked over ASGI: what tests of the HTTP API start from."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry

from gpuplane.api.app import AppDependencies, create_app
from gpuplane.api.authentication import Authenticator
from gpuplane.api.limits import Limits
from gpuplane.core.ids import ProjectId, TenantId, TokenId, UserId
from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.events.endpoints import router as events_router
from gpuplane.domains.events.service import WebhookPolicy
from gpuplane.domains.identity import service as identity
from gpuplane.domains.identity.endpoints import router as identity_router
from gpuplane.domains.jobs.service.holding import find_holds
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.nodes.endpoints import DeviceUse
from gpuplane.domains.placements import service as placements
from gpuplane.domains.secrets.endpoints import router as secrets_router
from gpuplane.entry.checking import find_faults
from gpuplane.kit.access import Permission, Principal, Role
from gpuplane.kit.clock import SystemClock
from gpuplane.kit.feeds import Feed
from gpuplane.kit.ids import new_id
from gpuplane.kit.sealing import SealingKeys
from tests.databases import make_tables

OWN_ROUTERS = (events_router, identity_router, secrets_router)
"""What every other domain stands on; tests of other domains add their own."""


class SteppingClock(SystemClock):
    """The machine's clock, moved forward by hand, and by that alone once it is held."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._held: tuple[int, float] | None = None

    def advance(self, seconds: float) -> None:
        self.ahead_s += seconds

    def hold(self) -> None:
        """Have time stand still, for sums that a slow machine must not change."""
        self._held = super().now_ms(), super().monotonic()

    def now_ms(self) -> int:
        now = super().now_ms() if self._held is None else self._held[0]
        return now + int(self.ahead_s * 1000)

    def monotonic(self) -> float:
        now = super().monotonic() if self._held is None else self._held[1]
        return now + self.ahead_s


@dataclass
class Server:
    """One app with its parts within reach, and a client that holds the admin token."""

    app: FastAPI
    database: Database
    clock: SteppingClock
    admin: Principal
    admin_token: str
    authenticator: Authenticator
    ports: dict[str, Any]
    clients: list[httpx2.AsyncClient] = field(default_factory=list)

    def client(self, token: str | None) -> httpx2.AsyncClient:
        """Return a client that sends this token, or none."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self.app),
            base_url="http://gpuplane.test",
            headers=headers,
            timeout=30,
        )
        self.clients.append(client)
        return client

    @property
    def http(self) -> httpx2.AsyncClient:
        """The client of the platform's admin."""
        return self.client(self.admin_token)

    async def faults(self) -> list[str]:
        """Return every broken promise that `db check` would tell."""
        now = self.clock.now_ms()
        return await self.database.read(lambda s: find_faults(s, now))

    async def make_tenant(self, name: str) -> tuple[TenantId, ProjectId]:
        """Make a tenant; return it with its default project."""
        now = self.clock.now_ms()

        def unit(session: Any) -> tuple[TenantId, ProjectId]:
            tenant = identity.create_tenant(session, self.admin, TenantId(new_id()), name, "", now)
            project = identity.find_project_in(session, tenant.id, "default")
            assert project is not None
            return tenant.id, project.id

        return await self.database.write("tests.make_tenant", unit)

    async def make_project(self, tenant_id: TenantId, name: str) -> ProjectId:
        """Make a project of a tenant."""
        now = self.clock.now_ms()
        project = identity.Project(ProjectId(new_id()), tenant_id, name, "", now, 1)
        await self.database.write(
            "tests.make_project",
            lambda s: identity.create_project(s, self.admin, project, now),
        )
        return project.id

    async def make_user(
        self,
        name: str,
        role: Role | None,
        tenant_id: TenantId,
        project_id: ProjectId,
        *,
        on: str = "project",
        extra: Sequence[Permission] = (),
        scopes: Sequence[Permission] | None = None,
    ) -> tuple[UserId, str]:
        """Make a user with one role on its `project`, `tenant` or the `platform`, and a token."""
        now = self.clock.now_ms()
        user = identity.User(UserId(new_id()), name, None, "", tenant_id, project_id, False, now, 1)
        plain = "gp_" + secrets.token_urlsafe(32)
        token = identity.Token(
            id=TokenId(new_id()),
            user_id=user.id,
            name="test",
            hint=plain[:8],
            scopes=None if scopes is None else tuple(sorted(one.value for one in scopes)),
            created_at=now,
            expires_at=None,
            revoked_at=None,
            last_used_at=now,
        )

        def unit(session: Any) -> None:
            identity.create_user(session, self.admin, user, now)
            if role is not None:
                membership = identity.Membership(
                    user.id,
                    None if on == "platform" else tenant_id,
                    project_id if on == "project" else None,
                    role.value,
                    tuple(sorted(one.value for one in extra)),
                    now,
                )
                identity.set_membership(session, self.admin, membership, now)
            digest = hashlib.sha256(plain.encode()).hexdigest()
            identity.create_token(session, self.admin, token, digest, now)

        await self.database.write("tests.make_user", unit)
        return user.id, plain

    async def principal_of(self, token: str) -> Principal:
        """Return who the app thinks is behind a token."""
        return await self.authenticator.authenticate(f"Bearer {token}")


@contextlib.asynccontextmanager
async def running_server(
    database_url: str,
    sealing: SealingKeys,
    *,
    routers: Sequence[APIRouter] | None = None,
    limits: Limits | None = None,
    ports: dict[str, Any] | None = None,
    adapt: Callable[[AppDependencies], AppDependencies] = lambda deps: deps,
) -> AsyncIterator[Server]:
    """Make tables, defaults and an app on an empty database; end it all afterwards."""
    database = Database(database_url)
    clock = SteppingClock()
    token = "gp_" + secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    mounted = OWN_ROUTERS if routers is None else routers
    try:
        make_tables(database)
        admin = await database.write(
            "tests.defaults", lambda s: identity.ensure_defaults(s, clock.now_ms(), digest)
        )
        authenticator = Authenticator(database, clock)
        offered: dict[str, Any] = {
            "sealing": sealing,
            "event_feed": Feed(),
            "webhook_policy": WebhookPolicy(),
            "find_cluster": clusters.find_cluster,
            "find_holds": find_holds,
            "has_node": nodes.has_node,
            "device_use": DeviceUse(placements.load_held, 80),
            **(ports or {}),
        }
        deps = AppDependencies(
            database=database,
            clock=clock,
            authenticator=authenticator,
            routers=mounted,
            registry=CollectorRegistry(),
            limits=limits or Limits(),
            ports=offered,
        )
        app = create_app(adapt(deps))
        server = Server(app, database, clock, admin, token, authenticator, offered)
        try:
            yield server
        finally:
            for client in server.clients:
                await client.aclose()
    finally:
        database.close()


@contextlib.asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[str]:
    """Serve an app on a real socket, for what ASGI in memory cannot show; yields its URL."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=2)
    serving = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(serving.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            serving.should_exit = True
            await task


@pytest.fixture(scope="session")
def sealing_keys(tmp_path_factory: pytest.TempPathFactory) -> SealingKeys:
    """One sealing key for the whole run, because making one takes seconds."""
    return SealingKeys(tmp_path_factory.mktemp("sealing") / "keys")


@pytest.fixture
async def server(sqlite_url: str, sealing_keys: SealingKeys) -> AsyncIterator[Server]:
    """Events, identity and secrets on an empty SQLite file."""
    async with running_server(sqlite_url, sealing_keys) as running:
        yield running


@pytest.fixture
async def any_server(database_url: str, sealing_keys: SealingKeys) -> AsyncIterator[Server]:
    """Events, identity and secrets on each kind of database."""
    async with running_server(database_url, sealing_keys) as running:
        yield running
