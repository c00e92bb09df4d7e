"""Builds the control plane: database, backends, loops and API, wired by plain constructors."""

import hashlib
import logging
import os
import random
import socket
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from gpuplane import __version__
from gpuplane.api.app import AppDependencies, create_app
from gpuplane.api.authentication import Authenticator
from gpuplane.api.limits import Limits
from gpuplane.api.oidc import OidcIssuer, OidcLogins
from gpuplane.api.routers import load_routers
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy, PreemptionLimits
from gpuplane.db.database import Database
from gpuplane.db.leases import LeaseKeeper
from gpuplane.db.schema import upgrade_schema
from gpuplane.domains.clusters import service as clusters_service
from gpuplane.domains.events.service import WebhookPolicy
from gpuplane.domains.jobs.service import SubmitLimits, Surroundings
from gpuplane.entry.backends import BackendRegistry
from gpuplane.entry.firststart import ensure_first_start
from gpuplane.entry.home import Home
from gpuplane.entry.settings import Settings, SettingsError
from gpuplane.kit.clock import Clock, SystemClock
from gpuplane.kit.feeds import Feed
from gpuplane.kit.loops import LoopBody, LoopRunner
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kit.tracing import Tracing, open_tracing
from gpuplane.loops.dispatcher import DispatcherLoop
from gpuplane.loops.inventory import InventoryLoop
from gpuplane.loops.meters import JobMeters, MetersLoop
from gpuplane.loops.observer import ObserverLoop
from gpuplane.loops.relay import RelayLoop
from gpuplane.loops.scheduler.loop import SchedulerLoop
from gpuplane.loops.webhooks import WebhookLoop

log = logging.getLogger("gpuplane")


@dataclass(slots=True)
class ControlPlane:
    """Everything of one process, ready to start and stop."""

    settings: Settings
    home: Home
    token: str
    database: Database
    backends: BackendRegistry
    runner: LoopRunner
    feed: Feed
    leases: LeaseKeeper
    client: httpx2.AsyncClient
    tracing: Tracing
    app: FastAPI
    loops: dict[str, LoopBody] = field(default_factory=dict)
    address: str = ""

    async def start(self) -> None:
        """Make what a first start needs, look at the clusters once, then start the loops."""
        now = SystemClock().now_ms()
        digest = hashlib.sha256(self.token.encode()).hexdigest()
        clusters = await self.database.write(
            "entry.first_start",
            lambda s: ensure_first_start(s, now, digest, self.token[:12]),
        )
        for cluster in clusters:
            self.backends.add(cluster)
        self.database.on_commit(self.runner.wake)
        await self.loops["inventory"].run_once()
        self.runner.start()

    async def stop(self) -> None:
        """Stop the loops and let go of everything; what runs goes on."""
        self.feed.close()
        await self.runner.stop()
        await self.client.aclose()
        await self.leases.release_all()
        observer = self.loops["observer"]
        if isinstance(observer, ObserverLoop):
            await observer.stop()
        self.backends.close()
        self.tracing.close()
        self.database.close()


def build(settings: Settings, home: Home, clock: Clock | None = None) -> ControlPlane:
    """Return the control plane that settings describe, not started yet."""
    clock = clock or SystemClock()
    token = home.ensure_token()
    database = Database(settings.sql_url)
    upgrade_schema(database.engine)
    keys = SealingKeys(home.keys)
    backends = BackendRegistry(home.path, clock, settings.scheduling.seed)
    runner = LoopRunner(clock)
    control: dict[str, ControlPlane] = {}
    registry = CollectorRegistry()
    feed = Feed(settings.http.streams)
    client = httpx2.AsyncClient(follow_redirects=False, trust_env=False)
    owner = f"{socket.gethostname()}:{os.getpid()}"
    leases = LeaseKeeper(database, clock, owner)
    policy = webhook_policy_of(settings)
    tracing = open_tracing(settings.telemetry.otlp_endpoint, __version__)
    chance = random.Random()

    def around() -> Surroundings:
        return Surroundings(control["it"].address, str(home.workspaces), __version__)

    loops: list[LoopBody] = [
        SchedulerLoop(
            database, clock, leases, policy_of(settings), settings.scheduling.seed,
            settings.loops.scheduler_s,
        ),
        DispatcherLoop(
            database, clock, backends, around, lambda: chance.uniform(-1, 1), keys, tracing,
            settings.loops.dispatcher_s,
        ),
        ObserverLoop(
            database, clock, backends,
            lambda text: keys.seal(text.encode(), "jobs/outputs"),
            lambda: chance.uniform(-1, 1),
            lambda: runner.wake(["observer"]),
            settings.loops.observer_s,
        ),
        InventoryLoop(database, clock, backends, settings.loops.inventory_s),
        RelayLoop(database, clock, owner, feed.publish),
        WebhookLoop(database, clock, owner, keys, policy, client, chance.random),
        MetersLoop(database, clock, JobMeters(registry)),
    ]  # fmt: skip
    for body in loops:
        runner.add(body)
    ports: dict[str, Any] = {
        "backends": backends,
        "sealing": keys,
        "submit_limits": SubmitLimits(settings.limits.unfinished_jobs, settings.limits.array_size),
        "event_feed": feed,
        "webhook_policy": policy,
        "find_cluster": clusters_service.find_cluster,
        "workspaces": home.workspaces,
    }
    app = create_app(
        AppDependencies(
            database=database,
            clock=clock,
            authenticator=Authenticator(
                database, clock, oidc_of(settings, database, clock, client)
            ),
            registry=registry,
            tracing=tracing,
            routers=load_routers(),
            limits=limits_of(settings),
            loop_states=runner.states,
            ports=ports,
        )
    )
    control["it"] = ControlPlane(
        settings=settings,
        home=home,
        token=token,
        database=database,
        backends=backends,
        runner=runner,
        feed=feed,
        leases=leases,
        client=client,
        tracing=tracing,
        app=app,
        loops={body.name: body for body in loops},
    )
    return control["it"]


def policy_of(settings: Settings) -> Policy:
    """Return the scheduling policy that settings describe."""
    return Policy(
        placement=PlacementPolicy(settings.scheduling.placement),
        preemption=PreemptionLimits(enabled=settings.scheduling.preemption),
    )


def webhook_policy_of(settings: Settings) -> WebhookPolicy:
    """Return what webhooks may do by the settings."""
    hosts = tuple(filter(None, (h.strip() for h in settings.webhooks.allowed_hosts.split(","))))
    return WebhookPolicy(
        allowed_hosts=hosts,
        tries=settings.webhooks.max_tries,
        timeout_s=settings.webhooks.timeout_s,
    )


def oidc_of(
    settings: Settings, database: Database, clock: Clock, client: httpx2.AsyncClient
) -> OidcLogins | None:
    """Return logins by the issuers that settings name, or None without any.

    Raises:
        SettingsError: If the issuers are not the JSON they should be; says what is wrong.
    """
    if not settings.oidc.issuers:
        return None
    try:
        issuers = msgspec.json.decode(settings.oidc.issuers, type=tuple[OidcIssuer, ...])
    except msgspec.MsgspecError as error:
        raise SettingsError(f"GPUPLANE_OIDC_ISSUERS is no list of issuers: {error}.") from error
    return OidcLogins(issuers, database, clock, client)


def limits_of(settings: Settings) -> Limits:
    """Return the API's limits that settings describe."""
    http = settings.http
    return Limits(
        body_bytes=http.body_bytes,
        json_depth=http.json_depth,
        submits_per_s=http.submits_per_s,
        submit_burst=http.submit_burst,
        streams=http.streams,
    )
