"""The role: informers in, HTTP out, and the tasks between them.

Owns what runs and how it stops. Replicas know nothing of each other: each watches the cluster, each
answers, each writes down the GPUs of pods that were bound; the API server tells who came first.
"""

import asyncio
import contextlib
import gc
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuplane.core.scheduling.policy import PlacementPolicy
from gpuplane.core.topology.matrix import LinkMatrix
from gpuplane.extender.answering import Answerer
from gpuplane.extender.claiming import Claimer
from gpuplane.extender.http import Limits, Request, Response, Server
from gpuplane.extender.metrics import CONTENT_TYPE, Metrics
from gpuplane.extender.newcomers import Newcomers
from gpuplane.extender.nodes import NodeRecord, Topologies, read_record
from gpuplane.extender.pods import BadPod, PodFacts, PodView, facts_of
from gpuplane.extender.protocol import BadBody, Reader
from gpuplane.extender.rendering import encode
from gpuplane.extender.state import ClusterState
from gpuplane.kit.clock import Clock, SystemClock
from gpuplane.kit.listeners import close_listener
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import KubeError
from gpuplane.kube.informers import Change, Informer
from gpuplane.kube.kinds import NODE, POD
from gpuplane.kube.shapes import NodeShape, as_dict

log = logging.getLogger("gpuplane.extender")

ANNOTATORS = 4
"""Pods annotated at once: each takes three calls to the API server."""
MAX_WAITING = 50_000
"""Pods waiting to be annotated; more than a cluster binds in minutes."""
RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TICK_S = 5.0
"""How often certificates and topologies that changed are looked at."""


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """What the role is started with.

    Args:
        port: 0 takes a free one.
        certificate: With `key`, serves HTTPS; both are read again when they change.
        client_ca: Only callers with a certificate of this authority are answered.
        binds: Whether `bind` is answered.
        scheduler_names: Whose pods are annotated; empty for everybody's.
        gang_hold_s: How long places are kept for a gang that could start.
        max_body_bytes: Longest request.
    """

    host: str = "127.0.0.1"
    port: int = 8888
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    binds: bool = False
    scheduler_names: tuple[str, ...] = ()
    placement: PlacementPolicy = PlacementPolicy.FRAGMENTATION
    gang_hold_s: int = 60
    max_body_bytes: int = 64 << 20


class BadCertificate(Exception):
    """Certificate and key cannot be used; the text says why."""


def settle() -> None:
    """Leave everything that is there now out of garbage collection.

    Of a large cluster a whole collection would keep answers waiting for tens of milliseconds. For
    a process that does nothing else, once the cluster was read: it is freed by counting all the
    same, and holds no cycles.
    """
    gc.collect()
    gc.freeze()


