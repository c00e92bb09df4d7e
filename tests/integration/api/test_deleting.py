"""What still has work or secrets in it is not deleted, in the product as it is built."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from gpuplane.core.ids import ClusterId
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.runs.tables import runs
from gpuplane.kit.access import Role
from gpuplane.kit.ids import new_id
from gpuplane.kit.sealing import SealingKeys
from tests.integration.ledger.worlds import World
from tests.whole_app import whole_server


async def test_a_project_with_jobs_or_secrets_is_not_deleted(
    tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with whole_server(tmp_path, sealing_keys) as server:
        acme, home = await server.make_tenant("acme")
        project = await server.make_project(acme, "busy")
        _, token = await server.make_user("ada", Role.ADMIN, acme, home, on="tenant")
        ada = server.client(token)
        job = await ada.post(
            "/api/v1/jobs",
            json={
                "name": "long",
                "cluster": "demo",
                "project_id": str(project),
                "spec": {"command": ["sleep", "1"]},
            },
        )
        secret = await ada.post(
            "/api/v1/secrets", json={"name": "key", "value": "v", "project_id": str(project)}
        )
        refused = await ada.delete(f"/api/v1/projects/{project}")
        assert (refused.status_code, refused.json()["code"]) == (409, "still_used")
        assert refused.json()["detail"] == "The project still has 1 job that is not over."
        assert (await ada.delete(f"/api/v1/jobs/{job.json()['id']}")).status_code < 300
        refused = await ada.delete(f"/api/v1/projects/{project}")
        assert refused.json()["detail"] == "The project still has 1 secret."
        await ada.delete(f"/api/v1/secrets/{secret.json()['id']}")
        assert (await ada.delete(f"/api/v1/projects/{project}")).status_code == 200


async def test_a_tenant_with_a_local_queue_says_where_it_lies_and_how_it_is_taken_off(
    tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with whole_server(tmp_path, sealing_keys) as server:
        acme, home = await server.make_tenant("acme")
        lab, now = ClusterId(new_id()), server.clock.now_ms()
        await server.database.write(
            "tests.lab",
            lambda s: clusters.ensure_cluster(
                s, lab, name="lab", kind="kubernetes", simulated=False, config={}, now=now
            ),
        )
        await server.http.post(
            "/api/v1/clusters/lab/quotas", json={"name": "team", "coversEverything": True}
        )
        door = {"name": "main", "tenant": "acme", "clusterQueue": "team"}
        made = await server.http.post("/api/v1/clusters/lab/queues", json=door)
        assert made.status_code == 201, made.text
        refused = (await server.http.delete(f"/api/v1/tenants/{acme}")).json()
        assert (refused["status"], refused["code"]) == (409, "still_used")
        assert refused["detail"] == (
            "There is LocalQueue main and namespace tenant-acme of it on lab."
        )
        assert refused["fix"] == "Take it off there: gpuplane clusters offboard lab acme"
        assert (await server.http.get(f"/api/v1/projects/{home}")).status_code == 200
        await server.http.delete("/api/v1/clusters/lab/queues/main?tenant=acme")
        # Its namespace is known of by the run that set it up.
        run = (
            await server.http.post("/api/v1/clusters/lab/tenants", json={"tenant": "acme"})
        ).json()
        refused = (await server.http.delete(f"/api/v1/tenants/{acme}")).json()
        assert refused["detail"].startswith("A run is at work on this tenant on lab: onboard")
        assert run["runId"] in refused["fix"]
        await server.database.write(
            "tests.done", lambda s: s.execute(runs.update().values(status="completed", completed=4))
        )
        refused = (await server.http.delete(f"/api/v1/tenants/{acme}")).json()
        assert refused["detail"] == "There is namespace tenant-acme of it on lab."
        off = (await server.http.delete("/api/v1/clusters/lab/tenants/acme")).json()
        await server.database.write(
            "tests.off",
            lambda s: s.execute(
                runs.update().where(runs.c.id == UUID(off["runId"])).values(status="completed")
            ),
        )
        assert (await server.http.delete(f"/api/v1/tenants/{acme}")).status_code == 200


async def test_what_a_bill_tells_of_keeps_its_name(
    tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with whole_server(tmp_path, sealing_keys) as server:
        acme, home = await server.make_tenant("acme")
        trial = await server.make_project(acme, "trial")
        world = World(server.database, now=server.clock.now_ms(), place=(acme, home))
        world.release(world.run(world.replica(world.gpus[0])))
        assert (await server.http.delete(f"/api/v1/projects/{trial}")).status_code == 200
        for path, what in ((f"projects/{home}", "project"), (f"tenants/{acme}", "tenant")):
            refused = (await server.http.delete(f"/api/v1/{path}")).json()
            assert (refused["status"], refused["code"]) == (409, "still_used")
            assert refused["detail"].startswith(
                f"The {what} used what is billed, and bills tell its name"
            )
            assert refused["fix"].startswith(f"Keep the {what}")
