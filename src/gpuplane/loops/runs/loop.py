"""The worker: stores answers, claims the next steps in the same unit, and renews its lease."""

import asyncio
import contextlib
import logging
import os
import socket
from dataclasses import dataclass
from functools import partial
from uuid import UUID, uuid4

from gpuplane.core.runs.boards import Reply, earliest
from gpuplane.core.runs.plans import Failed
from gpuplane.db.database import Database
from gpuplane.db.questions import LAST_INSTANT, Question
from gpuplane.domains.runs import service as runs
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import ProductError
from gpuplane.kit.tasks import end_tasks
from gpuplane.loops.runs.meters import RunMeters
from gpuplane.loops.runs.worker import Workbench

log = logging.getLogger("gpuplane.runs")

BEATS_A_LEASE = 3
"""A lease is renewed so often in its time, so that a beat or two may be late."""
LEASES_ALONE = 6
"""Of SQLite there is one process: it takes over at its start whatever is left, lease or not. It
holds its own for so many times as long, and so writes less often where nothing happens."""
COUNT_S = 60.0
"""How often open runs are counted for `/metrics`: it walks all of them."""
STORE_BATCH = 512
"""Answers stored by one unit: bounds how long it holds the writer."""
CLAIM_BATCH = 512
ENGINE_ERROR = "EngineError"
"""Fails a step whose answer the engine could not store: a mistake of the engine, told as one."""
REST_FIRST_S, REST_LAST_S = 0.02, 1.0
"""Pause when something is due that cannot be claimed just now: another worker holds its run."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works; a setting each.

    Args:
        handlers: Handlers at work at once.
        share: Of these, what one run may have.
        lease_s: After so long without a beat others take its steps.
        poll_s: How often it looks for what other processes left due.
    """

    handlers: int = 512
    share: int = 384
    lease_s: float = 10.0
    poll_s: float = 1.0