class Extender:
    """One replica."""

    def __init__(
        self, client: KubeClient, settings: ExtenderSettings, clock: Clock | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self.metrics = Metrics()
        self.state = ClusterState(placement=settings.placement, hold_ms=settings.gang_hold_s * 1000)
        self.answerer = Answerer(self.state, self._clock.now_ms, self.metrics.note_refused)
        self._claimer = Claimer(client, self.state, self._clock.now_ms, self.metrics.note)
        self._topologies = Topologies()
        self._shapes: dict[str, NodeShape] = {}
        self._read = Reader()
        self._nodes: Informer[NodeRecord | None] = Informer(
            client, NODE, decode=NodeShape, convert=self._convert_node
        )
        self._pods: Informer[PodFacts | None] = Informer(
            client, POD, decode=PodView, convert=self._convert_pod
        )
        self._nodes.on_change(self._node_changed)
        self._pods.on_change(self._pod_changed)
        self._newcomers = Newcomers(settings.scheduler_names)
        self._waiting: asyncio.Queue[str] = asyncio.Queue(MAX_WAITING)
        self._queued: set[str] = set()
        self._node_locks: dict[str, asyncio.Lock] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._server = Server(self._handle, Limits(max_body_bytes=settings.max_body_bytes))
        self._listener: asyncio.Server | None = None
        self._context: ssl.SSLContext | None = None
        self._stamps: tuple[float, ...] = ()
        self._verbs: dict[bytes, Callable[[bytes], bytes]] = {
            b"/filter": self.answerer.filter,
            b"/prioritize": self.answerer.prioritize,
            b"/preempt": self.answerer.preempt,
        }

    # Its life.

    async def start(self) -> int:
        """Listen, begin to watch, and return the port.

        Raises:
            BadCertificate: If certificate or key cannot be used.
            OSError: If the address is taken.
        """
        settings = self._settings
        if settings.certificate is not None:
            self._context = self._make_context()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._server.connect, settings.host, settings.port, ssl=self._context
        )
        self._nodes.start()
        self._pods.start()
        self._tasks = [asyncio.create_task(self._annotate()) for _ in range(ANNOTATORS)]
        self._tasks.append(asyncio.create_task(self._tick()))
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Take no more questions, then stop watching."""
        if self._listener is not None:
            await close_listener(self._listener)
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._nodes.stop()
        await self._pods.stop()

    async def wait_ready(self, timeout_s: float) -> bool:
        """Return whether the whole cluster was read within so long."""
        nodes = await self._nodes.wait_synced(timeout_s)
        return nodes and await self._pods.wait_synced(timeout_s)

    @property
    def is_ready(self) -> bool:
        """Whether the whole cluster was read once."""
        return self._nodes.synced and self._pods.synced

    # What the cluster tells.

    def _convert_node(self, shape: NodeShape) -> NodeRecord | None:
        now = self._clock.now_ms()
        name = shape.metadata.name

        def find(node: str, text: str | None, count: int) -> LinkMatrix | None:
            found = self._topologies.find(node, text, count, now)
            if self._topologies.next_look(node, text, count) is not None:
                self._shapes[name] = shape
            return found

        self._shapes.pop(name, None)
        try:
            return read_record(as_dict(shape), find)
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("node %s cannot be read: %s", name, error)
            self.metrics.note("unreadable_node")
            return None

    def _convert_pod(self, view: PodView) -> PodFacts | None:
        try:
            return facts_of(view)
        except BadPod as error:
            log.warning("pod %s cannot be read: %s", view.metadata.name, error)
            self.metrics.note("unreadable_pod")
            return None

    def _node_changed(self, change: Change[NodeRecord | None]) -> None:
        if change.new is not None:
            self.state.put_node(change.new)
        else:
            self.state.drop_node(change.name)
            self._topologies.forget(change.name)
            self._shapes.pop(change.name, None)
            self._node_locks.pop(change.name, None)

    def _pod_changed(self, change: Change[PodFacts | None]) -> None:
        new, old = change.new, change.old
        if old is not None and (new is None or new.uid != old.uid):
            self.answerer.drop_pod(old.uid)
            self._newcomers.drop(old.uid)
        if new is None:
            return
        self.answerer.put_pod(new)
        self._newcomers.put(new, old, in_first_list=not self._pods.synced)
        if self._newcomers.needs_devices(new) and new.uid not in self._queued:
            with contextlib.suppress(asyncio.QueueFull):
                self._waiting.put_nowait(new.uid)
                self._queued.add(new.uid)

    # Pods that kube-scheduler bound itself.

    async def _annotate(self) -> None:
        """Write down the GPUs of one bound pod after the other."""
        # Before that, GPUs of pods that were not read yet look free.
        while not await self.wait_ready(TICK_S):
            continue
        while True:
            uid = await self._waiting.get()
            try:
                await self._annotate_one(uid)
            except Exception:
                log.exception("the GPUs of a pod could not be written down")
            finally:
                self._queued.discard(uid)

    async def _annotate_one(self, uid: str) -> None:
        for pause_s in RETRY_S:
            pod = self.state.find_pod(uid)
            if pod is None or not self._newcomers.needs_devices(pod):
                return
            # A pod may be shown a moment before its node is: two watches keep no order.
            if pod.node in self.state.nodes:
                try:
                    async with self._lock_of(pod.node):
                        await self._claimer.annotate(pod)
                    return
                except KubeError as error:
                    log.warning("pod %s/%s: %s", pod.namespace, pod.name, error)
            self.metrics.note("annotation_retried")
            await self._clock.sleep(pause_s)

    def _lock_of(self, node: str) -> asyncio.Lock:
        return self._node_locks.setdefault(node, asyncio.Lock())

    # Questions.

    def _handle(self, request: Request) -> Response | asyncio.Future[Response]:
        began = time.perf_counter()
        verb = self._verbs.get(request.path)
        if verb is None:
            return self._handle_other(request)
        name = request.path[1:].decode()
        if request.method != b"POST":
            response = _error(405, "only POST is answered here")
        elif not self.is_ready:
            response = _error(503, "the cluster has not been read yet")
        else:
            response = self._answer(verb, request.body)
        self.metrics.note_request(name, response.status, time.perf_counter() - began)
        return response

    def _answer(self, verb: Callable[[bytes], bytes], body: bytes) -> Response:
        try:
            return Response(200, verb(body))
        except BadBody as error:
            return _error(400, str(error))
        except Exception:
            log.exception("a question could not be answered")
            self.metrics.note("failed")
            return _error(500, "the extender failed; its log says why")

    def _handle_other(self, request: Request) -> Response | asyncio.Future[Response]:
        path = request.path
        if path == b"/bind" and self._settings.binds:
            if request.method != b"POST":
                return _error(405, "only POST is answered here")
            if not self.is_ready:
                return _error(503, "the cluster has not been read yet")
            return asyncio.ensure_future(self._bind(request.body))
        if path not in (b"/healthz", b"/readyz", b"/metrics"):
            return _error(404, "there is nothing here")
        if request.method not in (b"GET", b"HEAD"):
            return _error(405, "only GET is answered here")
        if path == b"/metrics":
            return Response(200, self.metrics.render(self._gauges()), CONTENT_TYPE)
        if path == b"/readyz" and not self.is_ready:
            return _error(503, "the cluster has not been read yet")
        return Response(200, b"ok\n", b"text/plain")

    async def _bind(self, body: bytes) -> Response:
        began = time.perf_counter()
        try:
            args = self._read.binding(body)
            async with self._lock_of(args.Node):
                said = await self._claimer.bind(args)
            response = Response(200, encode({"Error": said}))
        except BadBody as error:
            response = _error(400, str(error))
        except Exception:
            log.exception("a pod could not be bound")
            response = _error(500, "the extender failed; its log says why")
        self.metrics.note_request("bind", response.status, time.perf_counter() - began)
        return response

    def _gauges(self) -> dict[str, float]:
        plans = self.state.plans.values()
        return {
            "ready": float(self.is_ready),
            "nodes": len(self.state.nodes),
            "pods": len(self.state),
            "gangs_held": sum(1 for plan in plans if plan.reason),
            "gangs_kept": sum(1 for plan in plans if plan.is_kept),
            "disputed_pods": self.state.disputes,
            "unreadable_topologies": len(self._topologies.unreadable),
            "generation": self.state.generation,
        }

    # Now and then.

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            try:
                self._look_at_topologies()
                self._reload_certificate()
            except Exception:
                log.exception("the extender's housekeeping failed")

    def _look_at_topologies(self) -> None:
        """Read descriptions again that changed while the last one was still taken for true."""
        for shape in list(self._shapes.values()):
            record = self._convert_node(shape)
            if record is not None:
                self.state.put_node(record)

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if self._settings.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        settings = self._settings
        assert settings.certificate is not None
        try:
            stamps = self._stamp()
            context.load_cert_chain(settings.certificate, settings.key)
            if settings.client_ca is not None:
                context.load_verify_locations(settings.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise BadCertificate(f"{settings.certificate}: {error}") from error
        self._stamps = stamps

    def _stamp(self) -> tuple[float, ...]:
        settings = self._settings
        files = (settings.certificate, settings.key, settings.client_ca)
        return tuple(each.stat().st_mtime for each in files if each is not None)

    def _reload_certificate(self) -> None:
        """Take over certificates that were renewed; connections that stand keep theirs."""
        if self._context is None:
            return
        try:
            if self._stamp() == self._stamps:
                return
            self._load(self._context)
            log.info("certificates were read again")
            self.metrics.note("certificate_reloaded")
        except (OSError, BadCertificate) as error:
            log.warning("renewed certificates cannot be used: %s", error)


def _error(status: int, text: str) -> Response:
    return Response(status, encode({"Error": text}))
