"""LocalQueues that the cluster has: where they lead is Kueue's, whatever is declared here."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import update

from gpuplane.backends.interface import Phase
from gpuplane.core.ids import TenantId
from gpuplane.core.quota.specs import LocalQueueSpec
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.tables import ClusterRow
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.errors import QueueLeadsElsewhere
from gpuplane.domains.queues.service import Opening
from gpuplane.domains.queues.service.declaring import close_door
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import LOCAL_QUEUE
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.kube.kueue.queues import local_queue_object
from gpuplane.kube.tenancy import namespace_of
from gpuplane.loops.kueue.defaults import ensure_defaults
from tests.integration.jobs.offers import offered, settle, take_in
from tests.integration.jobs.worlds import H100
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.stored import Stored
from tests.integration.kueue.test_services import now_of, pod, serving
from tests.integration.kueue.test_standings import gpus

DOORS = LOCAL_QUEUE.at("v1beta2")
BASE = "/clusters/sim/queues"
TENANT = "default"
SPACE = namespace_of(TENANT)


async def look(kueue: Kueue, client: KubeClient) -> None:
    """Bring the cluster to what is declared, and see what it has then."""
    await ensure_defaults(client, kueue.world.server.database, kueue.world.sim, 5)


async def second_queue(kueue: Kueue) -> None:
    """Declare another ClusterQueue, to which no door leads."""
    body = {"name": "q2", "resourceGroups": gpus(4)}
    await kueue.world.ask("POST", "/clusters/sim/quotas", 201, json=body)


def door(leads_to: str) -> dict[str, Any]:
    return {"tenant": TENANT, "clusterQueue": leads_to}


async def test_a_door_that_the_cluster_has_is_not_led_elsewhere_and_stays_as_it_is(
    kueue: Kueue, client: KubeClient
) -> None:
    await second_queue(kueue)
    await look(kueue, client)
    refused = await kueue.world.ask("PUT", f"{BASE}/main", 409, json=door("q2"))
    assert (refused["code"], refused["field"]) == ("queue_leads_elsewhere", "clusterQueue")
    assert "Kueue does not let a LocalQueue be led elsewhere" in refused["detail"]
    assert f"gpuplane queues rm main --cluster sim --tenant {TENANT}" in refused["fix"]
    shown = (await kueue.world.ask("GET", BASE))["items"]
    assert [(each["clusterQueue"], each["conflict"]) for each in shown] == [("q", None)]
    kept = {**door("q"), "jobTypes": ["batch"]}
    assert (await kueue.world.ask("PUT", f"{BASE}/main", json=kept))["jobTypes"] == ["batch"]


async def test_a_door_may_lead_elsewhere_until_the_cluster_has_it_and_after_it_was_deleted(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    await second_queue(kueue)
    assert (await kueue.world.ask("PUT", f"{BASE}/main", json=door("q2")))["clusterQueue"] == "q2"
    await look(kueue, client)
    await kueue.world.ask("DELETE", f"{BASE}/main?tenant={TENANT}")
    early = await kueue.world.ask("POST", BASE, 409, json={"name": "main", **door("q")})
    assert "once it is gone" in early["fix"]
    await look(kueue, client)
    await kueue.world.ask("POST", BASE, 201, json={"name": "main", **door("q")})
    await look(kueue, client)
    found = stored.get(DOORS, "main", SPACE)
    assert found is not None
    assert found["spec"]["clusterQueue"] == "q"


async def test_onboarding_that_would_lead_a_door_elsewhere_is_refused_before_it_starts(
    kueue: Kueue, client: KubeClient
) -> None:
    await second_queue(kueue)
    await look(kueue, client)
    database = kueue.world.server.database
    real = update(table_of(ClusterRow)).values(kind="kubernetes")
    await database.write("tests.real", lambda s: s.execute(real))
    asked = {"tenant": TENANT, "queues": [{"name": "main", "clusterQueue": "q2"}]}
    refused = await kueue.world.ask("POST", "/clusters/sim/tenants", 409, json=asked)
    assert refused["code"] == "queue_leads_elsewhere"
    step = partial(
        queues.open_queues, cluster_id=kueue.world.sim,
        tenant_id=TenantId(kueue.world.server.admin.tenant_id),
        openings=[Opening("main", "q2")], actor="test", now=9,
    )  # fmt: skip
    with pytest.raises(QueueLeadsElsewhere):
        await database.write("tests.open", step)


async def test_work_goes_by_where_a_door_leads_on_the_cluster_and_not_by_what_is_declared(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    await second_queue(kueue)
    theirs = local_queue_object(LocalQueueSpec("main", TENANT, "q2"), SPACE, ApiVersion.V1BETA2)
    stored.put(DOORS, theirs)
    await look(kueue, client)
    shown = (await kueue.world.ask("GET", BASE))["items"]
    assert [(each["clusterQueue"], each["standing"]) for each in shown] == [("q", "conflict")]
    body = {"name": "planned", "cluster": "sim", "gpu_count": 2, "gpu_type": H100}
    planned = await kueue.world.ask("POST", "/jobs/estimate", 200, json=body)
    assert "ClusterQueue q2" in planned["sentence"]
    offer = await kueue.offer()
    assert (offer.cluster_queue, offer.local_queue) == ("q2", "sim/main")
    told = offer.explanation["sentences"]
    assert "ClusterQueue q2" in str(told)


async def test_what_stands_in_line_again_goes_through_the_door_that_it_went_through_before(
    kueue: Kueue,
) -> None:
    world = kueue.world
    await second_queue(kueue)
    job, offer = await serving(kueue, 0)
    assert offer.local_queue == "sim/main"
    # By its type it would go through this one, which was opened since.
    body = {"name": "later", **door("q2"), "jobTypes": ["service"]}
    await world.ask("POST", BASE, 201, json=body)
    assert await preempt(kueue, offer) == "sim/main"
    _, fresh = await offered(world, job_type="service", name="fresh")
    assert fresh.local_queue == "sim/later"
    await close_main(kueue)
    [again] = [each for each in await offers(kueue) if str(each.job_id) == job["id"]]
    assert (await settle(world, pod(again, 0, started_at=now_of(kueue)))).bound
    await take_in(world, pod(again, 0, started_at=now_of(kueue)))
    assert await preempt(kueue, again) == "sim/later", "the one before is gone"


async def close_main(kueue: Kueue) -> None:
    """Withdraw the door as an offboarding does, whatever goes through it."""
    world = kueue.world
    tenant_id = TenantId(world.server.admin.tenant_id)

    def close(session: WriteSession) -> None:
        cluster = clusters.get_cluster(session, world.sim)
        close_door(session, cluster, "main", tenant_id, "test", 1)

    await world.server.database.write("tests.close", close)


async def offers(kueue: Kueue) -> list[Offer]:
    return await kueue.world.server.database.read(jobs.list_offers)


async def preempt(kueue: Kueue, offer: Offer) -> str:
    """Let Kueue take a service's only replica; return the door of its next offer."""
    gone = {"ended_at": now_of(kueue), "exit_code": 143, "reason": str(Word.PREEMPTED)}
    await take_in(kueue.world, pod(offer, 0, Phase.EXITED, **gone))
    for loop in ("dispatcher", "monitor", "scheduler"):
        await kueue.world.loops[loop].run_once()
    return next(each.local_queue for each in await offers(kueue) if each.job_id == offer.job_id)


