"""Carries offers to backends and takes them back: the dispatcher's part for clusters that admit.

What is done towards a backend is done outside any transaction and is idempotent, as with attempts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
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
from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.reasons import Word
from gpuplane.db.database import Database
from gpuplane.db.sessions import ReadSession
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
        served = dict(self._backends.items())
        to_do = await self._database.read(lambda s: _list_to_do(s, list(served)))
        results = await asyncio.gather(
            *(self._serve(served[key], *each) for key, each in to_do.items()),
            return_exceptions=True,  # what goes wrong with one cluster stops no other
        )
        for each in results:
            if isinstance(each, BaseException):
                raise each
        return any(results)

    async def _serve(
        self, backend: Backend, to_evict: Sequence[Offer], waiting: Sequence[Offer]
    ) -> bool:
        """Carry what one cluster is to know; True when something was done and more may be left.

        One that is out of reach is asked once a turn.
        """
        try:
            evicted = await self._evict(backend, to_evict) if to_evict else 0
            taken = await self._ensure(backend, waiting) if waiting else 0
        except Unavailable as error:
            log.warning("offers are not carried just now: %s", error.message)
            return False
        is_full = len(to_evict) == BATCH or len(waiting) == BATCH
        return is_full and bool(evicted or taken)

    async def _ensure(self, backend: Backend, waiting: Sequence[Offer]) -> int:
        around = self._around()
        plans = await self._database.read(lambda s: jobs.load_offer_plans(s, waiting, around))
        done: list[AttemptId] = []
        try:
            for job, offer, plan in plans:
                if await self._start(backend, job, offer, plan):
                    done.append(offer.attempt_id)
        finally:
            if done:
                now = self._clock.now_ms()
                await self._database.write(
                    "jobs.note_offers_ensured", lambda s: jobs.note_offers_ensured(s, done, now)
                )
        return len(done)

    async def _start(self, backend: Backend, job: Job, offer: Offer, plan: AttemptPlan) -> bool:
        """Offer one job; True when it was taken on.

        Raises:
            Unavailable: If that is not known; the offer stays, and its turn comes again.
        """
        try:
            values = await self._reveal(job)
            failpoint("offers.ensure:before")
            await backend.ensure_workload(plan, values)
            failpoint("offers.ensure:after")
        except (StaleEpoch, Tombstoned) as error:
            log.info("offer %s will not start: %s", offer.attempt_id, error.message)
            return False
        except Unavailable:
            raise
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

    async def _evict(self, backend: Backend, offers: Sequence[Offer]) -> int:
        sent: list[AttemptId] = []
        try:
            for offer in offers:
                try:
                    failpoint("offers.evict:before")
                    ref = AttemptRef(offer.attempt_id, offer.number)
                    await backend.evict(ref, 0, WITHDRAW_REASON)
                    failpoint("offers.evict:after")
                except Unavailable:
                    raise
                except BackendError as error:
                    log.warning("offer %s stays just now: %s", offer.attempt_id, error.message)
                    continue
                sent.append(offer.attempt_id)
        finally:
            if sent:
                now = self._clock.now_ms()
                await self._database.write(
                    "jobs.note_offers_evicted", lambda s: jobs.note_offers_evicted(s, sent, now)
                )
        return len(sent)


def _list_to_do(
    session: ReadSession, cluster_ids: Sequence[ClusterId]
) -> dict[ClusterId, tuple[list[Offer], list[Offer]]]:
    """Return what each cluster is to be told: offers to be taken back, and new ones."""
    return {
        each: (
            jobs.list_offers_to_evict(session, each, BATCH),
            jobs.list_offers_to_ensure(session, each, BATCH),
        )
        for each in cluster_ids
    }
