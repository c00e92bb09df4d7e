"""Retention: what was kept long enough is forgotten, a batch at a time.

Output lies with backends and is dropped there first; a crash in between only repeats it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuplane.backends.interface import AttemptRef, BackendError
from gpuplane.core.ids import AttemptId
from gpuplane.core.prediction.experience import KEPT_PERIODS, PERIOD_MS
from gpuplane.core.reasons import Word
from gpuplane.db.database import Database
from gpuplane.db.idempotency import prune_answers
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Attempt
from gpuplane.domains.runs import service as runs
from gpuplane.kit.clock import Clock
from gpuplane.loops.ports import Backends

log = logging.getLogger("gpuplane.retention")

BATCH = 200
"""Things forgotten by one turn of each kind: bounds how long it holds the writer."""
DAY_MS = 86_400_000
REMEMBERED_MS = PERIOD_MS * KEPT_PERIODS
"""What ended jobs taught is forgotten when nothing was added to it for so long."""
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept, from settings; 0 keeps them for ever.

    Args:
        jobs_days: Jobs after their end, and working directories after their last use.
        logs_days: Output and artifacts after the end of the attempt.
        events_days: Events and the audit trail.
        runs_days: Runs after their end.
        answers_hours: Answers by Idempotency-Key.
    """

    jobs_days: float = 90.0
    logs_days: float = 14.0
    events_days: float = 90.0
    runs_days: float = 90.0
    answers_hours: float = 24.0


class RetentionLoop:
    """Forgets jobs, runs, output, events, answers and uploads that were kept long enough."""

    name = "retention"

    def __init__(
        self,
        database: Database,
        clock: Clock,
        backends: Backends,
        keep: Retention,
        workspaces: Path,
        period_s: float = 3600.0,
    ) -> None:
        """Make the loop.

        Args:
            database: Where everything is kept.
            clock: The time.
            backends: Who keeps the output of attempts.
            keep: How long.
            workspaces: The folder of uploaded working directories.
            period_s: How often it looks.
        """
        self.period_s = period_s
        self._database = database
        self._clock = clock
        self._backends = backends
        self._keep = keep
        self._workspaces = workspaces

    async def run_once(self) -> bool:
        """Forget a batch of each kind; True when there is more."""
        now = self._clock.now_ms()
        more = [
            await self._forget_output(now),
            await self._prune_jobs(now),
            await self._prune_runs(now),
            await self._prune_events(now),
            await self._prune_answers(now),
            await self._prune_workspaces(now),
        ]
        return any(more)

    async def _forget_output(self, now: int) -> bool:
        if not self._keep.logs_days:
            return False
        before = now - int(self._keep.logs_days * DAY_MS)
        served = [cluster_id for cluster_id, _ in self._backends.items()]
        found = await self._database.read(lambda s: jobs.list_to_forget(s, served, before, BATCH))
        forgotten = await self._forget(found)
        return len(found) == BATCH and bool(forgotten)

    async def _prune_jobs(self, now: int) -> bool:
        if not self._keep.jobs_days:
            return False
        before = now - int(self._keep.jobs_days * DAY_MS)
        job_ids, kept = await self._database.read(lambda s: jobs.list_to_prune(s, before, BATCH))
        forgotten = set(await self._forget(kept))
        held = {attempt.job_id for attempt in kept if attempt.id not in forgotten}
        ready = [job_id for job_id in job_ids if job_id not in held]
        if ready:
            await self._database.write("jobs.prune", partial(jobs.prune_jobs, job_ids=ready))
        await self._database.write(
            "jobs.prune_decisions", partial(jobs.prune_decisions, before=before)
        )
        stale = now - REMEMBERED_MS
        if await self._database.read(lambda s: jobs.has_old_experience(s, stale)):
            await self._database.write(
                "jobs.prune_experience", partial(jobs.prune_experience, before=stale)
            )
        return len(job_ids) == BATCH and bool(ready)

    async def _forget(self, attempts: Sequence[Attempt]) -> list[AttemptId]:
        """Have backends drop what they keep of attempts; return those that did."""
        done: list[AttemptId] = []
        for attempt in attempts:
            backend = self._backends.find(attempt.cluster_id)
            if backend is None:
                continue  # its cluster is served by another process, or not just now
            try:
                await backend.forget(AttemptRef(attempt.id, attempt.epoch))
                await self._forget_dispatched(attempt)
            except BackendError as error:
                log.warning("attempt %s is not forgotten: %s", attempt.id, error.message)
                continue
            done.append(attempt.id)
        if done:
            await self._database.write(
                "jobs.note_forgotten", partial(jobs.note_forgotten, attempt_ids=done)
            )
        return done

    async def _forget_dispatched(self, attempt: Attempt) -> None:
        """Have the manager that dispatched an attempt drop what it keeps of it too."""
        manager = None if attempt.manager_id is None else self._backends.find(attempt.manager_id)
        if manager is not None:
            ref = AttemptRef(attempt.id, attempt.epoch)
            await manager.evict(ref, 0, str(Word.COMPLETED))
            await manager.forget(ref)

    async def _prune_events(self, now: int) -> bool:
        if not self._keep.events_days:
            return False
        before = now - int(self._keep.events_days * DAY_MS)
        gone = await self._database.write("events.prune", partial(events.prune, before=before))
        gone += await self._database.write(
            "events.prune_deliveries", partial(events.prune_deliveries, before=before)
        )
        return gone > 0

    async def _prune_runs(self, now: int) -> bool:
        await self._database.write("runs.prune_leftovers", partial(runs.prune_leftovers, now=now))
        if not self._keep.runs_days:
            return False
        before = now - int(self._keep.runs_days * DAY_MS)
        found = await self._database.read(lambda s: runs.list_to_prune(s, before, BATCH))
        if found:
            await self._database.write("runs.prune", partial(runs.prune_runs, run_ids=found))
        return len(found) == BATCH

    async def _prune_answers(self, now: int) -> bool:
        before = now - int(self._keep.answers_hours * HOUR_MS)
        await self._database.write("db.prune_answers", partial(prune_answers, before=before))
        return False

    async def _prune_workspaces(self, now: int) -> bool:
        if not self._keep.jobs_days:
            return False
        before = now - int(self._keep.jobs_days * DAY_MS)
        unused = await self._database.read(lambda s: jobs.list_unused_workspaces(s, before, BATCH))
        for digest, tenant_id in unused:
            is_last = await self._database.write(
                "jobs.forget_workspace",
                partial(jobs.forget_workspace, digest=digest, tenant_id=tenant_id),
            )
            if is_last:
                (self._workspaces / f"{digest}.tar.gz").unlink(missing_ok=True)
        return len(unused) == BATCH
