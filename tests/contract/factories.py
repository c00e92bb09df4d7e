"""How the contract suite makes, reopens and waits for each backend.

A backend joins the suite by one class here (or in a module beside this one) and one line in
`conftest.FACTORIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gpuplane.backends.interface import (
    AttemptRef,
    Backend,
    Observation,
    Phase,
    ReplicaObservation,
)
from gpuplane.backends.local import cgroups
from gpuplane.backends.local.backend import LocalBackend
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.kit.clock import SystemClock
from tests.waiting import DEADLINE_S, Patience, wait_until_async


class BackendFactory(Protocol):
    """One backend under test, with what only its kind knows."""

    kind: str
    node_name: str
    """A node that has no GPU to give or that gives none unless asked."""
    survives_restart: bool
    """Whether `reopen` must show what the first object showed."""

    async def open(self) -> Backend:
        """Return the backend, the same state at every call, the object before it closed."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """Let that much of the backend's time pass, or return at once where time is real."""
        ...

    def plain(self, data: bytes) -> bytes:
        """Return output without what the backend itself writes before each line."""
        ...

    async def close(self) -> None:
        """End whatever still runs."""
        ...


class LocalFactory:
    """Real processes of this machine, in a home of their own."""

    kind = "local"
    node_name = "machine"
    survives_restart = True

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.settings = LocalSettings(node_name=self.node_name, lock_folder=folder / "locks")
        self._backend: LocalBackend | None = None

    async def open(self) -> LocalBackend:
        if self._backend is not None:
            self._backend.close()
        self._backend = LocalBackend(self.home, SystemClock(), self.settings)
        return self._backend

    async def pass_time(self, seconds: float) -> None:
        return None

    def plain(self, data: bytes) -> bytes:
        return data

    async def close(self) -> None:
        backend = await self.open()
        seen = (await backend.observe()).replicas
        for replica in seen:
            await backend.evict(replica.ref, 0, "Cancelled")
        for replica in seen:
            await until_over(self, backend, replica.ref)
        backend.close()

        def is_tidy() -> bool:
            cgroups.remove(backend.cgroups)
            return not (backend.cgroups.base and Path(backend.cgroups.base).exists())

        await wait_until_async(is_tidy, "the last supervisor has left its cgroup")


async def until(
    factory: BackendFactory,
    backend: Backend,
    condition: Callable[[Observation], object],
    what: str,
) -> Observation:
    """Return the first observation that fulfils a condition; fail after the deadline."""
    patience = Patience(DEADLINE_S)
    while True:
        observation = await backend.observe()
        if condition(observation):
            return observation
        if patience.is_over:
            raise AssertionError(f"still not so: {what}; last seen: {observation.replicas}")
        await factory.pass_time(0.1)
        await backend.wait_changed(0.1)


def replicas_of(observation: Observation, ref: AttemptRef) -> list[ReplicaObservation]:
    """Return the replicas of one attempt, whatever their epoch."""
    return [r for r in observation.replicas if r.ref.attempt_id == ref.attempt_id]


async def until_phase(
    factory: BackendFactory, backend: Backend, ref: AttemptRef, *phases: Phase
) -> list[ReplicaObservation]:
    """Return the replicas of an attempt once all of them are in one of these phases."""

    def reached(observation: Observation) -> bool:
        found = replicas_of(observation, ref)
        return bool(found) and all(replica.phase in phases for replica in found)

    text = f"attempt {ref.attempt_id} is {' or '.join(phases)}"
    return replicas_of(await until(factory, backend, reached, text), ref)


async def until_over(
    factory: BackendFactory, backend: Backend, ref: AttemptRef
) -> list[ReplicaObservation]:
    """Return the replicas of an attempt once all of them have ended."""
    return await until_phase(factory, backend, ref, Phase.EXITED, Phase.LOST)
