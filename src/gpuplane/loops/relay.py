"""Gives committed events their place in the stream, and wakes whoever follows it."""

from collections.abc import Callable

from gpuplane.db.database import Database
from gpuplane.db.leases import LeaseKeeper
from gpuplane.db.questions import Question
from gpuplane.domains.events import service


class RelayLoop:
    """One leased relay: positions in the order in which events are seen to be committed."""

    name = service.RELAY
    period_s = 2.0
    """How late an event of another process can be; those of this process wake the loop."""

    def __init__(
        self, database: Database, leases: LeaseKeeper, publish: Callable[[], None]
    ) -> None:
        """Make the loop.

        Args:
            database: Where events lie.
            leases: Let one process relay; were it two, they would take turns at the counter.
            publish: Called after positions were given, on the event loop.
        """
        self._database = database
        self._leases = leases
        self._publish = publish
        self._waiting = Question(database, service.has_unrelayed)

    async def run_once(self) -> bool:
        """Give one batch of positions; True when more events wait."""
        if not await self._waiting.ask():
            return False
        if await self._leases.hold(self.name) is None:
            return False
        count = await self._database.write("events.relay", service.relay)
        if count:
            self._publish()
        return count >= service.RELAY_BATCH
