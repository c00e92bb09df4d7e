"""A database with a worker on it, and plans to run: what tests of runs start from."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from prometheus_client import CollectorRegistry

from gpuplane.core.runs.plans import RunPlan, StepPlan
from gpuplane.db.database import Database
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import Handlers, RunPolicy, RunView, StepView
from gpuplane.kit.clock import Clock, SystemClock
from gpuplane.kit.ids import new_id
from gpuplane.kit.loops import LoopRunner
from gpuplane.kit.pagination import PageRequest
from gpuplane.loops.runs.loop import RunsLoop, WorkerSettings
from gpuplane.loops.runs.meters import RunMeters
from tests.waiting import wait_until_async

TENANT, PROJECT = UUID(int=7 << 64), UUID(int=8 << 64)


def a_step(key: str, *needs: str, handler: str = "runs.nothing", **more: Any) -> StepPlan:
    """Return a step that does nothing."""
    return StepPlan(key=key, handler=handler, needs=needs, **more)


def a_plan(*steps: StepPlan, **more: Any) -> RunPlan:
    """Return a plan of these steps."""
    told = {"kind": "test", "name": "a run", "tenant_id": TENANT, "project_id": PROJECT} | more
    return RunPlan(steps=steps, **told)


@dataclass
class World:
    """A database, handlers, and workers that can be started."""

    database: Database
    handlers: Handlers
    clock: Clock
    policy: RunPolicy = field(default_factory=RunPolicy)
    settings: WorkerSettings = field(default_factory=WorkerSettings)
    runners: list[LoopRunner] = field(default_factory=list)

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    async def work(self, handlers: Handlers | None = None) -> RunsLoop:
        """Start a worker."""
        runner = LoopRunner(self.clock)
        loop = RunsLoop(
            self.database,
            self.clock,
            handlers or self.handlers,
            RunMeters(CollectorRegistry()),
            self.settings,
            self.policy_of(handlers or self.handlers),
        )
        runner.add(loop)
        self.database.on_commit(runner.wake)
        runner.start()
        self.runners.append(runner)
        return loop

    def policy_of(self, handlers: Handlers) -> RunPolicy:
        return runs.policy_for(self.policy, handlers)

    async def stop_work(self) -> None:
        """Stop every worker as a clean end of the process does."""
        for runner in self.runners:
            await runner.stop()
        self.runners.clear()

    async def start(self, plan: RunPlan) -> RunView:
        """Start a run."""
        now = self.now
        policy = self.policy_of(self.handlers)
        return await self.database.write(
            "runs.start", lambda s: runs.start_run(s, plan, now, policy)
        )

    async def get(self, run_id: UUID) -> RunView:
        return await self.database.read(lambda s: runs.get_run(s, run_id))

    async def steps(self, run_id: UUID) -> dict[str, StepView]:
        """Return the steps of a run by key, in their order."""
        page = PageRequest(500)
        found = await self.database.read(
            lambda s: runs.list_steps(s, run_id, runs.StepFilter(), page)
        )
        return {step.key: step for step in found.items}

    async def statuses(self, run_id: UUID) -> dict[str, str]:
        return {key: step.status.value for key, step in (await self.steps(run_id)).items()}

    async def until(self, run_id: UUID, *statuses: str) -> RunView:
        """Wait until a run has one of these statuses."""

        async def there() -> RunView | None:
            run = await self.get(run_id)
            return run if run.status in statuses else None

        return await wait_until_async(there, f"{run_id} is {statuses}")

    async def over(self, plan: RunPlan) -> RunView:
        """Start a run and wait for its end."""
        run = await self.start(plan)
        return await self.until(run.id, "completed", "partial", "failed", "cancelled")

    async def until_step(self, run_id: UUID, key: str, *words: str) -> StepView:
        """Wait until a step has one of these statuses or conditions."""

        async def there() -> StepView | None:
            step = (await self.steps(run_id)).get(key)
            known = step is not None and (step.status in words or step.condition in words)
            return step if known else None

        return await wait_until_async(there, f"{key} is {words}")

    async def do(self, verb: Any, *arguments: Any, **more: Any) -> Any:
        """Call a verb of the service in a unit of its own."""
        now = self.now
        policy = self.policy_of(self.handlers)
        return await self.database.write(
            "tests.do", lambda s: verb(s, *arguments, now, policy=policy, **more)
        )


@contextlib.asynccontextmanager
async def running_world(url: str, clock: Clock | None = None) -> AsyncIterator[World]:
    """Open a database; close it and stop every worker afterwards."""
    database = Database(url)
    world = World(database, Handlers(), clock or SystemClock())
    try:
        yield world
        await world.stop_work()
        assert database.read_now(runs.check) == []
    finally:
        await world.stop_work()
        database.close()


def chain(length: int, **more: Any) -> Sequence[StepPlan]:
    """Return steps of which each needs the one before."""
    return [a_step(f"s{n}", *([f"s{n - 1}"] if n else []), **more) for n in range(length)]


def fresh_project() -> UUID:
    return new_id()
