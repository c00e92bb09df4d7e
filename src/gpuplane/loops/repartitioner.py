"""The repartitioner: has backends cut GPUs anew, and sees that it was done.

An order is a row (`placements_repartitions`) that the scheduler writes. Work towards backends is
done outside any transaction and is idempotent, so a crash between the two only repeats it.
"""

import logging
from functools import partial

from gpuplane.backends.capabilities import Repartitions
from gpuplane.backends.interface import Backend, BackendError, MigOrder
from gpuplane.db.database import Database
from gpuplane.db.questions import Question
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import Repartition, RepartitionState
from gpuplane.kit.clock import Clock
from gpuplane.loops.ports import Backends

log = logging.getLogger("gpuplane.repartitioner")


class RepartitionerLoop:
    """Moves every order on: to its backend, until the new instances are seen, or given up."""

    name = "repartitioner"

    def __init__(
        self, database: Database, clock: Clock, backends: Backends, period_s: float = 10.0
    ) -> None:
        """Make the loop."""
        self.period_s = period_s
        self._database = database
        self._clock = clock
        self._backends = backends
        self._orders = Question(database, placements.list_repartitions)

    async def run_once(self) -> bool:
        """Look at every order of the clusters of this process."""
        for row in await self._orders.ask():
            backend = self._backends.find(row.cluster_id)
            if backend is not None:
                await self._advance(row, backend)
        return False

    async def _advance(self, row: Repartition, backend: Backend) -> None:
        now = self._clock.now_ms()
        if row.state is RepartitionState.FAILED:
            if now >= row.deadline_at:
                await self._end(row, now)
        elif await self._database.read(lambda session: _is_done(session, row)):
            await self._end(row, now)
        elif now >= row.deadline_at:
            allowed_s = (row.deadline_at - row.asked_at) // 1000
            await self._fail(row, f"the new instances were not seen within {allowed_s} s", now)
        elif row.state is RepartitionState.ASKED:
            await self._send(row, backend, now)

    async def _send(self, row: Repartition, backend: Backend, now: int) -> None:
        if not isinstance(backend, Repartitions):
            await self._fail(row, "this cluster cannot cut GPUs", now)
            return
        order = MigOrder(row.node_name, row.gpu_id, row.destroy, row.create)
        try:
            await backend.repartition(order)
        except BackendError as error:
            await self._fail(row, error.message, now)
        except (OSError, TimeoutError) as error:
            # Asked again at the next turn, until the deadline.
            log.warning("GPU %s cannot be cut now: %s", row.gpu_id, error)
        else:
            await self._database.write(
                "placements.repartition_sent",
                partial(placements.note_repartition_sent, row=row),
            )

    async def _fail(self, row: Repartition, message: str, now: int) -> None:
        def unit(session: WriteSession) -> None:
            placements.fail_repartition(session, row, message, now)
            jobs.end_promise(session, row.job_id, now)

        await self._database.write("placements.repartition_failed", unit)

    async def _end(self, row: Repartition, now: int) -> None:
        await self._database.write(
            "placements.repartition_ended",
            partial(placements.end_repartition, row=row, now=now),
        )


def _is_done(session: ReadSession, row: Repartition) -> bool:
    """Return whether the GPU was seen as it was ordered."""
    if not nodes.has_node(session, row.cluster_id, row.node_name):
        return False
    node = nodes.get_node(session, row.cluster_id, row.node_name)
    return any(
        gpu.gpu_id == row.gpu_id and gpu.present and row.is_done(gpu.mig_instances)
        for gpu in node.gpus
    )