async def test_a_door_that_jobs_wait_through_is_not_closed(kueue: Kueue) -> None:
    for _ in range(4):
        await kueue.offer()
    names = sorted(each["name"] for each in (await kueue.world.ask("GET", "/jobs"))["items"])
    refused = await kueue.world.ask("DELETE", f"{BASE}/main?tenant={TENANT}", 409)
    assert refused["code"] == "queue_in_use"
    assert refused["detail"] == (
        "4 jobs hold devices or wait through LocalQueue main of default on sim: "
        f"{', '.join(names[:3])} and 1 more."
    )
    assert "gpuplane cancel" in refused["fix"]
    assert len((await kueue.world.ask("GET", BASE))["items"]) == 1


async def test_a_job_whose_door_nobody_declares_any_more_is_told_to_declare_it(
    kueue: Kueue,
) -> None:
    offer = await kueue.offer()
    assert (await kueue.world.ask("GET", f"/jobs/{offer.job_id}/why"))["fix"].startswith("Wait:")
    await close_main(kueue)
    why = await kueue.world.ask("GET", f"/jobs/{offer.job_id}/why")
    assert why["sentence"] == "LocalQueue main of default is declared on sim no more."
    assert why["fix"] == (
        "Waiting does not help: declare it again, `gpuplane queues set main --cluster sim "
        "--tenant default --leads-to q`, or cancel the job and submit it to another queue."
    )
