"""Tells managers that nothing more of an attempt may start which they dispatched.

The worker alone says how an attempt stands. But its manager holds the Job, and makes the copy on
the worker again if that goes: so a manager hears of every stop, and of every end.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from gpuplane.backends.capabilities import Dispatches
from gpuplane.backends.interface import (
    AttemptRef,
    Backend,
    BackendError,
    Phase,
    ReplicaObservation,
    Unavailable,
)
from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.reasons import Word
from gpuplane.db.database import Database
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Attempt
from gpuplane.kit.clock import Clock
from gpuplane.kit.failpoints import failpoint

log = logging.getLogger("gpuplane.releases")

TELL_MS = 60_000
"""How long a manager may take to tell an end that its worker told already: its Job is kept to be
looked at then, and taken away if it does not say so."""
ASK_S = 5.0
"""How long a manager is waited for before the end of an attempt is judged without it."""
LOST_MS = 15_000
"""How long what vanished on a worker may be what its manager took back or saw end: whoever follows
the manager tells that first."""


async def release(
    database: Database, clock: Clock, backend: Backend, attempts: Sequence[Attempt]
) -> int:
    """Tell one manager of attempts that stop or are over; return how many it was told of."""
    told: list[Attempt] = []
    for attempt in attempts:
        try:
            if await _tell(backend, attempt, clock.now_ms()):
                told.append(attempt)
        except BackendError as error:
            log.warning("attempt %s stays with its manager: %s", attempt.id, error.message)
    if told:
        now = clock.now_ms()
        await database.write(
            "jobs.note_managers_told", lambda s: jobs.note_managers_told(s, told, now)
        )
    return len(told)


async def _tell(backend: Backend, attempt: Attempt, now: int) -> bool:
    ref = AttemptRef(attempt.id, attempt.epoch)
    if attempt.state == "ended" and isinstance(backend, Dispatches):
        if await backend.read_end(ref):
            return True  # its Job says so itself, and stays to be looked at
        by_itself = attempt.exit_code is not None and attempt.stop_intent is None
        if by_itself and now - (attempt.ended_at or now) < TELL_MS:
            return False
    failpoint("releases.evict:before")
    await backend.evict(ref, attempt.grace_s, attempt.stop_reason or str(Word.COMPLETED))
    failpoint("releases.evict:after")
    return True


class Ends:
    """Asks managers how work ended that vanished on its worker."""

    def __init__(
        self, database: Database, clock: Clock, find: Callable[[ClusterId], Backend | None]
    ) -> None:
        """Make it; `find` gives the backend of a cluster."""
        self._database = database
        self._clock = clock
        self._find = find
        self._lost_since: dict[AttemptId, int] = {}

    async def judge(
        self, seen: Sequence[ReplicaObservation]
    ) -> tuple[list[ReplicaObservation], set[AttemptId]]:
        """Return what is to be taken in, and the attempts that are to be looked at again.

        What is lost on a worker may have ended well: Kueue deletes it there as soon as its end is
        told to the manager, and nobody may have looked meanwhile.
        """
        lost = {each.ref.attempt_id for each in seen if each.phase is Phase.LOST}
        if not lost:
            return list(seen), set()
        managers = await self._database.read(lambda s: jobs.load_managers(s, sorted(lost)))
        ends: dict[AttemptId, dict[int, ReplicaObservation]] = {}
        later: set[AttemptId] = set()
        for attempt_id, manager_id in managers.items():
            ref = next(each.ref for each in seen if each.ref.attempt_id == attempt_id)
            told = await self._ask(manager_id, ref)
            if told:
                ends[attempt_id] = {each.rank: each for each in told}
            elif told is None or self._is_fresh(attempt_id):
                later.add(attempt_id)
        kept = [
            _with_end(each, ends.get(each.ref.attempt_id, {}))
            for each in seen
            if each.ref.attempt_id not in later
        ]
        return kept, later

    def _is_fresh(self, attempt_id: AttemptId) -> bool:
        now = self._clock.now_ms()
        self._lost_since = {
            key: at for key, at in self._lost_since.items() if now - at < 10 * LOST_MS
        }
        return now - self._lost_since.setdefault(attempt_id, now) < LOST_MS

    async def _ask(
        self, manager_id: ClusterId, ref: AttemptRef
    ) -> tuple[ReplicaObservation, ...] | None:
        """Return how it ended, nothing while that is not known, None if the manager is away."""
        backend: object = self._find(manager_id)
        if not isinstance(backend, Dispatches):
            return ()
        try:
            async with asyncio.timeout(ASK_S):
                return await backend.read_end(ref)
        except (Unavailable, TimeoutError) as error:
            log.info("the manager of %s does not say how it ended: %s", ref.attempt_id, error)
            return None


def _with_end(seen: ReplicaObservation, ends: dict[int, ReplicaObservation]) -> ReplicaObservation:
    told = ends.get(seen.rank)
    if told is None or seen.phase is not Phase.LOST:
        return seen
    # That a pod went with its node says more than that its Job has failed.
    knows_more = told.phase is Phase.LOST and seen.reason != Word.DELETED
    return seen if knows_more else told
