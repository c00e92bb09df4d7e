"""The observer: takes in what backends see of attempts, by event and by period.

A watcher task per backend waits for changes and wakes the loop; the loop itself takes no input.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from gpuplane.backends.capabilities import ObservesChanges
from gpuplane.backends.interface import AttemptRef, Backend, Phase, ReplicaObservation, Unavailable
from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.reasons import Word
from gpuplane.db.database import Database
from gpuplane.db.questions import Question
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Attempt, Offer
from gpuplane.kit.clock import Clock
from gpuplane.kit.tasks import end_tasks
from gpuplane.loops.looks import Looks
from gpuplane.loops.ports import Backends
from gpuplane.loops.releases import Ends

log = logging.getLogger("gpuplane.observer")

BATCH = 200
"""Observations taken in by one unit: bounds how long it holds the writer."""
WATCH_S = 60.0
"""How long a backend is waited for before it is asked anew. The loop looks by its own period, so
that a shorter wait would only wake it once more for every backend where nothing changes."""
WATCH_AGAIN_S = 5.0
"""How soon a backend is watched again that could not be."""
LOOK_S = 10.0
"""How long a turn waits for clusters; one that takes longer goes on without the turn."""
LOST_AFTER_MS = 15_000
"""An ensured attempt that its backend does not know is lost after this: it was forgotten."""
UNSEEN = "Its cluster does not show it: it is taken back before it is offered again."


class ObserverLoop:
    """Moves attempts on by what is seen of them."""

    name = "observer"

    def __init__(
        self,
        database: Database,
        clock: Clock,
        backends: Backends,
        seal: Callable[[str], bytes],
        chance: Callable[[], float],
        wake: Callable[[], None],
        period_s: float = 5.0,
        wake_inventory: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the loop.

        Args:
            database: Where attempts are kept.
            clock: The time.
            backends: Who runs them.
            seal: Seals a sensitive output.
            chance: Gives a number in [-1, 1] for the jitter of retries.
            wake: Wakes this loop; called by the watchers.
            period_s: How often it looks without being woken.
            wake_inventory: Wakes the loop that takes in nodes and GPUs, when they changed.
        """
        self.period_s = period_s
        self._database = database
        self._clock = clock
        self._backends = backends
        self._seal = seal
        self._chance = chance
        self._wake = wake
        self._wake_inventory = wake_inventory
        self._looks = Looks("observe")
        self._offers = Question(database, jobs.list_offers)
        self._ends = Ends(database, clock, backends.find)
        self._again: dict[ClusterId, set[AttemptId]] = {}
        self._cursors: dict[ClusterId, str] = {}
        self._generations: dict[ClusterId, int] = {}
        self._unsettled: dict[ClusterId, set[AttemptId]] = {}
        self._watchers: dict[ClusterId, asyncio.Task[None]] = {}
        self._watched: dict[ClusterId, Backend] = {}

    async def run_once(self) -> bool:
        """Take in what every backend sees."""
        works = {}
        for cluster_id, backend in self._backends.items():
            self._watch(cluster_id, backend)
            works[cluster_id] = partial(self._take_in_or_tell, cluster_id, backend)
        self._forget_gone(works.keys())
        await self._looks.run(works, LOOK_S)
        return False

    async def stop(self) -> None:
        """End the watchers and looks under way."""
        await self._looks.stop()
        await end_tasks(self._watchers.values())
        self._watchers.clear()
        self._watched.clear()

    def _watch(self, cluster_id: ClusterId, backend: Backend) -> None:
        """Have the backend of a cluster watched; another one in its place is watched instead."""
        known = self._watched.get(cluster_id)
        if known is backend:
            return
        if known is not None:
            self._watchers.pop(cluster_id).cancel()
        self._watched[cluster_id] = backend
        self._watchers[cluster_id] = asyncio.create_task(
            self._wait_for_changes(backend), name=f"watch:{cluster_id}"
        )

    def _forget_gone(self, alive: Collection[ClusterId]) -> None:
        for cluster_id in [each for each in self._watched if each not in alive]:
            del self._watched[cluster_id]
            self._watchers.pop(cluster_id).cancel()

    async def _wait_for_changes(self, backend: Backend) -> None:
        while True:
            try:
                await backend.wait_changed(WATCH_S)
                self._wake()
                await asyncio.sleep(0.005)  # gathers what changes together into one look
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("watching %s failed", backend.kind)
                await asyncio.sleep(WATCH_AGAIN_S)

    async def _take_in_or_tell(self, cluster_id: ClusterId, backend: Backend) -> None:
        """Take in what a backend sees; one that cannot be asked now is asked at the next turn."""
        try:
            await self._take_in(cluster_id, backend)
        except Unavailable as error:
            log.warning("cluster %s cannot be observed: %s", cluster_id, error.message)

    async def _take_in(self, cluster_id: ClusterId, backend: Backend) -> None:
        cursor = self._cursors.get(cluster_id, "")
        if isinstance(backend, ObservesChanges):
            changes = await backend.observe_replicas_since(cursor)
            seen: Sequence[ReplicaObservation] = changes.replicas
            scales = changes.scales
            if self._generations.get(cluster_id, changes.generation) != changes.generation:
                self._wake_inventory()
            self._generations[cluster_id] = changes.generation
        else:
            whole = await backend.observe()
            seen, scales = whole.replicas, whole.scales
        if again := self._again.pop(cluster_id, set()):
            # All that is known of them: what joins a service does so in the order of the ranks.
            replicas = (await backend.observe()).replicas
            others = [each for each in seen if each.ref.attempt_id not in again]
            seen = [*(each for each in replicas if each.ref.attempt_id in again), *others]
        if scales:  # first: what left because fewer are wanted must not be thought to be missing
            await self._database.write(
                "jobs.note_scales",
                partial(jobs.note_scales, seen=scales, now=self._clock.now_ms()),
            )
        seen = await self._settle_offers(cluster_id, backend, seen, is_whole=not cursor)
        seen, self._again[cluster_id] = await self._ends.judge(seen)
        for part in _batches(seen):
            now = self._clock.now_ms()
            await self._database.write(
                "jobs.take_in",
                partial(
                    jobs.take_in,
                    seen=part,
                    seal=self._seal,
                    chance=self._chance,
                    now=now,
                    cluster_id=cluster_id,
                ),
            )
        if any(each.by_pod and each.node_name for each in seen):
            self._again[cluster_id] |= await self._database.read(
                partial(jobs.list_unjoined, seen=seen)
            )
        if isinstance(backend, ObservesChanges):
            self._cursors[cluster_id] = changes.cursor
        if not cursor:
            await self._end_forgotten(cluster_id, seen)

    async def _settle_offers(
        self,
        cluster_id: ClusterId,
        backend: Backend,
        seen: Sequence[ReplicaObservation],
        *,
        is_whole: bool,
    ) -> Sequence[ReplicaObservation]:
        """Make attempts of offers that their cluster has bound; return what is to be taken in.

        An offer is judged by all its replicas, and what changed names only some of them.
        """
        listed = await self._offers.ask(cluster_id)
        # Of what it dispatched, the worker tells.
        offers = [each for each in listed if each.place_id == cluster_id]
        if not offers:
            return seen
        ids = {each.attempt_id for each in offers}
        moved = {each.ref.attempt_id for each in seen} & ids
        again = self._unsettled.pop(cluster_id, set()) & ids
        late = [each for each in offers if self._is_late(each)]
        if not (moved or again or late or is_whole):
            return seen
        whole = seen if is_whole else (await backend.observe()).replicas
        offered, later = await self._ends.judge([e for e in whole if e.ref.attempt_id in ids])
        now = self._clock.now_ms()
        settled = await self._database.write(
            "jobs.settle_offers",
            partial(
                jobs.settle_offers, seen=offered, seal=self._seal, chance=self._chance, now=now
            ),
        )
        early: Sequence[AttemptId] = ()
        if any(each.message for each in offered):
            early = await self._database.write(
                "jobs.note_unplaced", partial(jobs.note_unplaced, seen=offered)
            )
        self._unsettled[cluster_id] = {*settled.refused, *early, *later}
        known = {each.ref.attempt_id for each in offered}
        gone = [each.attempt_id for each in late if each.attempt_id not in known]
        if gone:
            await self._database.write(
                "jobs.withdraw_offers",
                partial(jobs.withdraw_offers, attempt_ids=gone, message=UNSEEN),
            )
        others = [each for each in seen if each.ref.attempt_id not in ids]
        bound = set(settled.bound)
        if any(each.by_pod and each.ref.attempt_id in bound for each in offered):
            # How many are wanted was told while they were no attempts yet.
            scales = (await backend.observe()).scales
            wanted = [each for each in scales if each.ref.attempt_id in bound]
            await self._database.write(
                "jobs.note_scales",
                partial(jobs.note_scales, seen=wanted, now=self._clock.now_ms()),
            )
        return [*others, *(each for each in offered if each.ref.attempt_id in bound)]

    def _is_late(self, offer: Offer) -> bool:
        """Return whether a backend must show an offer by now, or what forbids it."""
        since = offer.shown_since
        return since is not None and self._clock.now_ms() - since > LOST_AFTER_MS

    async def _end_forgotten(
        self, cluster_id: ClusterId, seen: Sequence[ReplicaObservation]
    ) -> None:
        """End ensured attempts that a fresh look at the whole backend does not show."""
        now = self._clock.now_ms()
        known = {observation.ref.attempt_id for observation in seen}
        open_ones = await self._database.read(jobs.list_open)
        lost = [
            attempt
            for attempt in open_ones
            if attempt.cluster_id == cluster_id
            and attempt.ensured_at is not None
            and now - attempt.ensured_at > LOST_AFTER_MS
            and attempt.id not in known
        ]
        gone = [each for attempt in lost for each in _lost(attempt, now)]
        for part in _batches(gone):
            await self._database.write(
                "jobs.take_in",
                partial(jobs.take_in, seen=part, seal=self._seal, chance=self._chance, now=now),
            )


def _batches(seen: Sequence[ReplicaObservation]) -> Iterator[Sequence[ReplicaObservation]]:
    """Yield observations in batches, all replicas of one attempt in the same batch."""
    batch: list[ReplicaObservation] = []
    for observation in seen:
        if len(batch) >= BATCH and observation.ref != batch[-1].ref:
            yield batch
            batch = []
        batch.append(observation)
    if batch:
        yield batch


def _lost(attempt: Attempt, now: int) -> Iterator[ReplicaObservation]:
    for replica in attempt.replicas:
        yield ReplicaObservation(
            ref=AttemptRef(attempt.id, attempt.epoch),
            rank=replica.rank,
            phase=Phase.LOST,
            ended_at=now,
            reason=str(Word.END_NOT_SEEN),
            message="Its cluster keeps nothing of it any more, so how it ended is not known.",
        )
