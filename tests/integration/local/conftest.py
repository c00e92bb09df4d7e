"""A local backend in a home of its own, and short ways to run a script and see its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from gpuplane.backends.interface import (
    AttemptPlan,
    AttemptRef,
    LogChunk,
    Phase,
    ReplicaObservation,
    Stream,
)
from gpuplane.backends.local.backend import LocalBackend
from gpuplane.backends.local.folders import AttemptFolder, read_json
from tests.contract.builders import a_plan
from tests.contract.factories import LocalFactory, until_over, until_phase
from tests.waiting import wait_until_async


class Machine:
    """The backend under test with what only this kind has: folders and processes."""

    def __init__(self, factory: LocalFactory, backend: LocalBackend) -> None:
        self.factory = factory
        self.backend = backend

    async def start(
        self, script: str, *, secrets: dict[str, str] | None = None, **plan: Any
    ) -> AttemptPlan:
        """Start a shell script and return its plan."""
        made = a_plan(command=("/bin/sh", "-c", script), **plan)
        await self.backend.ensure_workload(made, secrets or {})
        return made

    async def run(self, script: str, **plan: Any) -> ReplicaObservation:
        """Run a shell script to its end and return what is seen of it."""
        made = await self.start(script, **plan)
        return await self.end_of(made.ref)

    async def end_of(self, ref: AttemptRef) -> ReplicaObservation:
        """Return rank 0 once the attempt has ended."""
        return (await until_over(self.factory, self.backend, ref))[0]

    async def running(self, ref: AttemptRef) -> ReplicaObservation:
        """Return rank 0 once the attempt runs."""
        return (await until_phase(self.factory, self.backend, ref, Phase.RUNNING))[0]

    async def seen(self, ref: AttemptRef) -> ReplicaObservation:
        """Return rank 0 as it is now."""
        found = (await self.backend.observe()).replicas
        return next(r for r in found if r.ref.attempt_id == ref.attempt_id)

    async def text(self, ref: AttemptRef, rank: int = 0, stream: Stream = Stream.STDOUT) -> str:
        """Return what a rank has printed so far."""
        chunk = await self.backend.read_logs(ref, rank, stream, 0, 10_000_000)
        return chunk.data.decode()

    async def until_printed(self, ref: AttemptRef, text: str) -> None:
        """Return once rank 0 has printed a text."""

        async def printed() -> bool:
            return text in await self.text(ref)

        await wait_until_async(printed, f"{text!r} is printed")

    async def output(self, script: str, **plan: Any) -> str:
        """Run a shell script to its end and return its standard output."""
        made = await self.start(script, **plan)
        await self.end_of(made.ref)
        return await self.text(made.ref)

    async def followed(self, ref: AttemptRef, *offsets: int) -> list[LogChunk]:
        """Return everything a follower gets until the attempt is over."""
        stdout, stderr = offsets or (0, 0)
        async with asyncio.timeout(30):
            follow = self.backend.follow_logs(ref, [0], stdout, stderr)
            return [chunk async for chunk in follow]

    def folder(self, ref: AttemptRef) -> AttemptFolder:
        """Return the attempt's folder."""
        return AttemptFolder(self.backend.root, ref.attempt_id)

    def state(self, ref: AttemptRef) -> dict[str, Any]:
        """Return the attempt's state record, empty before there is one."""
        return read_json(self.folder(ref).path / "state.json") or {}

    async def reopen(self) -> None:
        """Stop the control plane's side and start it again on the same home."""
        self.backend = await self.factory.open()


@pytest_asyncio.fixture
async def local(tmp_path: Path) -> AsyncIterator[Machine]:
    factory = LocalFactory(tmp_path)
    machine = Machine(factory, await factory.open())
    yield machine
    await factory.close()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return text[text.rfind(")") + 2] not in "ZX"


async def until_dead(*pids: int) -> None:
    """Return once none of these processes runs."""
    await wait_until_async(lambda: not any(map(is_alive, pids)), f"{pids} are gone")
