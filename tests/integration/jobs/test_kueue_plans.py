"""Plans on a cluster that admits by Kueue: who decides is said, and never when."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpuplane.db.sessions import WriteSession
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.service import Seen, SeenKind
from gpuplane.kit.access import Role
from tests.integration.jobs.offers import offered
from tests.integration.jobs.worlds import H100, T4, World


async def see(world: World, *objects: Seen) -> None:
    def note(session: WriteSession) -> None:
        queues.note_seen(session, world.sim, objects, world.server.clock.now_ms())

    await world.server.database.write("tests.seen", note)


def a_queue(used: int = 0, flavor: str = H100, **state: Any) -> Seen:
    group = {
        "coveredResources": ["nvidia.com/gpu"],
        "flavors": [
            {"name": flavor, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 8000}]}
        ],
    }
    told = {
        "flavor": flavor, "resource": "nvidia.com/gpu", "total": used, "totalText": f"{used}m",
        "borrowedText": "0",
    }  # fmt: skip
    told_of = {"active": True, "pending": 2, "admitted": 1, "used": [told], **state}
    return Seen(SeenKind.CLUSTER_QUEUE, "", "q", True, {"resourceGroups": [group]}, told_of)


async def declare(world: World, model: str) -> None:
    """Give the queue its quota for one model alone, here and on its cluster."""
    flavors = [{"name": model, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 8}]}]
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]
    await world.ask("PUT", "/clusters/sim/quotas/q", json={"resourceGroups": groups})
    said = {"reason": "Ready", "message": "", "reserving": 0, "weightedShare": 0}
    await see(world, a_queue(flavor=model, **said))


async def plan(world: World, **fields: Any) -> dict[str, Any]:
    body = {"name": "planned", "cluster": "sim", **fields}
    found: dict[str, Any] = await world.ask("POST", "/jobs/estimate", 200, json=body)
    return found


async def test_a_plan_says_that_kueue_decides_and_gives_no_instant(kueue: World) -> None:
    await see(kueue, a_queue(used=8000))
    found = await plan(kueue, gpu_count=2, gpu_type=H100)
    assert found["fits_now"] is False
    assert (found["earliest_start"], found["expected_end"]) == (None, None)
    assert found["reason"] == "WaitingForAdmission"
    assert "Kueue on sim decides" in found["sentence"]
    assert "2 waiting, 1 admitted" in found["sentence"]
    assert "not enough unused quota" in found["sentence"]
    assert "place is kept" not in str(found)


async def test_a_plan_within_what_is_unused_does_not_speak_of_a_lack(kueue: World) -> None:
    await see(kueue, a_queue(used=6000))
    found = await plan(kueue, gpu_count=2, gpu_type=H100)
    assert "not enough" not in found["sentence"]
    refused = await plan(kueue, gpu_count=4, gpu_type=H100)
    assert "not enough" in refused["sentence"]


async def test_a_job_that_is_not_to_queue_is_refused_by_what_kueue_counts(kueue: World) -> None:
    await see(kueue, a_queue(used=8000))
    asked = {"gpu_count": 1, "gpu_type": H100, "when_exceeded": "refuse"}
    body = {"name": "now", "cluster": "sim", **asked}
    refused = await kueue.ask("POST", "/jobs", 429, json=body)
    assert refused["field"] == "when_exceeded"
    await see(kueue, a_queue(used=0))
    await kueue.ask("POST", "/jobs", 201, json=body)


async def test_an_inactive_queue_is_said_to_be_one(kueue: World) -> None:
    await see(kueue, a_queue(active=False, message="references missing ResourceFlavor(s): x"))
    found = await plan(kueue, gpu_count=1, gpu_type=H100)
    assert "is not active: references missing ResourceFlavor" in found["sentence"]


async def test_a_job_in_a_queue_that_lacks_a_flavor_is_told_to_have_the_queue_mended(
    kueue: World,
) -> None:
    job, _ = await offered(kueue)
    path = f"/jobs/{job['id']}/why"
    dead = {"active": False, "reason": "FlavorNotFound", "message": "references missing flavor"}
    here = Seen(SeenKind.FLAVOR, "", H100, True, {})
    await see(kueue, a_queue(**dead))
    for query in ("", "?change=true"):
        fix = (await kueue.ask("GET", path + query))["fix"]
        assert "gpuplane quotas show q --cluster sim" in fix
        assert f"quotas set q --cluster sim --no-gpu {H100}`" in fix
        assert not fix.startswith("Wait:")
    # Kueue has not looked again yet, and what it lacked is there.
    await see(kueue, a_queue(**dead), here)
    assert (await kueue.ask("GET", path))["fix"].startswith("Wait:")
    await see(kueue, a_queue(active=False, reason="Stopped"))
    assert (await kueue.ask("GET", path))["fix"].startswith("Wait:")


async def test_a_model_that_no_flavor_of_the_queue_has_is_not_waited_for(kueue: World) -> None:
    job = await kueue.submit(name="other", gpu_count=1, gpu_type=T4)
    await kueue.loops["scheduler"].run_once()
    found = await kueue.job(job["id"])
    assert (found["status"], found["reason"]) == ("queued", "NoQuotaForGpuModel")
    assert f"has quota for {H100}, and it asks for {T4}" in found["status_message"]
    why = await kueue.ask("GET", f"/jobs/{job['id']}/why?change=true")
    assert "waiting does not help" in why["sentence"]
    assert f"--gpu {T4}=N" in why["fix"]
    assert "Wait" not in why["fix"]


async def test_a_flavor_of_others_stands_for_the_nodes_with_its_labels(kueue: World) -> None:
    labels = {"gpuplane.io/no-such-label": "x"}
    flavor = Seen(SeenKind.FLAVOR, "", "fast", False, {"nodeLabels": labels})
    await see(kueue, a_queue(flavor="fast"), flavor)
    job = await kueue.submit(name="one", gpu_count=1, gpu_type=T4)
    await kueue.loops["scheduler"].run_once()
    assert (await kueue.job(job["id"]))["reason"] == "NoQuotaForGpuModel"
    await see(kueue, a_queue(flavor="fast"), Seen(SeenKind.FLAVOR, "", "fast", False, {}))
    await kueue.loops["scheduler"].run_once()
    assert (await kueue.job(job["id"]))["reason"] == "WaitingForAdmission"


async def test_an_offered_job_whose_queue_loses_its_model_says_so_until_it_has_it_again(
    kueue: World,
) -> None:
    job, offer = await offered(kueue)
    await kueue.server.database.write(
        "tests.note",
        partial(
            jobs.note_admission,
            attempt_id=offer.attempt_id,
            reason="Pending",
            message="insufficient unused quota",
            admitted_at=None,
            usage_of={},
            cluster_queue="",
        ),
    )  # fmt: skip - the call reads as one line
    before = await kueue.job(job["id"])
    assert before["reason"] == "WaitingForAdmission"
    await declare(kueue, T4)
    await kueue.loops["scheduler"].run_once()
    found = await kueue.job(job["id"])
    assert (found["status"], found["reason"]) == ("queued", "NoQuotaForGpuModel")
    assert f"has quota for {T4}, and it asks for {H100}" in found["status_message"]
    await kueue.loops["scheduler"].run_once()
    assert await kueue.job(job["id"]) == found
    await declare(kueue, H100)
    await kueue.loops["scheduler"].run_once()
    after = await kueue.job(job["id"])
    assert (after["reason"], after["status_message"]) == (
        "WaitingForAdmission", before["status_message"],
    )  # fmt: skip
    assert len(await kueue.server.database.read(jobs.list_offers)) == 1


async def test_a_forecast_of_such_a_cluster_names_no_instants(kueue: World) -> None:
    job, _ = await offered(kueue)
    await kueue.submit(name="frozen-out", gpu_count=1, gpu_type=T4)
    schedule = await kueue.ask("GET", f"/jobs/{job['id']}/schedule")
    assert schedule["estimated_start"] is None


async def test_the_timeline_shows_what_waits_for_kueue_as_queued(kueue: World) -> None:
    job, _ = await offered(kueue, name="handed-over")
    other = await kueue.submit(name="unowned", gpu_count=1, gpu_type=T4)
    await kueue.loops["scheduler"].run_once()
    found = await kueue.ask("GET", "/clusters/sim/schedule")
    rows = {row["job_id"]: row for row in found["rows"]}
    assert set(rows) == {job["id"], other["id"]}
    row = rows[job["id"]]
    assert (row["status"], row["reason"], row["gpu_count"]) == ("queued", "WaitingForAdmission", 2)
    assert (row["is_estimate"], row["start"], row["end"]) == (True, found["now"], None)
    assert rows[other["id"]]["reason"] == "NoQuotaForGpuModel"
    past = await kueue.ask(
        "GET", "/clusters/sim/schedule?until=2020-01-02T00:00:00Z&since=2020-01-01T00:00:00Z"
    )  # fmt: skip - the call reads as one line
    assert past["rows"] == []


async def test_a_job_of_others_that_waits_for_kueue_is_shown_without_its_name(
    kueue: World,
) -> None:
    await offered(kueue, name="secret-plan")
    tenant, project = await kueue.server.make_tenant("others")
    _, token = await kueue.server.make_user("eve", Role.MEMBER, tenant, project, on="tenant")
    answer = await kueue.server.client(token).get("/api/v1/clusters/sim/schedule")
    rows = answer.json()["rows"]
    assert [(row["job_id"], row["status"]) for row in rows] == [(None, "queued")]
    assert "secret-plan" not in answer.text
