"""A whole control plane that works, a receiver of calls beside it, and documents to run."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from gpuplane.api.authentication import Authenticator
from gpuplane.domains.identity import service as identity
from gpuplane.entry.control import ControlPlane, build
from gpuplane.entry.environment import load_settings
from gpuplane.entry.home import Home
from gpuplane.kit.access import Principal
from gpuplane.kit.sealing import SealingKeys
from tests.accepting import accepting
from tests.http_app import Server
from tests.waiting import wait_until_async

OVER = ("completed", "partial", "failed", "cancelled")


@dataclass
class Received:
    """One request as the receiver saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Receiver:
    """A small HTTP server: keeps what came, answers what it is told to, 200 else."""

    port: int = 0
    seen: list[Received] = field(default_factory=list)
    answers: list[tuple[int, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split(" ")
        self.seen.append(Received(method, path, headers, json.loads(raw) if raw else None))
        status, body = self.answers.pop(0) if self.answers else (200, {"ok": True})
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        more = "Retry-After: 0\r\n" if status >= 429 else ""
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n{more}Connection: close\r\n\r\n"
            .encode() + text
        )  # fmt: skip
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()


@dataclass
class World:
    """The control plane, who asks it, and the receiver."""

    control: ControlPlane
    http: httpx2.AsyncClient
    receiver: Receiver
    folder: Path

    async def save(self, document: dict[str, Any]) -> dict[str, Any]:
        """Save a pipeline; return what became of it."""
        answer = await self.http.put("/api/v1/pipelines", json=document)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def refused(self, document: dict[str, Any]) -> dict[str, tuple[str, str]]:
        """Save a pipeline that is refused; return reason and fix by field."""
        answer = await self.http.put("/api/v1/pipelines", json=document)
        assert answer.status_code in (413, 422), answer.text
        return {each["field"]: (each["reason"], each["fix"]) for each in answer.json()["errors"]}

    async def start(self, document: dict[str, Any], **parameters: Any) -> str:
        """Save and start a pipeline; return the run's id."""
        saved = await self.save(document)
        answer = await self.http.post(
            f"/api/v1/pipelines/{saved['pipeline']['id']}/runs", json={"parameters": parameters}
        )
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def run(self, document: dict[str, Any], **parameters: Any) -> Ended:
        """Save, start and wait for the end."""
        return await self.ended(await self.start(document, **parameters))

    async def ended(self, run_id: str) -> Ended:
        """Wait for the end of a run."""

        async def over() -> Ended | None:
            run = (await self.http.get(f"/api/v1/runs/{run_id}")).json()
            if run["status"] not in OVER:
                return None
            return Ended(run, await self.steps(run_id))

        return await wait_until_async(over, f"{run_id} is over")

    async def steps(self, run_id: str) -> dict[str, dict[str, Any]]:
        """Return the steps of a run by key."""
        answer = await self.http.get(f"/api/v1/runs/{run_id}/steps?limit=500")
        return {each["key"]: each for each in answer.json()["items"]}

    async def until_step(
        self, run_id: str, key: str, holds: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """Wait until something holds of a step."""

        async def there() -> dict[str, Any] | None:
            step = (await self.steps(run_id)).get(key)
            return step if step is not None and holds(step) else None

        return await wait_until_async(there, f"{key} is as awaited")

    async def admin(self) -> Principal:
        """Return the platform's admin."""
        digest = hashlib.sha256(self.control.token.encode()).hexdigest()
        return await self.control.database.write(
            "tests.admin", lambda s: identity.ensure_defaults(s, 0, digest)
        )

    async def server(self) -> Server:
        """Return this control plane as tests of the API know it: tenants and users can be made."""
        database, clock = self.control.database, self.control.parts.clock
        admin = await self.admin()
        authenticator = Authenticator(database, clock)
        return Server(
            self.control.app, database, clock, admin, self.control.token, authenticator, {}
        )

    async def get(self, path: str) -> Any:
        answer = await self.http.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        answer = await self.http.post(f"/api/v1{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()


@dataclass
class Ended:
    """A run that is over."""

    run: dict[str, Any]
    steps: dict[str, dict[str, Any]]

    @property
    def status(self) -> str:
        return str(self.run["status"])

    def output(self, key: str) -> Any:
        return self.steps[key]["output"]


@contextlib.asynccontextmanager
async def working_world(
    folder: Path, sealing: SealingKeys, database_url: str = "", **settings: str
) -> AsyncIterator[World]:
    """Start everything; stop it afterwards.

    Args:
        folder: Where the home lies.
        sealing: A key that is made already.
        database_url: Another database than a SQLite file in the home.
        settings: Settings of pipelines by their names.
    """
    receiver = Receiver()
    async with (
        accepting(receiver.serve) as receiver.port,
        _working(folder, sealing, database_url, receiver, settings) as world,
    ):
        yield world


@contextlib.asynccontextmanager
async def _working(
    folder: Path,
    sealing: SealingKeys,
    database_url: str,
    receiver: Receiver,
    settings: dict[str, str],
) -> AsyncIterator[World]:
    told = {"allowed_hosts": "127.0.0.1", "slack_url": f"{receiver.url}/slack",
            "folders": str(folder), "triggers_s": "0.1", **settings}  # fmt: skip
    home = Home(folder / "home")
    home.open()
    for path in sealing.folder.iterdir():
        (home.keys / path.name).parent.mkdir(mode=0o700, exist_ok=True)
        (home.keys / path.name).write_bytes(path.read_bytes())
    control = build(
        load_settings(
            {f"GPUPLANE_PIPELINES_{name.upper()}": value for name, value in told.items()},
            home=home.path,
            port=0,
            database_url=database_url,
        ),
        home,
    )
    try:
        await control.start()
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(control.app),
            base_url="http://gpuplane.test",
            headers={"Authorization": f"Bearer {control.token}"},
            timeout=30,
        ) as http:
            yield World(control, http, receiver, folder)
    finally:
        await control.stop()
        home.close()


def a_pipeline(*steps: dict[str, Any], name: str = "test", **spec: Any) -> dict[str, Any]:
    """Return a document."""
    return {
        "apiVersion": "gpuplane.io/v1",
        "kind": "Pipeline",
        "metadata": {"name": name},
        "spec": {"steps": list(steps), **spec},
    }


def a_step(step_id: str, step_type: str = "transform", **more: Any) -> dict[str, Any]:
    """Return a step: fields of a step by their names, all others are its config."""
    fields = ("name depends_on condition retry cache limit on_failure compensate "
              "order").split()  # fmt: skip
    own = {key: more.pop(key) for key in fields if key in more}
    if step_type == "transform" and not more:
        more = {"expression": "1"}
    return {"id": step_id, "step_type": step_type, **own, "config": more}


def a_job(step_id: str, script: str, **more: Any) -> dict[str, Any]:
    """Return a JOB step that runs a Python script on this machine."""
    spec = {"command": ["python3", "-c", script], "env": more.pop("env", {})}
    return a_step(step_id, "job", cpu_cores=0.1, memory_gb=0.1, max_retries=0, spec=spec, **more)
