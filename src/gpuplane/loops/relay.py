"""Gives committed events their place in the stream, and wakes whoever follows it."""

from collections.abc import Callable

from gpuplane.db.database import Database
from gpuplane.db.leases import acquire_lease
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events import service
from gpuplane.kit.clock import Clock

LEASE_MS = 10_000


class RelayLoop:
    """One leased relay: positions in the order in which events are seen to be committed."""

    name = service.RELAY
    period_s = 2.0
    """How late an event of another process can be; those of this process wake the loop."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        owner: str,
        publish: Callable[[], None],
    ) -> None:
        """Make the loop.

        Args:
            database: Where events lie.
            clock: Tells the time of the lease.
            owner: The name of this process, for the lease.
            publish: Called after positions were given, on the event loop.
        """
        self._database = database
        self._clock = clock
        self._owner = owner
        self._publish = publish

    async def run_once(self) -> bool:
        """Give one batch of positions; True when more events wait."""
        if not await self._database.read(service.has_unrelayed):
            return False
        count = await self._database.write("events.relay", self._relay)
        if count:
            self._publish()
        return count >= service.RELAY_BATCH

    def _relay(self, session: WriteSession) -> int:
        now = self._clock.now_ms()
        if acquire_lease(session, self.name, self._owner, now, LEASE_MS) is None:
            return 0
        return service.relay(session)
