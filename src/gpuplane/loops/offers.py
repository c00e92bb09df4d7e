"""Carries offers to backends and takes them back: the dispatcher's part for clusters that admit.

What is done towards a backend is done outside any transaction and is idempotent, as with attempts.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpuplane.backends.capabilities import Dispatches
from gpuplane.backends.interface import (
    NOT_ADMITTING,
    NOT_DISPATCHING,
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
from gpuplane.domains.jobs.service import Job, Offer, Surroundings
from gpuplane.kit.clock import Clock
from gpuplane.kit.failpoints import failpoint

log = logging.getLogger("gpuplane.offers")

BATCH = 200
"""Offers carried in one turn: each is a few calls to an API server."""
WITHDRAW_REASON = "Withdrawn"
Ask = Callable[[AttemptPlan, dict[str, str]], Awaitable[None]]
NoteDropped = Callable[[WriteSession, Sequence[AttemptId], int], object]
MAX_TOLD_CHARS = 800
"""Of the cluster's sentence: the name of a webhook and why it does not answer, not its body."""


@dataclass(frozen=True, slots=True)
class OffersToDo:
    """What one cluster is to be told of offers."""

    backend: Backend
    to_evict: Sequence[Offer] = ()
    waiting: Sequence[Offer] = ()
    to_take: Sequence[Offer] = ()
    """Those that were dispatched to it."""
    to_let_go: Sequence[Offer] = ()
    """Of those, what is to be taken back."""


class Offers:
    """Carries offers to backends and takes void ones back; driven by the dispatcher."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        around: Callable[[], Surroundings],
        chance: Callable[[], float],
        reveal: Callable[[Job], Awaitable[dict[str, str]]],
    ) -> None:
        """Make it of the dispatcher's parts; `reveal` gives the secret values of a job."""
        self._database = database
        self._clock = clock
        self._around = around
        self._chance = chance
        self._reveal = reveal
        self._told: dict[ClusterId, dict[AttemptId, str]] = {}
        self._void = Question(database, jobs.has_void_offers)
        self._to_do = Question(database, _list_to_do)

    async def list_to_do(self, served: Mapping[ClusterId, Backend]) -> dict[ClusterId, OffersToDo]:
        """Take back what is void, and return what each cluster is to be told; none of nothing."""
        if await self._void.ask():
            await self._database.write(
                "jobs.withdraw_void_offers", lambda s: jobs.withdraw_void_offers(s, BATCH)
            )
        listed = await self._to_do.ask(*served)
        return {key: OffersToDo(served[key], *each) for key, each in listed.items() if any(each)}

    async def serve(self, to_do: OffersToDo) -> bool:
        """Carry what one cluster is to know; True when something was done and more may be left.

        One that is out of reach is asked once a turn, and its jobs say so.
        """
        try:
            evicted = await self._drop(
                to_do.backend, to_do.to_evict, "jobs.note_offers_evicted", jobs.note_offers_evicted
            )
            evicted += await self._drop(
                to_do.backend, to_do.to_let_go, "jobs.note_workers_told", jobs.note_workers_told
            )
            await self._take(to_do.backend, to_do.to_take)
            taken = await self._ensure(to_do.backend, to_do.waiting) if to_do.waiting else 0
        except Unavailable as error:
            log.warning("offers are not carried just now: %s", error.message)
            await self._tell(to_do.waiting, error.message[:MAX_TOLD_CHARS])
            return False
        is_full = BATCH in (len(to_do.to_evict), len(to_do.waiting), len(to_do.to_let_go))
        return is_full and bool(evicted or taken)

    async def _tell(self, waiting: Sequence[Offer], why: str) -> None:
        """Say at jobs of one cluster why they are not handed over yet, once for each reason."""
        for cluster_id in {each.cluster_id for each in waiting}:
            told = self._told.get(cluster_id, {})
            untold = [each.attempt_id for each in waiting if told.get(each.attempt_id) != why]
            if untold:
                await self._database.write(
                    "jobs.note_offers_delayed", partial(_note_delayed, attempt_ids=untold, why=why)
                )
            self._told[cluster_id] = {each.attempt_id: why for each in waiting}

    async def _ensure(self, backend: Backend, waiting: Sequence[Offer]) -> int:
        around = self._around()
        plans = await self._database.read(lambda s: jobs.load_offer_plans(s, waiting, around))
        done: list[AttemptId] = []
        try:
            for job, offer, plan in plans:
                try:
                    is_taken = await self._start(backend.ensure_workload, job, offer, plan)
                except Unavailable as error:
                    if error.word == STARTING:
                        continue  # Helm is at it; others need not wait for it
                    if error.word not in (NOT_DISPATCHING, NOT_ADMITTING):
                        raise
                    await self._tell([offer], error.message[:MAX_TOLD_CHARS])
                    continue
                if is_taken:
                    done.append(offer.attempt_id)
        finally:
            if done:
                now = self._clock.now_ms()
                await self._database.write(
                    "jobs.note_offers_ensured", lambda s: jobs.note_offers_ensured(s, done, now)
                )
        return len(done)

    async def _take(self, backend: Backend, to_take: Sequence[Offer]) -> None:
        """Have a worker keep records of what was dispatched to it: its Kueue holds it until then.

        One that has not arrived there yet keeps no other waiting.
        """
        if not to_take or not isinstance(backend, Dispatches):
            return
        around = self._around()
        plans = await self._database.read(lambda s: jobs.load_offer_plans(s, to_take, around))
        for job, offer, plan in plans:
            try:
                is_taken = await self._start(backend.take_dispatched, job, offer, plan)
            except Unavailable as error:
                log.info("offer %s is not taken just now: %s", offer.attempt_id, error.message)
                continue
            if is_taken:
                ids, now = [offer.attempt_id], self._clock.now_ms()
                await self._database.write(
                    "jobs.note_offers_taken",
                    partial(jobs.note_offers_taken, attempt_ids=ids, now=now),
                )

    async def _start(self, ask: Ask, job: Job, offer: Offer, plan: AttemptPlan) -> bool:
        """Offer one job by a verb of a backend; True when it was taken on.

        Raises:
            Unavailable: If that is not known; the offer stays, and its turn comes again.
        """
        try:
            values = await self._reveal(job)
            failpoint("offers.ensure:before")
            await ask(plan, values)
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

    async def _drop(
        self, backend: Backend, offers: Sequence[Offer], unit: str, note: NoteDropped
    ) -> int:
        """Have a backend drop offers, and note those that it was asked to; return how many.

        What was asked is noted whatever comes after it.
        """
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
                await self._database.write(unit, lambda s: note(s, sent, now))
        return len(sent)


def _note_delayed(session: WriteSession, attempt_ids: Sequence[AttemptId], why: str) -> None:
    for attempt_id in attempt_ids:
        jobs.note_admission(
            session,
            attempt_id,
            reason=str(Word.NOT_HANDED_OVER),
            message=why,
            admitted_at=None,
            usage_of={},
            cluster_queue="",
        )


def _list_to_do(
    session: ReadSession, *cluster_ids: ClusterId
) -> dict[ClusterId, tuple[list[Offer], ...]]:
    """Return what each cluster is to be told: offers to be taken back, and new ones."""
    return {
        each: (
            jobs.list_offers_to_evict(session, each, BATCH),
            jobs.list_offers_to_ensure(session, each, BATCH),
            jobs.list_offers_to_take(session, each, BATCH),
            jobs.list_offers_to_let_go(session, each, BATCH),
        )
        for each in cluster_ids
    }
