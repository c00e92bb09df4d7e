"""The dispatcher: tells backends to start admitted attempts and to stop stopping ones.

Work towards backends is done outside any transaction and is idempotent; what was done is written
back afterwards, so a crash between the two only repeats it. Each cluster is served by a task of its
own: a turn waits for those that answer, and one that hangs is left alone until it has ended.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gpuplane.backends.interface import (
    STARTING,
    AttemptPlan,
    AttemptRef,
    Backend,
    BackendError,
    StaleEpoch,
    Tombstoned,
    Unavailable,
)
from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.reasons import Word
from gpuplane.db.database import Database
from gpuplane.db.questions import Question
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Attempt, Job, Surroundings
from gpuplane.domains.secrets import service as secrets
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import ProductError
from gpuplane.kit.failpoints import failpoint
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kit.tracing import Tracing
from gpuplane.loops.looks import Looks
from gpuplane.loops.offers import MAX_TOLD_CHARS, Offers, OffersToDo
from gpuplane.loops.ports import Backends
from gpuplane.loops.releases import release
from gpuplane.loops.scaler import Scaler

log = logging.getLogger("gpuplane.dispatcher")

BATCH = 500
AT_ONCE = 32
"""Attempts being started on a cluster at the same time: bounds open files and backend load."""
TURN_S = 10.0
"""How long a turn waits for clusters; one that takes longer goes on without the turn."""
NOTE_EVERY_S = 1.0
"""How long what was started waits for the rest of its batch before it is stored: a slow start holds
up no other, and what is killed in the middle does not begin from nothing again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one start: `word` empty when the backend took it on."""

    attempt: Attempt
    word: str = ""
    message: str = ""
    gone: bool = False
    delay: str = ""
    """Why the backend could not take it on yet; its turn comes again."""


class DispatcherLoop:
    """Starts what was admitted and stops what is to stop."""

    name = "dispatcher"

    def __init__(
        self,
        database: Database,
        clock: Clock,
        backends: Backends,
        around: Callable[[], Surroundings],
        chance: Callable[[], float],
        keys: SealingKeys,
        tracing: Tracing,
        period_s: float = 5.0,
        turn_s: float = TURN_S,
    ) -> None:
        """Make the loop.

        Args:
            database: Where attempts are kept.
            clock: The time.
            backends: Who runs them.
            around: What the control plane adds to every attempt.
            chance: Gives a number in [-1, 1] for the jitter of retries.
            keys: Opens the secrets that jobs refer to.
            tracing: Carries the trace of a submit into the job.
            period_s: How often it looks without being woken.
            turn_s: How long a turn waits for a cluster that does not answer.
        """
        self.period_s = period_s
        self._turn_s = turn_s
        self._clusters = Looks(self.name)
        self._database = database
        self._clock = clock
        self._backends = backends
        self._around = around
        self._chance = chance
        self._keys = keys
        self._tracing = tracing
        self._told: dict[ClusterId, dict[AttemptId, str]] = {}
        """Why attempts were not taken on at their last turn, as it was stored."""
        self._offers = Offers(database, clock, around, chance, self._reveal)
        self._to_do = Question(database, _list_to_do)
        self._to_release = Question(database, _list_to_release)
        self._scaler = Scaler(database, clock, backends, around, chance, self._reveal)

    async def run_once(self) -> bool:
        """Start and stop one batch; True when something was done and there may be more."""
        served = {
            cluster_id: backend
            for cluster_id, backend in self._backends.items()
            if not self._clusters.is_under_way(cluster_id)
        }
        to_do = await self._to_do.ask(*served)
        offers = await self._offers.list_to_do(served)
        done = await self._to_release.ask(*served)
        got_on: set[ClusterId] = set()

        async def serve(cluster_id: ClusterId) -> None:
            if cluster_id in done:
                await release(self._database, self._clock, served[cluster_id], done[cluster_id])
            if await self._serve(to_do.get(cluster_id), offers.get(cluster_id)):
                got_on.add(cluster_id)

        asked = {*to_do, *offers, *done}
        works = {each: partial(serve, each) for each in served if each in asked}
        await self._clusters.run(works, self._turn_s)
        return bool(got_on)

    async def stop(self) -> None:
        """End what is under way towards clusters."""
        await self._clusters.stop()

    async def _serve(self, mine: "_ToDo | None", offers: OffersToDo | None) -> bool:
        """Do what one cluster is to be told; True when something was and more may be left."""
        is_done, is_full = False, False
        if mine is not None:
            evicted = await self._evict(mine.to_evict) if mine.to_evict else 0
            noted = await self._ensure(mine.waiting) if mine.waiting else 0
            told = await self._scaler.tell(mine.to_scale) if mine.to_scale else 0
            is_done, is_full = bool(evicted or noted or told), mine.is_full
        more = await self._offers.serve(offers) if offers is not None else False
        return more or (is_done and is_full)

    async def _ensure(self, waiting: Sequence[Attempt]) -> int:
        """Start attempts of one cluster; return of how many something was stored."""
        around = self._around()
        plans = await self._database.read(lambda s: jobs.load_plans(s, waiting, around))
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(job: Job, attempt: Attempt, plan: AttemptPlan) -> tuple[Job, Outcome]:
            async with limit:
                return job, await self._start(job, attempt, plan)

        noted = 0
        async with asyncio.TaskGroup() as group:
            pending = {group.create_task(one(*each)) for each in plans}
            while pending:
                done, pending = await asyncio.wait(pending, timeout=NOTE_EVERY_S)
                noted += await self._note([each.result() for each in done], around)
        self._forget_told(waiting)
        return noted

    def _forget_told(self, waiting: Sequence[Attempt]) -> None:
        """Remember what was said of those alone that one cluster was to start."""
        there = {each.id for each in waiting}
        for cluster_id in {each.cluster_id for each in waiting}:
            told = self._told.get(cluster_id, {})
            self._told[cluster_id] = {key: why for key, why in told.items() if key in there}

    async def _note(self, outcomes: Sequence[tuple[Job, Outcome]], around: Surroundings) -> int:
        """Store what became of starts; return of how many there was something to store."""
        await self._tell(outcomes)
        now = self._clock.now_ms()
        started = [(job, each.attempt) for job, each in outcomes if not each.word and not each.gone]
        if started:
            await self._database.write(
                "jobs.note_ensured", partial(_note_ensured, started=started, around=around, now=now)
            )
        for _, each in outcomes:
            if each.word:
                await self._database.write(
                    "jobs.note_start_failed",
                    partial(
                        jobs.note_start_failed,
                        attempt=each.attempt,
                        word=each.word,
                        message=each.message,
                        chance=self._chance,
                        now=now,
                    ),
                )
        return sum(not each.gone for _, each in outcomes)

    async def _tell(self, outcomes: Sequence[tuple[Job, Outcome]]) -> None:
        """Say at jobs why they are not taken on yet, once for each reason."""
        why = {}
        for job, each in outcomes:
            told = self._told.setdefault(each.attempt.cluster_id, {})
            if each.delay and told.get(each.attempt.id) != each.delay:
                why[job.id] = told[each.attempt.id] = each.delay
        if why:
            await self._database.write(
                "jobs.note_starts_delayed", partial(jobs.note_starts_delayed, why=why)
            )

    async def _start(self, job: Job, attempt: Attempt, plan: AttemptPlan) -> Outcome:
        backend = self._backends.find(attempt.cluster_id)
        if backend is None:
            return Outcome(attempt, gone=True)  # served by another process, or not just now
        try:
            values = await self._reveal(job)
            failpoint("dispatcher.ensure:before")
            with self._tracing.span(
                "job start", job.traceparent, job_id=str(job.id), attempt=attempt.number
            ) as traceparent:
                if traceparent is not None:
                    plan.env["TRACEPARENT"] = traceparent
                await backend.ensure_workload(plan, values)
            failpoint("dispatcher.ensure:after")
        except (StaleEpoch, Tombstoned) as error:
            log.info("attempt %s will not start: %s", attempt.id, error.message)
            return Outcome(attempt, gone=True)
        except Unavailable as error:
            log.warning("attempt %s cannot be started just now: %s", attempt.id, error.message)
            # Its turn comes again; monitors bound the wait.
            why = "" if error.word == STARTING else error.message[:MAX_TOLD_CHARS]
            return Outcome(attempt, gone=True, delay=why)
        except BackendError as error:
            return Outcome(attempt, error.word or str(Word.START_FAILED), error.message)
        return Outcome(attempt)

    async def _reveal(self, job: Job) -> dict[str, str]:
        """Return the secret values of a job by environment name; each access is audited.

        Raises:
            BackendError: If a secret that the job names is gone.
        """
        references = job.spec.execution.secrets
        if not references:
            return {}
        now = self._clock.now_ms()
        try:
            revealed = await self._database.write(
                "secrets.reveal",
                lambda s: secrets.reveal_for_job(
                    s, self._keys, job.id, job.project_id, [r.name for r in references],
                    self.name, now,
                ),
            )  # fmt: skip
        except ProductError as error:
            raise BackendError(str(Word.START_FAILED), error.detail) from error
        return {r.env or r.name: revealed[r.name].value for r in references}

    async def _evict(self, attempts: Sequence[Attempt]) -> int:
        sent: list[Attempt] = []
        for attempt in attempts:
            backend = self._backends.find(attempt.cluster_id)
            if backend is None:
                continue
            ref = AttemptRef(attempt.id, attempt.epoch)
            try:
                failpoint("dispatcher.evict:before")
                await backend.evict(ref, attempt.grace_s, attempt.stop_reason)
                failpoint("dispatcher.evict:after")
                if await self._scaler.end_unstarted(attempt, backend):
                    continue
            except BackendError as error:
                log.warning("attempt %s cannot be stopped just now: %s", attempt.id, error.message)
                continue
            sent.append(attempt)
        now = self._clock.now_ms()
        if sent:
            await self._database.write(
                "jobs.note_evict_sent", lambda s: jobs.note_evict_sent(s, sent, now)
            )
        await self._end_never_started([each for each in sent if each.ensured_at is None], now)
        return len(sent)

    async def _end_never_started(self, sent: Sequence[Attempt], now: int) -> None:
        """End attempts that their backend does not know: the tombstone forbids a late start."""
        by_cluster: dict[object, list[Attempt]] = {}
        for attempt in sent:
            by_cluster.setdefault(attempt.cluster_id, []).append(attempt)
        for attempts in by_cluster.values():
            backend = self._backends.find(attempts[0].cluster_id)
            if backend is None:
                continue
            try:
                known = await known_attempts(backend)
            except Unavailable as error:
                # What it has not heard of lately may run: the observer sees the tombstones.
                log.warning("cluster %s cannot be asked: %s", attempts[0].cluster_id, error.message)
                continue
            for attempt in attempts:
                if attempt.id not in known:
                    await self._database.write(
                        "jobs.end_never_started",
                        partial(
                            jobs.end_never_started,
                            attempt_id=attempt.id,
                            chance=self._chance,
                            now=now,
                        ),
                    )


@dataclass(frozen=True, slots=True)
class _ToDo:
    """What of a batch is one cluster's."""

    to_evict: Sequence[Attempt]
    waiting: Sequence[Attempt]
    to_scale: Sequence[Attempt]
    is_full: bool
    """Whether the batch took as many as it may, so that more may be left."""


