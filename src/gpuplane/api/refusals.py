"""Leaves a trace of every refusal for want of rights: who wanted what, once a minute for each."""

import logging
from collections import OrderedDict
from uuid import UUID

from gpuplane.db.database import Database
from gpuplane.domains.events.service import NewEvent, record
from gpuplane.kit.access import Principal
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import Forbidden, ProductError

log = logging.getLogger("gpuplane.api")

REPEATED_AFTER_S = 60.0
"""The same caller refused at the same endpoint leaves no second trace before this."""
REMEMBERED = 10_000


class RefusalTrace:
    """Records refusals as audited events, so that a client in a loop does not fill the trail."""

    def __init__(self, database: Database, clock: Clock) -> None:
        """Make one for an app."""
        self._database = database
        self._clock = clock
        self._seen: OrderedDict[tuple[UUID, str], float] = OrderedDict()

    async def note(self, principal: Principal, endpoint: str, refusal: Forbidden) -> None:
        """Record a refusal unless it was just recorded; never stands in the answer's way.

        Args:
            principal: Who was refused.
            endpoint: Method and path of the route, such as `DELETE /api/v1/jobs/{job_id}`.
            refusal: Why.
        """
        name, now = (principal.user_id, endpoint), self._clock.monotonic()
        if now - self._seen.get(name, float("-inf")) < REPEATED_AFTER_S:
            return
        self._seen[name] = now
        self._seen.move_to_end(name)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        event = NewEvent(
            kind="access.refused",
            at=self._clock.now_ms(),
            subject_kind="endpoint",
            subject_id=endpoint[:120],
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            actor=principal.name,
            reason="Forbidden",
            message=refusal.detail,
            audit=True,
        )
        try:
            await self._database.write("events.note_refusal", lambda s: record(s, event))
        except ProductError as error:
            log.warning("a refusal could not be recorded: %s", error.detail)
