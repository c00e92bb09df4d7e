"""One replica of the operator: serves, takes part in the election, works while it leads.

Owns the life of the process's parts. Settings come in as values; the command is in `entry`.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from gpuplane.kit.clock import Clock
from gpuplane.kube.clients import KubeClient
from gpuplane.operator.leader import Leader
from gpuplane.operator.leading import Leadership
from gpuplane.operator.meters import Meters
from gpuplane.operator.models import Models
from gpuplane.operator.rights import LEASE_NAME
from gpuplane.operator.serving import App, metrics_app, probes_app, webhooks_app

log = logging.getLogger(__name__)

CERTIFICATE_S = 30.0
"""How often the webhook's certificate is looked at: whoever renews it replaces the file."""
STOP_S = 10


class CannotListen(Exception):
    """A port cannot be had, or a certificate cannot be used; the text says which."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What one replica is told.

    Attributes:
        namespace: Where the Lease lies.
        identity: Of this replica in the election.
        elects: Whether several replicas may run; without it this one always leads.
        host: Where metrics, probes and webhooks listen.
        metrics_port: 0 takes a free one; so with the others.
        webhook_port: None serves no webhooks.
        certificate: Of the webhooks, PEM with its chain.
        namespaces: Whose GPUWorkloads are served, and nothing is read of others; all where empty.
        node_labels: Nodes that work is placed on carry these.
        serves_layouts: Whether MIGLayouts are served, which belong to the whole cluster.
    """

    namespace: str
    identity: str
    elects: bool = True
    lease_name: str = LEASE_NAME
    lease_s: int = 15
    host: str = "127.0.0.1"
    metrics_port: int = 8080
    probe_port: int = 8081
    webhook_port: int | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    default_queue: str = ""
    provisioning_class: str = ""
    workers: int = 8
    namespaces: tuple[str, ...] = ()
    node_labels: Mapping[str, str] = field(default_factory=dict)
    serves_layouts: bool = True


class Operator:
    """One replica."""

    def __init__(
        self, client: KubeClient, models: Models, settings: OperatorSettings, clock: Clock
    ) -> None:
        self.meters = Meters()
        self.leader: Leader | None = None
        self.ports: dict[str, int] = {}
        self.serving = asyncio.Event()
        self._client, self._models, self._settings, self._clock = client, models, settings, clock
        self._leadership = Leadership(
            client,
            settings.namespace,
            settings.lease_name,
            settings.identity,
            clock,
            lease_s=settings.lease_s,
        )
        self._servers: list[tuple[_Server, socket.socket, asyncio.Task[None]]] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def leads(self) -> bool:
        """Return whether this replica may act."""
        return not self._settings.elects or self._leadership.is_held

    async def run(self) -> None:
        """Serve and work until cancelled; gives the Lease back then.

        Raises:
            CannotListen: If a port or the certificate cannot be used.
        """
        try:
            await self._serve()
            self.serving.set()
            where = ", ".join(f"{name} {port}" for name, port in self.ports.items())
            log.info("listens on %s: %s", self._settings.host, where)
            await self._elect()
        finally:
            await self._stop_leading()
            if self._settings.elects:
                await self._leadership.step_down()
            await self._stop_serving()

    async def _elect(self) -> None:
        while True:
            if self._settings.elects:
                await self._leadership.try_once()
            if self.leader is not None and (not self.leads or self.leader.has_failed):
                log.warning("this replica leads no longer")
                await self._stop_leading()
            if any(task.done() for _, _, task in self._servers):
                raise RuntimeError("a server of this replica ended by itself")
            if self.leads and self.leader is None:
                await self._start_leading()
            await asyncio.sleep(self._leadership.retry_s)

    async def _start_leading(self) -> None:
        leader = Leader(
            self._client,
            self._models,
            self.meters,
            self._clock,
            may_act=lambda: self.leads,
            default_queue=self._settings.default_queue,
            provisioning_class=self._settings.provisioning_class,
            workers=self._settings.workers,
            namespaces=self._settings.namespaces,
            node_labels=self._settings.node_labels,
            serves_layouts=self._settings.serves_layouts,
        )
        self.leader = leader
        started = asyncio.create_task(leader.start())
        # A long first list must not cost the Lease that was just taken.
        while not started.done():
            await asyncio.wait({started}, timeout=self._leadership.retry_s)
            if self._settings.elects and not started.done():
                await self._leadership.try_once()
        if not started.result():
            await self._stop_leading()
            return
        self.meters.leader.set(1)
        log.info("this replica leads now; it serves %d GPUWorkloads", len(leader.world.keys()))

    async def _stop_leading(self) -> None:
        leader, self.leader = self.leader, None
        self.meters.leader.set(0)
        if leader is not None:
            await leader.stop()

    async def _serve(self) -> None:
        settings = self._settings
        metrics = metrics_app(self.meters.registry)
        probes = probes_app(lambda: True, self.serving.is_set)
        self._listen("metrics", metrics, settings.metrics_port)
        self._listen("probes", probes, settings.probe_port)
        if settings.webhook_port is not None:
            webhooks = webhooks_app(self._models, self._clock)
            server = self._listen("webhooks", webhooks, settings.webhook_port, with_tls=True)
            self._tasks.append(asyncio.create_task(self._renew_certificate(server)))

    def _listen(
        self,
        name: str,
        app: App,
        port: int,
        *,
        with_tls: bool = False,
    ) -> "_Server":
        settings = self._settings
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=port,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            timeout_graceful_shutdown=STOP_S,
            ssl_certfile=settings.certificate if with_tls else None,
            ssl_keyfile=settings.private_key if with_tls else None,
        )
        server = _Server(config)
        try:
            config.load()
            family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
            bound = socket.create_server((settings.host, port), family=family)
        except OSError as error:
            where = f"{settings.host} port {port}"
            said = (error.strerror or str(error)).partition(" (while")[0]
            raise CannotListen(f"{name} on {where}: {said}") from error
        self.ports[name] = bound.getsockname()[1]
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        self._servers.append((server, bound, serving))
        return server

    async def _stop_serving(self) -> None:
        for task in self._tasks:
            task.cancel()
        for server, _, _ in self._servers:
            server.should_exit = True
        serving = [task for _, _, task in self._servers]
        await asyncio.gather(*serving, *self._tasks, return_exceptions=True)
        for _, bound, _ in self._servers:
            bound.close()

    async def _renew_certificate(self, server: "_Server") -> None:
        """Serve a certificate that was replaced to every new connection."""
        certificate, key = self._settings.certificate, self._settings.private_key
        assert certificate is not None, "the server could not have started"
        seen = _stamps(certificate, key)
        while not server.should_exit:
            await self._clock.sleep(CERTIFICATE_S)
            found = _stamps(certificate, key)
            if found == seen or server.config.ssl is None:
                continue
            with contextlib.suppress(OSError):  # half replaced: the next look takes it
                server.config.ssl.load_cert_chain(certificate, key)
                seen = found


def _stamps(*paths: Path | None) -> list[int]:
    return [path.stat().st_mtime_ns if path and path.exists() else 0 for path in paths]


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers: the command owns them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