class RunsLoop:
    """Runs steps; woken by new runs, by answers, and by the next instant that something is due."""

    name = runs.RUNS

    def __init__(
        self,
        database: Database,
        clock: Clock,
        handlers: runs.Handlers,
        meters: RunMeters,
        settings: WorkerSettings | None = None,
        policy: runs.RunPolicy = runs.DEFAULT_POLICY,
    ) -> None:
        """Make the loop; its first turn begins the work."""
        self._database = database
        self._clock = clock
        self._handlers = handlers
        self._meters = meters
        self._settings = settings or WorkerSettings()
        self._policy = policy
        self.period_s = self._settings.lease_s / BEATS_A_LEASE
        self.owner = ""
        self._wake = asyncio.Event()
        self._looks = True
        self._looked_at = self._rests_until = 0.0
        self._next_at: int | None = None
        self._alone = 0
        self._is_doubtful = False
        self._lost: set[tuple[UUID, int]] = set()
        self._counted_at = -COUNT_S
        self._next_look = Question(database, runs.next_look)
        self._unknown = Question(database, partial(runs.has_unknown, now=LAST_INSTANT))
        self._upkeep = Question(database, runs.has_upkeep)
        self._lease_s = self._settings.lease_s * (LEASES_ALONE if database.is_sqlite else 1)
        self._renewed_at = 0.0
        self._pump: asyncio.Task[None] | None = None
        self._beaten_at = 0.0
        self._bench = Workbench(
            database, clock, handlers, meters, policy.output_bytes, self._wake.set
        )

    async def run_once(self) -> bool:
        """Keep the lease and the work going; what goes wrong in between is raised here."""
        if self._pump is not None and self._pump.done():
            pump, self._pump = self._pump, None
            pump.result()
        await self._keep_lease()
        if self._pump is None:
            self._pump = asyncio.create_task(self._carry_on(), name="runs:pump")
        self._looks = True
        self._wake.set()
        return False

    async def stop(self) -> None:
        """End the work; steps under way are given to others at once."""
        if self._pump is not None:
            await end_tasks([self._pump])
            self._pump = None
        await self._bench.stop()
        if self.owner:
            now = self._clock.now_ms()
            await self._database.write(
                "runs.retire", partial(runs.retire_worker, owner=self.owner, now=now)
            )
            self.owner = ""

    # -- the lease -----------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        """Renew the lease when a third of it is over; begin a new one when it was taken away."""
        lease_ms = int(self._lease_s * 1000)
        now, tick = self._clock.now_ms(), self._clock.monotonic()
        if not self.owner:
            self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
            register = partial(
                runs.register_worker,
                owner=self.owner,
                handlers=self._handlers.names,
                now=now,
                lease_ms=lease_ms,
            )
            taken = await self._database.write("runs.register", register)
            self._meters.taken_over.inc(taken)
            self._beaten_at = self._renewed_at = tick
            return
        beats = tick - self._beaten_at >= self.period_s * 0.9
        if beats:
            await self._beat(now, lease_ms)
            self._beaten_at = tick
        if self._bench.at_work or (beats and self._is_doubtful):
            owned = await self._database.read(partial(runs.list_owned, owner=self.owner))
            self._bench.revoke_others(owned)
            if beats:
                await self._give_back(owned, now)

    async def _give_back(self, owned: dict[UUID, int], now: int) -> None:
        """Have steps claimed again that nobody here runs: a read failed after they were claimed.

        One is missed twice before that: a turn may just be handing it over.
        """
        kept = {(reply.step_id, reply.epoch) for reply in self._bench.replies}
        missed = {
            claim
            for claim in owned.items()
            if claim not in self._bench.at_work and claim not in kept
        }
        lost, self._lost = sorted(missed & self._lost), missed
        self._is_doubtful = bool(missed)
        if lost:
            await self._database.write(
                "runs.give_back",
                partial(runs.give_back, owner=self.owner, lost=lost, now=now),
            )

    async def _beat(self, now: int, lease_ms: int) -> None:
        tick = self._clock.monotonic()
        if self._is_old(tick) or await self._upkeep.ask(self.owner):
            beat = await self._database.write(
                "runs.beat", partial(runs.beat, owner=self.owner, now=now, lease_ms=lease_ms)
            )
            self._renewed_at = tick
            self._meters.taken_over.inc(beat.taken)
            if not beat.alive:
                log.warning("the lease of %s was taken away; its steps are others' now", self.owner)
                self.owner = ""
                await self._bench.stop()
                await self._keep_lease()
        if await self._unknown.ask() and await self._database.read(
            partial(runs.has_unknown, now=now)
        ):
            await self._database.write(
                "runs.park", partial(runs.park_unknown, now=now, policy=self._policy)
            )
        if tick - self._counted_at >= COUNT_S:
            self._counted_at = tick
            counts = await self._database.read(runs.count_open_runs)
            self._meters.open_runs.clear()
            for (kind, status), count in counts.items():
                self._meters.open_runs.labels(kind, status).set(count)

    def _is_old(self, tick: float) -> bool:
        """Return whether a third of the lease is over."""
        return tick - self._renewed_at >= self._lease_s / BEATS_A_LEASE * 0.9

    # -- the work ------------------------------------------------------------------------------

    async def _carry_on(self) -> None:
        """Store what was answered and claim what is due, again and again."""
        rest_s = REST_FIRST_S
        while True:
            await self._wait()
            self._wake.clear()
            replies = self._bench.replies[: 1 if self._alone else STORE_BATCH]
            self._alone = max(0, self._alone - len(replies))
            room = max(0, min(CLAIM_BATCH, self._settings.handlers - len(self._bench.at_work)))
            looks = (self._looks or self._is_due()) and room > 0
            if not replies and not (looks and await self._finds_due()):
                continue
            self._looks = self._looks and not looks
            try:
                result = await self._turn(replies, room, looks=looks)
            except Exception as error:
                self._looks = True
                self._wake.set()  # the answers are still there for the next try
                if not replies or isinstance(error, ProductError):
                    raise
                self._set_apart(replies, error)
                continue
            self._next_at = result.next_at if looks else earliest(self._next_at, result.next_at)
            if looks and len(result.claimed) == room:
                self._looks = True  # there may be more that is due
            rest_s = REST_FIRST_S if result.claimed or replies else min(rest_s * 2, REST_LAST_S)
            self._rests_until = self._clock.monotonic() + rest_s
            if self._bench.replies or (self._looks and self._has_room()):
                self._wake.set()

    def _set_apart(self, replies: list[Reply], error: Exception) -> None:
        """Find the answer that cannot be stored, so that it keeps no other from being stored.

        Answers are tried one by one; one that fails alone fails its step, and if even that cannot
        be stored it is left, and its step is claimed again later.
        """
        if len(replies) > 1:
            self._alone = len(replies)
            return
        reply = replies[0]
        log.error("an answer of step %s cannot be stored", reply.step_id, exc_info=error)
        rest = self._bench.replies[1:]
        if isinstance(reply.answer, Failed) and reply.answer.word == ENGINE_ERROR:
            self._bench.replies[:] = rest
            self._is_doubtful = True
            return
        text = f"The answer could not be stored: {type(error).__name__}: {error}"
        failed = Failed(ENGINE_ERROR, text[:2_000], is_final=True)
        again = Reply(reply.run_id, reply.step_id, reply.epoch, failed, reply.near)
        self._bench.replies[:] = [again, *rest]
        self._alone = 1

    def _has_room(self) -> bool:
        return len(self._bench.at_work) < self._settings.handlers

    async def _finds_due(self) -> bool:
        """Return whether a turn would find anything: looking does not keep others from writing."""
        self._looks, self._looked_at = False, self._clock.monotonic()
        due = await self._next_look.ask(self._handlers.names)
        self._next_at = due
        return due is not None and due <= self._clock.now_ms()

    def _is_due(self) -> bool:
        """Return whether the next step that is known of is due, or it is time to look anyhow."""
        tick = self._clock.monotonic()
        if tick < self._rests_until:
            return False
        due = self._next_at is not None and self._next_at <= self._clock.now_ms()
        return due or tick - self._looked_at >= self._settings.poll_s

    async def _wait(self) -> None:
        """Wait for an answer, a wake-up, or the next instant that something is due."""
        if self._wake.is_set():
            await asyncio.sleep(0)  # let handlers that need nothing finish: one unit for all
            return
        tick = self._clock.monotonic()
        timeout = self._looked_at + self._settings.poll_s - tick
        if self._next_at is not None:
            timeout = min(timeout, (self._next_at - self._clock.now_ms()) / 1000)
        timeout = max(timeout, self._rests_until - tick, 0.001)
        if not self._has_room():
            timeout = self._settings.poll_s  # nothing can be claimed before an answer comes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()

    async def _turn(self, replies: list[Reply], room: int, *, looks: bool) -> runs.Advance:
        if looks:
            self._looked_at = self._clock.monotonic()
        turn = runs.Turn(
            owner=self.owner,
            handlers=self._handlers.names,
            replies=replies,
            room=room,
            share=self._settings.share,
            busy=dict(self._bench.busy),
            looks=looks,
            now=self._clock.now_ms(),
        )
        result = await self._database.write(
            "runs.advance", partial(runs.advance, turn=turn, policy=self._policy)
        )
        del self._bench.replies[: len(replies)]
        for reply in replies:
            if not result.stale:
                self._bench.note_stored(reply)
        self._meters.stale.inc(result.stale)
        self._bench.revoke(result.revoked)
        if result.claimed:
            self._is_doubtful = True
            await self._bench.begin(result.claimed)
            self._is_doubtful = bool(self._lost)
        self._bench.memories.trim()
        return result
