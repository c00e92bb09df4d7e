"""Carries offers to backends and takes them back: the dispatcher's part for clusters that admit.

What is done towards a backend is done outside any transaction and is idempotent, as with attempts.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from gpuplane.backends.interface import (
    AttemptPlan,
    AttemptRef,
    BackendError,
    StaleEpoch,
    Tombstoned,
    Unavailable,
)
from gpuplane.core.ids import AttemptId
from gpuplane.core.reasons import Word
from gpuplane.db.database import Database
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Job, Offer, Surroundings
from gpuplane.kit.clock import Clock
from gpuplane.kit.failpoints import failpoint
from gpuplane.loops.ports import Backends

log = logging.getLogger("gpuplane.offers")

BATCH = 200
"""Offers carried in one turn: each is a few calls to an API server."""
WITHDRAW_REASON = "Withdrawn"


class Offers:
    """Carries offers to backends and takes void ones back; driven by the dispatcher."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        backends: Backends,
        around: Callable[[], Surroundings],
        chance: Callable[[], float],
        reveal: Callable[[Job], Awaitable[dict[str, str]]],
    ) -> None:
        """Make it of the dispatcher's parts; `reveal` gives the secret values of a job."""
        self._database = database
        self._clock = clock
        self._backends = backends
        self._around = around
        self._chance = chance
        self._reveal = reveal

    async def run_once(self) -> bool:
        """Take back what is void and carry what is new; True when there may be more."""
        if await self._database.read(jobs.has_void_offers):
            await self._database.write(
                "jobs.withdraw_void_offers", lambda s: jobs.withdraw_void_offers(s, BATCH)
            )
        to_evict = await self._database.read(lambda s: jobs.list_offers_to_evict(s, BATCH))
        if to_evict:
            await self._evict(to_evict)
        waiting = await self._database.read(lambda s: jobs.list_offers_to_ensure(s, BATCH))
        if waiting:
            await self._ensure(waiting)
        return len(waiting) == BATCH or len(to_evict) == BATCH

    async def _ensure(self, waiting: Sequence[Offer]) -> None:
        around = self._around()
        plans = await self._database.read(lambda s: jobs.load_offer_plans(s, waiting, around))
        done: list[AttemptId] = []
        for job, offer, plan in plans:
            if await self._start(job, offer, plan):
                done.append(offer.attempt_id)
        if done:
            now = self._clock.now_ms()
            await self._database.write(
                "jobs.note_offers_ensured", lambda s: jobs.note_offers_ensured(s, done, now)
            )

    async def _start(self, job: Job, offer: Offer, plan: AttemptPlan) -> bool:
        backend = self._backends.find(offer.cluster_id)
        if backend is None:
            return False  # served by another process, or not just now
        try:
            values = await self._reveal(job)
            failpoint("offers.ensure:before")
            await backend.ensure_workload(plan, values)
            failpoint("offers.ensure:after")
        except (StaleEpoch, Tombstoned) as error:
            log.info("offer %s will not start: %s", offer.attempt_id, error.message)
            return False
        except Unavailable as error:
            log.warning("offer %s cannot be started just now: %s", offer.attempt_id, error.message)
            return False  # it may have been taken on: the offer stays, and its turn comes again
        except BackendError as error:
            await self._database.write(
                "jobs.note_offer_failed",
                partial(
                    jobs.note_offer_failed,
                    attempt_id=offer.attempt_id,
                    word=error.word or str(Word.START_FAILED),
                    message=error.message,
                    chance=self._chance,
                    now=self._clock.now_ms(),
                ),
            )
            return False
        return True

    async def _evict(self, offers: Sequence[Offer]) -> None:
        sent: list[Offer] = []
        for offer in offers:
            backend = self._backends.find(offer.cluster_id)
            if backend is None:
                continue
            try:
                failpoint("offers.evict:before")
                await backend.evict(AttemptRef(offer.attempt_id, offer.number), 0, WITHDRAW_REASON)
                failpoint("offers.evict:after")
            except BackendError as error:
                log.warning("offer %s stays just now: %s", offer.attempt_id, error.message)
                continue
            sent.append(offer)
        if not sent:
            return
        now = self._clock.now_ms()
        ids = [each.attempt_id for each in sent]
        await self._database.write(
            "jobs.note_offers_evicted", lambda s: jobs.note_offers_evicted(s, ids, now)
        )
