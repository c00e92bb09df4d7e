"""Fires triggers: those of time, of folders and buckets, and of other pipelines' runs.

One leased process looks; that each firing happens once does not rest on the lease but on its row.
"""

from collections.abc import Sequence
from functools import partial

from gpuplane.db.database import Database
from gpuplane.db.leases import LeaseKeeper
from gpuplane.db.questions import Question
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.pipelines import service
from gpuplane.domains.pipelines.documents.arrivals import Found
from gpuplane.domains.pipelines.documents.cron import fires_between, next_fire
from gpuplane.domains.pipelines.service import TriggerRecord
from gpuplane.domains.pipelines.steps import StepTools
from gpuplane.domains.runs.service import RunPolicy
from gpuplane.domains.secrets import service as secrets
from gpuplane.kit.clock import Clock, instant_to_text
from gpuplane.kit.errors import ProductError
from gpuplane.loops.triggers.polling import (
    PollError,
    find_new,
    look_into_bucket,
    look_into_folder,
)

BATCH = 100
CATCH_UP = 100
"""Missed firings of one trigger that are made up for at once; older ones are gone."""
LATE_MS = 60_000
"""A firing that is older was missed: nobody was there to make it."""
KEPT_MS = 90 * 86_400_000
"""How long firings and output of functions are remembered."""
PRUNE_ROWS = 1_000


class TriggersLoop:
    """One leased look at all that may start a run."""

    name = service.TRIGGERS

    def __init__(
        self,
        database: Database,
        clock: Clock,
        leases: LeaseKeeper,
        tools: StepTools,
        policy: RunPolicy,
        period_s: float,
    ) -> None:
        """Make the loop.

        Args:
            database: Where triggers lie.
            clock: Tells the time.
            leases: Let one process look.
            tools: Reaches folders and buckets.
            policy: Limits of runs.
            period_s: How late a firing may be.
        """
        self._database = database
        self._clock = clock
        self._leases = leases
        self._tools = tools
        self._policy = policy
        self.period_s = period_s
        self._prune_at = 0
        self._ahead = Question(database, _look_ahead)

    async def run_once(self) -> bool:
        """Follow a batch of events and fire a batch of triggers; True when more are known."""
        now = self._clock.now_ms()
        news, next_at = await self._ahead.ask()
        due: Sequence[TriggerRecord] = ()
        if next_at is not None and next_at <= now:
            due = await self._database.read(partial(service.list_due, now=now, limit=BATCH))
        if not news and not due and now < self._prune_at:
            return False
        if await self._leases.hold(self.name) is None:
            return False
        more = False
        if news:
            more = await self._database.write(
                "pipelines.follow", lambda s: service.follow(s, self._policy, now)
            )
        for trigger in due:
            await self._database.read(partial(service.prepare, pipeline_id=trigger.pipeline_id))
            await self._fire(trigger, now)
        await self._prune(now)
        return more or len(due) == BATCH

    async def _fire(self, trigger: TriggerRecord, now: int) -> None:
        if trigger.kind == "scheduled":
            await self._database.write(
                "pipelines.fire_cron", lambda s: self._fire_times(s, trigger, now)
            )
            return
        part = trigger.spec[trigger.kind]
        due_at = now + part.get("every_seconds", 60) * 1000
        try:
            found = await self._look(trigger, now)
        except (PollError, ProductError) as error:
            problem = str(error)
            await self._database.write(
                "pipelines.note_look",
                lambda s: service.store_looked(s, trigger, due_at, trigger.state, problem),
            )
            return
        new, marks = find_new(trigger.state, found)
        new = new[:CATCH_UP]  # the rest is new at the next look, too

        def unit(session: WriteSession) -> None:
            kept = dict(trigger.state or {}) if len(new) == CATCH_UP else {}
            known = {**kept, **{each.path: each.mark for each in new}} if kept else marks
            if not service.store_looked(session, trigger, due_at, known, ""):
                return
            for each in new:
                self._fire_object(session, trigger, each, now)

        await self._database.write("pipelines.fire_objects", unit)

    def _fire_times(self, session: WriteSession, trigger: TriggerRecord, now: int) -> None:
        spec = trigger.spec
        cron, zone = spec["cron"], spec.get("time_zone", "UTC")
        if not service.store_looked(session, trigger, next_fire(cron, zone, now), None, ""):
            return
        since = (trigger.due_at or now) - 1
        times = fires_between(cron, zone, since, now, CATCH_UP)
        policy = spec.get("catch_up", "last")
        if policy == "none":
            times = [at for at in times if now - at <= LATE_MS]
        elif policy == "last":
            times = times[-1:]
        for at in times:
            text = instant_to_text(at)
            names = {"scheduled_at": text}
            service.fire(session, trigger, str(at), names, names, self._policy, now)

    def _fire_object(
        self, session: WriteSession, trigger: TriggerRecord, found: Found, now: int
    ) -> None:
        names = {"object": found.shown}
        service.fire(session, trigger, found.fire_key, names, names, self._policy, now)

    async def _look(self, trigger: TriggerRecord, now: int) -> list[Found]:
        part = trigger.spec[trigger.kind]
        if trigger.kind == "folder":
            return await look_into_folder(part, self._tools.folders, now)
        keys: tuple[str, str] | None = None
        if part.get("access_key") and part.get("secret_key"):
            names = [part["access_key"], part["secret_key"]]
            values = await self._database.write(
                "pipelines.reveal_bucket",
                lambda s: secrets.reveal_for_step(
                    s,
                    self._tools.sealing,
                    trigger.id,
                    trigger.project_id,
                    names,
                    "trigger:bucket",
                    now,
                ),
            )
            keys = (values[names[0]].value, values[names[1]].value)
        return await look_into_bucket(part, keys, self._tools, now)

    async def _prune(self, now: int) -> None:
        if now < self._prune_at:
            return
        self._prune_at = now + 3_600_000
        await self._database.write(
            "pipelines.prune", lambda s: service.prune(s, now - KEPT_MS, PRUNE_ROWS)
        )


def _look_ahead(session: ReadSession) -> tuple[bool, int | None]:
    """Return whether events wait to be followed, and when the next trigger is due."""
    return service.has_news(session), service.next_due(session)