def _list_to_do(session: ReadSession, *served: ClusterId) -> dict[ClusterId, _ToDo]:
    """Return what is to be stopped and started, by cluster."""
    to_evict = jobs.list_to_evict(session, served, BATCH)
    waiting = jobs.list_to_ensure(session, served, BATCH)
    to_scale = jobs.list_to_scale(session, served, BATCH)
    is_full = BATCH in (len(to_evict), len(waiting), len(to_scale))
    ids = {each.cluster_id for each in (*to_evict, *waiting, *to_scale)}
    return {
        cluster_id: _ToDo(
            [each for each in to_evict if each.cluster_id == cluster_id],
            [each for each in waiting if each.cluster_id == cluster_id],
            [each for each in to_scale if each.cluster_id == cluster_id],
            is_full,
        )
        for cluster_id in ids
    }


def _list_to_release(session: ReadSession, *served: ClusterId) -> dict[ClusterId, list[Attempt]]:
    """Return what managers are to start nothing of any more, by manager."""
    found: dict[ClusterId, list[Attempt]] = {}
    for attempt in jobs.list_to_release(session, served, BATCH):
        if attempt.manager_id is not None:
            found.setdefault(attempt.manager_id, []).append(attempt)
    return found


def _note_ensured(
    session: WriteSession,
    started: Sequence[tuple[Job, Attempt]],
    around: Surroundings,
    now: int,
) -> None:
    jobs.note_ensured(session, [attempt for _, attempt in started], now)
    jobs.store_manifests(session, started, around, now)


async def known_attempts(backend: Backend) -> set[object]:
    """Return the ids of attempts that a backend keeps anything of."""
    seen = await backend.observe()
    return {replica.ref.attempt_id for replica in seen.replicas}
