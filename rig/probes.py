"""Readiness, liveness and startup probes of process nodes: exec, HTTP and TCP, all on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx2

from rig.containers import Container


class Probe:
    """One probe as a pod's specification has it."""

    def __init__(self, spec: dict[str, Any], container: dict[str, Any]) -> None:
        self.spec = spec
        self._ports = {one.get("name"): one["containerPort"] for one in container.get("ports", [])}
        self.delay_s = float(spec.get("initialDelaySeconds", 0))
        self.period_s = float(spec.get("periodSeconds", 10))
        self.timeout_s = float(spec.get("timeoutSeconds", 1))
        self.failures = int(spec.get("failureThreshold", 3))
        self.successes = int(spec.get("successThreshold", 1))

    async def succeeds(self, container: Container) -> bool:
        """Return whether the container answers once."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._ask(container)
        except (OSError, ValueError, TimeoutError, httpx2.HTTPError):
            return False

    async def _ask(self, container: Container) -> bool:
        if "exec" in self.spec:
            return await self._run(container)
        if "httpGet" in self.spec:
            get = self.spec["httpGet"]
            scheme = get.get("scheme", "HTTP").lower()
            url = f"{scheme}://127.0.0.1:{self._port(get)}{get.get('path', '/')}"
            # The kubelet does not check a probed server's certificate either.
            async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
                answer = await client.get(url, timeout=self.timeout_s)
            return 200 <= answer.status_code < 400
        if "tcpSocket" in self.spec:
            port = self._port(self.spec["tcpSocket"])
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        return True  # gRPC is not spoken here: such a container is ready when it runs

    def _port(self, spec: dict[str, Any]) -> int:
        return int(self._ports.get(spec["port"], spec["port"]))

    async def _run(self, container: Container) -> bool:
        assert container.command is not None
        process = await asyncio.create_subprocess_exec(
            *self.spec["exec"]["command"],
            cwd=container.command.folder,
            env=container.command.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            return await process.wait() == 0
        finally:
            with suppress(ProcessLookupError):
                process.kill()


async def watch_probe(
    probe: Probe,
    container: Container,
    tell: Callable[..., Awaitable[None]],
    *,
    once: bool = False,
) -> None:
    """Probe again and again; tells `good=` when a threshold is reached."""
    await asyncio.sleep(probe.delay_s)
    good = bad = 0
    while True:
        if await probe.succeeds(container):
            good, bad = good + 1, 0
        else:
            good, bad = 0, bad + 1
        if good == probe.successes or bad == probe.failures:
            await tell(good=good > 0)
            if once and good:
                return
        await asyncio.sleep(probe.period_s)
