"""What is held in a Kueue by its time window or its budget: by our check, and let go by it."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import update

from gpuplane.db.sessions import WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from gpuplane.domains.jobs.tables import JobRow
from gpuplane.kit.clock import instant_to_text
from gpuplane.loops.kueue.holding import MAX_RETRY_S
from tests.integration.jobs.worlds import H100
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.stored import Stored
from tests.integration.kueue.test_loop import WORKLOADS, reserved

DAY_S = 86_400


async def offered(kueue: Kueue, **fields: Any) -> Offer:
    """Submit a job with these fields and return its offer."""
    job = await kueue.world.submit(gpu_count=1, gpu_type=H100, **fields)
    await kueue.world.loops["scheduler"].run_once()
    offers = await kueue.world.server.database.read(jobs.list_offers)
    return next(each for each in offers if str(each.job_id) == job["id"])


async def told(kueue: Kueue, stored: Stored, name: str) -> dict[str, Any]:
    """Return our check on a Workload after the loop has looked."""
    await kueue.loop.run_once()
    found = stored.get(WORKLOADS, name, "space")
    assert found is not None
    check: dict[str, Any] = found["status"]["admissionChecks"][0]
    return check


async def test_a_job_is_held_while_its_window_is_closed_and_let_go_when_it_opens(
    kueue: Kueue, stored: Stored
) -> None:
    clock = kueue.world.server.clock
    clock.advance((60_000 - clock.now_ms() % 60_000) / 1000)
    window = {
        "start": instant_to_text(clock.now_ms())[11:16],
        "end": instant_to_text(clock.now_ms() + 600_000)[11:16],
        "zone": "UTC",
    }
    offer = await offered(kueue, window=window)
    reserved(stored, "one", offer.attempt_id, str(kueue.world.sim))
    clock.advance(700)
    held = await told(kueue, stored, "one")
    assert (held["state"], held["message"]) == ("Retry", "Its time window is closed.")
    assert held["requeueAfterSeconds"] == min(DAY_S - 700 + 1, MAX_RETRY_S)
    clock.advance(DAY_S - 700)
    assert (await told(kueue, stored, "one"))["state"] == "Ready"


async def spend(kueue: Kueue, job_id: UUID, micro: int) -> None:
    """Let a job have cost so much before."""
    rows = table_of(JobRow)

    def unit(session: WriteSession, of: UUID) -> None:
        session.execute(update(rows).where(rows.c.id == of).values(actual_cost_micro=micro))

    await kueue.world.server.database.write("tests.spend", partial(unit, of=job_id))


@pytest.mark.parametrize(
    ("action", "spent_micro", "state"),
    [
        ("pause", 2_000_000, "Retry"),
        ("cancel", 2_500_000, "Retry"),
        ("pause", 1_999_999, "Ready"),
        ("warn", 2_000_000, "Ready"),
    ],
)
async def test_a_job_that_has_spent_its_budget_is_held_unless_it_only_warns(
    kueue: Kueue, stored: Stored, action: str, spent_micro: int, state: str
) -> None:
    offer = await offered(kueue, budget_limit="2.00", budget_action=action)
    reserved(stored, "one", offer.attempt_id, str(kueue.world.sim))
    await spend(kueue, offer.job_id, spent_micro)
    found = await told(kueue, stored, "one")
    assert found["state"] == state
    assert ("It has spent its budget." in found["message"]) is (state == "Retry")
