"""The dispatcher: tells backends to start admitted attempts and to stop stopping ones.

Work towards backends is done outside any transaction and is idempotent; what was done is written
back afterwards, so a crash between the two only repeats it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gpuplane.backends.interface import (
    AttemptPlan,
    AttemptRef,
    Backend,
    BackendError,
    StaleEpoch,
    Tombstoned,
    Unavailable,
)
from gpuplane.core.reasons import Word
from gpuplane.db.database import Database
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Attempt, Job, Surroundings
from gpuplane.domains.secrets import service as secrets
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import ProductError
from gpuplane.kit.failpoints import failpoint
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kit.tracing import Tracing
from gpuplane.loops.offers import Offers
from gpuplane.loops.ports import Backends

log = logging.getLogger("gpuplane.dispatcher")

BATCH = 500
AT_ONCE = 32
"""Attempts that are being started at the same time: bounds open files and backend load."""
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
        """
        self.period_s = period_s
        self._database = database
        self._clock = clock
        self._backends = backends
        self._around = around
        self._chance = chance
        self._keys = keys
        self._tracing = tracing
        self._offers = Offers(database, clock, backends, around, chance, self._reveal)

    async def run_once(self) -> bool:
        """Start and stop one batch; True when something was done and there may be more."""
        served = [cluster_id for cluster_id, _ in self._backends.items()]
        to_evict = await self._database.read(lambda s: jobs.list_to_evict(s, served, BATCH))
        evicted = await self._evict(to_evict) if to_evict else 0
        waiting = await self._database.read(lambda s: jobs.list_to_ensure(s, served, BATCH))
        noted = await self._ensure(waiting) if waiting else 0
        more = await self._offers.run_once()
        is_full = len(waiting) == BATCH or len(to_evict) == BATCH
        return more or (is_full and bool(evicted or noted))

    async def _ensure(self, waiting: Sequence[Attempt]) -> int:
        """Start attempts; return of how many something was stored."""
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
        return noted

    async def _note(self, outcomes: Sequence[tuple[Job, Outcome]], around: Surroundings) -> int:
        """Store what became of starts; return of how many there was something to store."""
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
            return Outcome(attempt, gone=True)  # its turn comes again; monitors bound the wait
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
