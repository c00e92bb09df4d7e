"""Tells what happened to a workload as Events of the cluster, which `kubectl describe` shows.

Owns the queue of what is to be told. An Event is for people: one that cannot be written is
dropped, and nothing waits for it.
"""

import asyncio
import hashlib
import logging
from typing import Any

from gpuplane.kit.clock import Clock, instant_to_text
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import AlreadyThere, KubeError
from gpuplane.operator.names import API_VERSION, CONTROLLER, WORKLOAD_KIND
from gpuplane.operator.rules.seen import Workload

log = logging.getLogger(__name__)

MAX_UNTOLD = 1_000
MAX_CHARS = 1_000
"""The API server takes 1,024 bytes of message and cuts nothing itself."""


class Announcer:
    """Writes Events one after the other."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._untold: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_UNTOLD)

    def tell(self, workload: Workload, type_: str, reason: str, message: str) -> None:
        """Have something told and logged; what is too much of Events is dropped."""
        log.info("%s/%s: %s: %s", workload.namespace, workload.name, reason, message)
        if not self._untold.full():
            self._untold.put_nowait(self._event(workload, type_, reason, message))

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        while True:
            event = await self._untold.get()
            try:
                await self._client.create(event)
            except AlreadyThere:
                continue
            except KubeError as error:
                log.info("an Event was not written: %s", error)

    def _event(self, workload: Workload, type_: str, reason: str, message: str) -> dict[str, Any]:
        now = instant_to_text(self._clock.now_ms() // 1000 * 1000).replace(".000Z", "Z")
        words = f"{workload.uid}/{reason}/{workload.preemptions}/{message}"
        digest = hashlib.sha256(words.encode()).hexdigest()[:16]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{workload.name[:200]}.{digest}",
                "namespace": workload.namespace,
            },
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": WORKLOAD_KIND,
                "namespace": workload.namespace,
                "name": workload.name,
                "uid": workload.uid,
                "resourceVersion": workload.resource_version,
            },
            "type": type_,
            "reason": reason,
            "message": message[:MAX_CHARS],
            "source": {"component": CONTROLLER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
