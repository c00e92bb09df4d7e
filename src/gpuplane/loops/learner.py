"""The learner: what attempts that are over teach about those to come."""

from functools import partial

from gpuplane.db.database import Database
from gpuplane.db.leases import LeaseKeeper, is_current
from gpuplane.db.questions import Question
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.jobs import service as jobs
from gpuplane.kit.clock import Clock


class LearnerLoop:
    """Learns from ended attempts, a batch at a time; one process does, so that sums add up."""

    name = "learner"

    def __init__(
        self, database: Database, clock: Clock, leases: LeaseKeeper, period_s: float = 10.0
    ) -> None:
        """Make the loop.

        Args:
            database: Where attempts and what they taught are kept.
            clock: The time.
            leases: Only who holds the learner's lease learns; its token fences each batch.
            period_s: How often it looks without being woken.
        """
        self.period_s = period_s
        self._database = database
        self._clock = clock
        self._leases = leases
        self._unlearned = Question(database, jobs.has_unlearned)

    async def run_once(self) -> bool:
        """Learn from one batch; True when more attempts wait."""
        if not await self._unlearned.ask():
            return False
        lease = await self._leases.hold(self.name)
        if lease is None:
            return False
        count = await self._database.write(
            "jobs.learn", partial(_learn, token=lease.token, now=self._clock.now_ms())
        )
        return count >= jobs.LEARN_BATCH


def _learn(session: WriteSession, token: int, now: int) -> int:
    if not is_current(session, LearnerLoop.name, token):
        return 0
    return jobs.learn(session, jobs.LEARN_BATCH, now)
