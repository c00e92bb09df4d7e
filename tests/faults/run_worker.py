"""A worker of runs in a process of its own, with a load that it starts, feeds and waits for.

Everything it does to runs is idempotent, so that it can be killed and begun again anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

import uvloop
from prometheus_client import CollectorRegistry

from gpuplane.core.runs.plans import (
    Answer,
    Awaiting,
    Completed,
    Expanding,
    Failed,
    Limit,
    OnFailure,
    Retry,
    RunPlan,
    StepCall,
    StepPlan,
    Undo,
)
from gpuplane.db.database import Database
from gpuplane.domains.runs import service as runs
from gpuplane.kit.clock import SystemClock
from gpuplane.kit.failpoints import arm_from_environment
from gpuplane.kit.loops import LoopRunner
from gpuplane.loops.runs.loop import RunsLoop, WorkerSettings
from gpuplane.loops.runs.meters import RunMeters

PLACE = UUID(int=9 << 64)
LEASE_S = 1.0
AGAIN = Retry(attempts=3, delay_ms=5, jitter=0.5)

ENDS = {
    "chain": "completed",
    "fan": "completed",
    "sleep": "completed",
    "event": "completed",
    "early": "completed",
    "retry": "completed",
    "loop": "completed",
    "limit-1": "completed",
    "limit-2": "completed",
    "one-1": "completed",
    "one-2": "completed",
    "rollback": "failed",
    "rerun": "completed",
    "cancel": "cancelled",
    "late": "failed",
    "part": "partial",
}
"""How each run of the load must end, whatever is killed when."""


@dataclass(frozen=True)
class Order:
    """What a worker is to do.

    Args:
        url: The database.
        log: The file of everything that handlers did, a line each.
        tags: Each begins the deduplication ids of a load that this worker starts.
        failpoints: As in GPUPLANE_FAILPOINTS.
    """

    url: str
    log: str
    tags: tuple[str, ...] = ()
    failpoints: str = ""
    trace: str = ""


def main(order: Order) -> None:
    """Work until nothing is open; exit status 0."""
    if order.failpoints:
        os.environ["GPUPLANE_FAILPOINTS"] = order.failpoints
    if order.trace:
        os.environ["GPUPLANE_FAILPOINT_TRACE"] = order.trace
    arm_from_environment()
    uvloop.run(_work(order))


def _step(key: str, *needs: str, handler: str = "note", **more: object) -> StepPlan:
    return StepPlan(key=key, handler=handler, needs=needs, **more)


def plans_of(tag: str) -> Iterator[RunPlan]:
    """Yield one plan of each kind."""

    def plan(name: str, *steps: StepPlan, **more: object) -> RunPlan:
        return RunPlan(
            "test", name, PLACE, PLACE, steps, dedup_id=f"{tag}:{name}", **more
        )  # fmt: skip

    yield plan("chain", _step("a"), _step("b", "a"), _step("c", "b"), _step("d", "c"))
    leaves = [f"f{n}" for n in range(6)]
    yield plan("fan", _step("a"), *(_step(key, "a") for key in leaves), _step("z", *leaves),
               max_parallel=4)  # fmt: skip
    yield plan("sleep", _step("a", handler="runs.sleep", input={"ms": 40}), _step("b", "a"))
    yield plan("event", _step("a", handler="wait", input="go"), _step("b", "a"))
    yield plan("early", _step("a", handler="runs.sleep", input={"ms": 60}),
               _step("b", "a", handler="wait", input="early"))  # fmt: skip
    yield plan("retry", _step("a", handler="fail_first", retry=AGAIN), _step("b", "a"))
    yield plan("loop", _step("a", handler="loop"), _step("b", "a"))
    for number in (1, 2):
        limit = Limit("gpu", 1)
        yield plan(f"limit-{number}", _step("a", limit=limit), _step("b", limit=limit))
        yield plan(f"one-{number}", _step("a"), _step("b", "a"), limits=(Limit("one", 1),))
    yield plan(
        "rollback",
        _step("a", undo=Undo("note", "a")),
        _step("b", "a", undo=Undo("note", "b")),
        _step("bad", "b", handler="fail"),
        on_failure=OnFailure.ROLLBACK,
    )
    yield plan("rerun", _step("a"), _step("b", "a", handler="fail_generation"), _step("c", "b"))
    yield plan("cancel", _step("a", handler="job", input="never"), _step("b", "a"))
    yield plan("late", _step("a", handler="wait", input="never"), timeout_ms=50)
    yield plan("part", _step("a", handler="fail"), _step("b", "a"), _step("c"),
               on_failure=OnFailure.CONTINUE)  # fmt: skip


class Doing:
    """The handlers: what they do outside is a line of a file, written before they answer."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def write(self, word: str, call: StepCall) -> None:
        line = f"{word} {call.idempotency_key} {call.attempt}\n".encode()
        handle = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)

    async def note(self, call: StepCall) -> Answer:
        self.write("did", call)
        await asyncio.sleep(0)
        return Completed(call.key)

    async def wait(self, call: StepCall) -> Answer:
        if call.event is None:
            return Awaiting(f"run:{call.run_id}:{call.input}")
        self.write("did", call)
        return Completed(call.event)

    async def fail_first(self, call: StepCall) -> Answer:
        self.write("did", call)
        return Failed("First", "the first") if call.attempt == 1 else Completed()

    async def fail_generation(self, call: StepCall) -> Answer:
        self.write("did", call)
        if call.idempotency_key.endswith("#0"):
            return Failed("Generation", "not before it is run again", is_final=True)
        return Completed()

    async def fail(self, call: StepCall) -> Answer:
        self.write("did", call)
        return Failed("Always", "always", is_final=True)

    async def loop(self, call: StepCall) -> Answer:
        if call.state is None:
            kids = tuple(_step(f"{call.key}/{n}") for n in range(4))
            return Expanding(kids, max_parallel=2, state=1)
        self.write("did", call)
        return Completed([child.output for child in call.children])

    async def stop(self, call: StepCall) -> Answer:
        self.write("stopped", call)
        return Completed()

    def register(self, handlers: runs.Handlers) -> None:
        for name in ("note", "wait", "fail_first", "fail_generation", "fail", "loop"):
            handlers.add(name, getattr(self, name))
        handlers.add("job", self.wait, on_cancel=self.stop)


