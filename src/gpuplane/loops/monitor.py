"""The monitor: does what time alone does, to jobs, drains, windows and reservations.

Driven by one instant per job, so a turn costs as much as what is due. Signals to backends are
sent after the commit that remembers them; a crash between the two loses at most one signal, and
the wait that follows it ends the same way.
"""

import contextlib
import logging
from collections.abc import Sequence
from functools import partial

from gpuplane.backends.capabilities import Checkpoints
from gpuplane.backends.interface import AttemptRef, BackendError
from gpuplane.core.ids import JobId
from gpuplane.db.database import Database
from gpuplane.db.questions import Question
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Attempt, Looked, UptimeTargets, WaitTargets
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.nodes.errors import NodeChanged
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import ReservationState
from gpuplane.kit.clock import Clock
from gpuplane.loops.ports import Backends

log = logging.getLogger("gpuplane.monitor")

SLOW_LOOK_MS = 5_000
"""How often what has no instant of its own is looked at: waits, reservations, maintenance."""
ASIDE_MS = 60_000
"""How long a job that cannot be looked at is left alone."""


class MonitorLoop:
    """Opens gates, enforces deadlines, budgets and windows, drains nodes, tells of long waits."""

    name = "monitor"

    def __init__(
        self,
        database: Database,
        clock: Clock,
        backends: Backends,
        targets: WaitTargets,
        period_s: float = 1.0,
        uptimes: UptimeTargets | None = None,
        no_show_s: int = 0,
    ) -> None:
        """Make the loop.

        Args:
            database: Where jobs are kept.
            clock: The time.
            backends: Whom to ask for checkpoints.
            targets: How long jobs of a class should wait at most.
            period_s: How often it looks without being woken: the resolution of deadlines.
            uptimes: How much services of a class should run; the defaults if not given.
            no_show_s: How long a reservation waits for its first use; 0 for ever.
        """
        self.period_s = period_s
        self._database = database
        self._clock = clock
        self._backends = backends
        self._targets = targets
        self._uptimes = uptimes or UptimeTargets()
        self._no_show_s = no_show_s
        self._slow_at = 0
        self._next = Question(database, _look_ahead)

    async def run_once(self) -> bool:
        """Do everything that is due; True when there may be more."""
        now = self._clock.now_ms()
        next_at, draining = await self._next.ask()
        due: Sequence[JobId] = ()
        if next_at is not None and next_at <= now:
            due = await self._database.read(partial(jobs.list_due, now=now))
        if due:
            await self._look(due, now)
        if draining:
            await self._drain(draining, now)
        if not 0 <= now - self._slow_at < SLOW_LOOK_MS:
            await self._look_at_the_rest(now)
            self._slow_at = now
        return len(due) >= jobs.DUE_BATCH

    async def _look(self, due: Sequence[JobId], now: int) -> None:
        try:
            looked = await self._database.write(
                "jobs.look_at",
                partial(jobs.look_at, job_ids=due, now=now, uptimes=self._uptimes),
            )
        except Exception:
            if len(due) == 1:
                raise
            log.exception("a batch of due jobs failed; each is looked at alone")
            for job_id in due:
                await self._look_alone(job_id, now)
            return
        await self._signal(looked)

    async def _look_alone(self, job_id: JobId, now: int) -> None:
        """Look at one job; one that cannot be looked at is set aside with an alarm."""
        try:
            await self._look([job_id], now)
        except Exception as error:
            log.exception("job %s cannot be looked at", job_id)
            said = f"It cannot be looked at: {type(error).__name__}."
            await self._database.write(
                "jobs.set_aside",
                partial(
                    jobs.set_aside, job_id=job_id, sentence=said, until=now + ASIDE_MS, now=now
                ),
            )

    async def _drain(self, draining: Sequence[Node], now: int) -> None:
        for node in draining:
            # Uncordoned or changed since it was read: the next turn sees what it is now.
            with contextlib.suppress(NodeChanged):
                looked = await self._database.write(
                    "jobs.drain_node", partial(jobs.drain_node, node=node, now=now)
                )
                await self._signal(looked)

    async def _signal(self, looked: Looked) -> None:
        for attempt in looked.to_checkpoint:
            await self._ask_checkpoint(attempt)

    async def _ask_checkpoint(self, attempt: Attempt) -> None:
        backend = self._backends.find(attempt.cluster_id)
        if backend is None or not isinstance(backend, Checkpoints):
            return
        try:
            await backend.request_checkpoint(AttemptRef(attempt.id, attempt.epoch))
        except BackendError as error:
            log.info("attempt %s was not asked for a checkpoint: %s", attempt.id, error.message)

    async def _look_at_the_rest(self, now: int) -> None:
        alive = (ReservationState.SCHEDULED, ReservationState.ACTIVE)

        def look(session: ReadSession) -> tuple[bool, bool, bool, bool]:
            known = placements.list_reservations(session, states=alive)
            return (
                bool(jobs.find_waits(session, self._targets, now)),
                bool(jobs.find_inversions(session)),
                clusters.has_due_maintenance(session, now),
                any(each.start_at <= now for each in known),
            )

        # One read for all: on a server that has nothing to do it is most of what these cost.
        waits, is_inverted, has_maintenance, has_begun = await self._database.read(look)
        if waits:
            await self._database.write(
                "jobs.tell_waits", partial(jobs.tell_waits, targets=self._targets, now=now)
            )
        if is_inverted:
            await self._database.write(
                "jobs.tell_inversions", partial(jobs.tell_inversions, now=now)
            )
        if has_maintenance:
            await self._database.write(
                "clusters.begin_due_maintenance",
                partial(clusters.begin_due_maintenance, now=now),
            )
        if has_begun:
            await self._database.write(
                "placements.advance", partial(_advance, now=now, no_show_s=self._no_show_s)
            )


def _look_ahead(session: ReadSession) -> tuple[int | None, Sequence[Node]]:
    """Return when the next job is due, and the nodes that are being drained."""
    return jobs.next_due_at(session), nodes.list_draining(session)


def _advance(session: WriteSession, now: int, no_show_s: int) -> None:
    changes = placements.advance_reservations(session, now, no_show_s, jobs.list_fixed_devices)
    if changes.in_the_way:
        jobs.clear_reserved(session, changes.in_the_way, now)
    if changes.activated or changes.ended:
        session.wake("scheduler")
