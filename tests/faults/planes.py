"""A control plane as a process of its own on a home of its own, to be killed and started again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx2

from tests.faults.nursery import start_plane
from tests.waiting import wait_until_async

START_S = 60.0  # a start takes under two seconds; the machine may be busy


class Died(Exception):
    """The control plane is no longer there."""


@dataclass(frozen=True)
class Template:
    """A home that was started once, to be copied.

    `copy_database` makes a copy of its database and returns the URL; empty for the SQLite file
    that lies in the home and is copied with it.
    """

    home: Path
    copy_database: Callable[[], str] = str


class Plane:
    """One home folder and the process that serves it, if one does."""

    def __init__(self, home: Path, database_url: str = "") -> None:
        self.home = home
        self.database_url = database_url
        self.process: BaseProcess | None = None
        self.client: httpx2.AsyncClient | None = None

    @classmethod
    def copy_of(cls, template: Template, home: Path) -> Plane:
        """Return a plane on a copy of a home that was started once: keys and schema are there."""
        shutil.copytree(template.home, home)
        return cls(home, template.copy_database())

    async def start(self, **extra: str) -> None:
        """Start the process; returns when it answers, or when a failpoint ended it before."""
        assert self.process is None, "the plane runs already"
        (self.home / "address").unlink(missing_ok=True)
        self.home.mkdir(exist_ok=True, parents=True)
        self.process = self.spawn(**extra)
        await wait_until_async(
            lambda: self.is_over() or (self.home / "address").exists(),
            f"the control plane on {self.home} is up",
            deadline_s=START_S,
        )
        if self.is_over():
            return
        self.client = httpx2.AsyncClient(
            base_url=(self.home / "address").read_text().strip() + "/api/v1",
            headers={"Authorization": f"Bearer {(self.home / 'admin-token').read_text().strip()}"},
            timeout=30.0,
            trust_env=False,
        )

    def spawn(self, **extra: str) -> BaseProcess:
        """Start a process on the home, whoever else is there."""
        return start_plane(self._environment(extra), self.home / "printed")

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GPUPLANE_")}
        own = {
            "GPUPLANE_HOME": str(self.home),
            "GPUPLANE_PORT": "0",
            "GPUPLANE_WEBHOOKS_ALLOWED_HOSTS": "127.0.0.1",
        }
        if self.database_url:
            own["GPUPLANE_DATABASE_URL"] = self.database_url
        return {**kept, **own, **extra}

    def is_over(self) -> bool:
        """Return whether the process has ended."""
        return self.process is None or self.process.exitcode is not None

    async def ask(
        self, method: str, path: str, body: Any = None, key: str | None = None
    ) -> httpx2.Response:
        """Send one request.

        Raises:
            Died: If nobody answered because the process is gone.
        """
        client = self.client
        if client is None or client.is_closed:
            raise Died
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            return await client.request(method, path, json=body, headers=headers)
        except httpx2.TransportError as error:
            await self._must_be_dead(f"a plane that drops requests is dead: {error!r}")
            raise Died from error
        except RuntimeError as error:
            if self.client is None:  # closed by the killer while the request waited for its turn
                raise Died from error
            raise

    async def _must_be_dead(self, what: str) -> None:
        """Wait for the end of the process; one that goes on says where its threads are."""
        try:
            await wait_until_async(self.is_over, what)
        except AssertionError as error:
            printed = self.home / "printed"
            if self.process is not None and self.process.pid is not None:
                size = printed.stat().st_size
                os.kill(self.process.pid, signal.SIGUSR1)
                await wait_until_async(lambda: printed.stat().st_size > size, "it says where it is")
            raise AssertionError(f"{error}\n{printed.read_text()[-6000:]}") from error

    async def knows(self, token: str) -> bool:
        """Return whether a token is let in, whatever it may do."""
        assert self.client is not None
        headers = {"Authorization": f"Bearer {token}"}
        return (await self.client.get("/jobs?limit=1", headers=headers)).status_code != 401

    async def wait_for_death(self, deadline_s: float = 30.0) -> int:
        """Return the exit status once the process has ended by itself."""
        process = self.process
        assert process is not None
        await wait_until_async(self.is_over, "the process ended", deadline_s=deadline_s)
        status = process.exitcode
        assert status is not None
        await self._let_go()
        return status

    async def kill(self) -> None:
        """End the process without warning, as the kernel does when memory runs out."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop the process cleanly, if there is one."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            if self.process.pid is not None and not self.is_over():
                os.kill(self.process.pid, number)
            await asyncio.to_thread(self.process.join, START_S)
            assert self.is_over(), f"the process did not end by {number.name}"
        await self._let_go()

    async def _let_go(self) -> None:
        client, self.client = self.client, None  # from now on whoever asks is told that it died
        if client is not None:
            await client.aclose()
        if self.process is not None:
            self.process.close()
        self.process = None