async def _work(order: Order) -> None:
    database = Database(order.url)
    clock = SystemClock()
    handlers = runs.Handlers()
    Doing(Path(order.log)).register(handlers)
    policy = runs.policy_for(runs.DEFAULT_POLICY, handlers)
    settings = WorkerSettings(lease_s=LEASE_S, poll_s=0.2)
    loop = RunsLoop(database, clock, handlers, RunMeters(CollectorRegistry()), settings, policy)
    runner = LoopRunner(clock)
    runner.add(loop)
    database.on_commit(runner.wake)
    runner.start()
    for tag in order.tags:
        for plan in plans_of(tag):
            now = clock.now_ms()
            await database.write("runs.start", lambda s, p=plan, n=now: runs.start_run(s, p, n))
    chance = random.Random(os.getpid())
    beats = "runs.beat" in order.failpoints  # it must live long enough for its first beat
    while await _feed(database, clock, policy) or beats:
        await clock.sleep(0.02 + 0.03 * chance.random())
    await runner.stop()
    database.close()


async def _feed(database: Database, clock: SystemClock, policy: runs.RunPolicy) -> bool:
    """Send events, run again, cancel what is to be; return whether anything is open."""
    from gpuplane.kit.pagination import PageRequest

    found = await database.read(
        lambda s: runs.list_runs(s, None, runs.RunFilter(), PageRequest(500))
    )
    is_open = False
    for run in found.items:
        if run.status == ENDS[run.name]:
            continue
        is_open = True
        now = clock.now_ms()
        with contextlib.suppress(runs.RunInTheWay):
            if run.name in ("event", "early") and run.status == "running":
                name = "go" if run.name == "event" else "early"
                await database.write(
                    "runs.deliver",
                    partial(_deliver_once, run_id=run.id, name=name, now=now, policy=policy),
                )
            elif run.name == "rerun" and run.status == "failed":
                verb = partial(runs.rerun_from_failure, run_id=run.id, now=now, policy=policy)
                await database.write("runs.rerun", verb)
            elif run.name == "cancel" and run.status == "running":
                verb = partial(runs.cancel_run, run_id=run.id, now=now, policy=policy)
                await database.write("runs.cancel", verb)
    return is_open


def _deliver_once(
    session: object, run_id: UUID, name: str, now: int, policy: runs.RunPolicy
) -> int:
    return runs.deliver_to_run(session, run_id, name, "payload", now, policy)
