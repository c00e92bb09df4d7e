"""What vanished on a worker ends by who tells most of it: the worker, or its manager's Job."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from gpuplane.backends.interface import AttemptPlan, AttemptRef, Phase, ReplicaObservation
from gpuplane.core.ids import ClusterId
from gpuplane.core.reasons import Word
from gpuplane.loops.releases import Ends
from tests.integration.jobs.offers import seen, settle
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.test_dispatching import NODE, dispatched, hub

__all__ = ["hub"]


@dataclass
class Manager:
    """A backend of a manager whose Job says one thing of every end."""

    told: ReplicaObservation

    async def take_dispatched(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        raise AssertionError("nothing is dispatched to a manager")

    async def read_end(self, ref: AttemptRef) -> tuple[ReplicaObservation, ...]:
        return (self.told,)


@pytest.mark.parametrize(
    ("word", "phase", "expected"),
    [
        (Word.NODE_LOST, Phase.LOST, Word.NODE_LOST),
        (Word.DELETED, Phase.LOST, Word.END_NOT_SEEN),
        (Word.NODE_LOST, Phase.EXITED, Word.END_NOT_SEEN),
    ],
)
async def test_an_end_is_the_workers_unless_its_manager_knows_more(
    kueue: Kueue, hub: ClusterId, word: Word, phase: Phase, expected: Word
) -> None:
    offer = await dispatched(kueue, hub)
    assert (await settle(kueue.world, seen(offer, NODE))).bound == (offer.attempt_id,)
    lost = seen(offer, NODE, Phase.LOST, reason=str(word), ended_at=9)
    told = replace(lost, phase=phase, reason=str(Word.END_NOT_SEEN))
    server = kueue.world.server
    ends = Ends(server.database, server.clock, {hub: Manager(told)}.get)  # type: ignore[arg-type]  # what is asked of it is all that it has
    [kept], later = await ends.judge([lost])
    assert (kept.reason, later) == (str(expected), set())
