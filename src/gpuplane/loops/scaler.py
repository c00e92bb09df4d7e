"""What the dispatcher tells backends of services that grow and shrink: which replicas there are.

Owns the calls and what is stored of them; never which replicas there are to be. Every call names
all replicas and the number of the change, so that it may be repeated, and an old one does nothing.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from gpuplane.backends.capabilities import Scales
from gpuplane.backends.interface import Backend, BackendError, StaleEpoch, Tombstoned, Unavailable
from gpuplane.core.reasons import Word
from gpuplane.db.database import Database
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Attempt, Job, Surroundings
from gpuplane.kit.clock import Clock
from gpuplane.kit.failpoints import failpoint
from gpuplane.loops.ports import Backends

log = logging.getLogger("gpuplane.dispatcher")


class Scaler:
    """Tells backends which replicas the services of their clusters have."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        backends: Backends,
        around: Callable[[], Surroundings],
        chance: Callable[[], float],
        reveal: Callable[[Job], Awaitable[dict[str, str]]],
    ) -> None:
        """Do nothing yet; `reveal` gives the secret values of a job by environment name."""
        self._database = database
        self._clock = clock
        self._backends = backends
        self._around = around
        self._chance = chance
        self._reveal = reveal

    async def tell(self, attempts: Sequence[Attempt]) -> int:
        """Tell backends which replicas these attempts have; return how many took it on."""
        around = self._around()
        plans = await self._database.read(lambda s: jobs.load_scale_plans(s, attempts, around))
        told: list[Attempt] = []
        for job, attempt, plan in plans:
            backend = self._backends.find(attempt.cluster_id)
            scales: object = backend
            if backend is None or not isinstance(scales, Scales):
                continue  # served by another process, or not just now
            try:
                values = await self._reveal(job)
                failpoint("dispatcher.scale:before")
                await scales.scale(plan, values, attempt.grace_s)
                failpoint("dispatcher.scale:after")
                await self.end_unstarted(attempt, backend)
            except (StaleEpoch, Tombstoned) as error:
                log.info("attempt %s is scaled no more: %s", attempt.id, error.message)
                continue
            except Unavailable as error:
                log.warning("attempt %s cannot be scaled just now: %s", attempt.id, error.message)
                continue
            except BackendError as error:
                await self._fail(attempt, error)
                continue
            told.append(attempt)
        if told:
            await self._database.write(
                "jobs.note_scale_told", partial(jobs.note_scale_told, told=told)
            )
        return len(told)

    async def end_unstarted(self, attempt: Attempt, backend: Backend) -> bool:
        """End replicas that were asked to go before their backend knew them.

        What it was told last forbids that they start: an eviction, or a scale without them.

        Returns:
            Whether that was the end of an evicted attempt, because nothing else of it is left.

        Raises:
            Unavailable: If the backend cannot say now what it knows.
        """
        if attempt.replicas_wanted is None:
            return False
        stops = attempt.state == "stopping"
        unseen = [r for r in attempt.replicas if r.phase == "pending" and (stops or r.leaving_at)]
        if not unseen and (attempt.replicas or not stops):
            return False
        seen = await backend.observe()
        known = frozenset(r.rank for r in seen.replicas if r.ref.attempt_id == attempt.id)
        if attempt.ensured_at is None and not known:
            return False  # it may never have been started; where it was, we died before noting it
        return await self._database.write(
            "jobs.end_unstarted",
            partial(
                jobs.end_unstarted,
                attempt_id=attempt.id,
                known=known,
                chance=self._chance,
                now=self._clock.now_ms(),
            ),
        )

    async def _fail(self, attempt: Attempt, error: BackendError) -> None:
        """Have an attempt stopped whose replicas cannot be had: it is tried again as a whole."""
        await self._database.write(
            "jobs.note_scale_failed",
            partial(
                jobs.note_scale_failed,
                attempt_id=attempt.id,
                word=error.word or str(Word.START_FAILED),
                message=error.message,
                now=self._clock.now_ms(),
            ),
        )
