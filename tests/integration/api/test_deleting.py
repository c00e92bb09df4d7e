"""What still has work or secrets in it is not deleted, in the product as it is built."""

from __future__ import annotations

from pathlib import Path

from gpuplane.kit.access import Role
from gpuplane.kit.sealing import SealingKeys
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
