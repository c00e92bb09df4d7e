"""A service of several replicas is not handed to Kueue, where it could never become an attempt."""

from __future__ import annotations

from typing import Any

from gpuplane.domains.jobs import service as jobs
from tests.integration.jobs.worlds import H100
from tests.integration.kueue.conftest import Kueue


async def test_a_service_of_several_replicas_is_not_handed_over_and_one_of_one_is(
    kueue: Kueue,
) -> None:
    world = kueue.world
    asked: dict[str, Any] = {"job_type": "service", "gpu_count": 1, "gpu_type": H100}
    many = await world.submit(**asked, replicas={"count": 2})
    one = await world.submit(**asked)
    await world.loops["scheduler"].run_once()
    offers = await world.server.database.read(jobs.list_offers)
    assert [str(each.job_id) for each in offers] == [one["id"]]
    told = await world.job(many["id"])
    assert (told["status"], told["reason"]) == ("queued", "GangIncomplete")
    assert "where Kueue admits, a service has one replica" in told["status_message"]
