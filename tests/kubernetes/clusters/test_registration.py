"""A cluster is registered by its kubeconfig against a real API server, and deleted again."""

from __future__ import annotations

import json
from pathlib import Path

from gpuplane.kit.ids import new_id
from tests.faults.inside import inside
from tests.kubernetes.clusters.worlds import end_of, registered, steps_of
from tests.kubernetes.rigged import RunningCluster


async def test_a_cluster_is_registered_with_its_nodes_and_deleted_and_registered_again(
    rig: RunningCluster, tmp_path: Path
) -> None:
    text = rig.kubeconfig.read_text()
    async with inside(tmp_path) as it:
        made = await registered(it, "east", text, attributes={"region": "eu"}, addons=[])
        steps = await steps_of(it, made["workflow_id"])
        assert list(steps)[:3] == ["verify_connection", "deploy_nfd", "collect_node_info"]
        assert all(step["status"] in ("completed", "skipped") for step in steps.values())
        cluster = (await it.client.get("/clusters/east")).json()
        assert (cluster["state"], cluster["kind"], cluster["platform"]) == (
            "AVAILABLE", "kubernetes", "ON_PREM",
        )  # fmt: skip
        assert cluster["kubernetes_version"].startswith("v1.")
        assert cluster["attributes"] == {"region": "eu"}
        totals = {each["gpu_type"]: each["total"] for each in cluster["gpus"]}
        assert totals["nvidia-h100-80gb"] >= 8
        nodes = {
            node["name"]: node
            for node in (await it.client.get("/clusters/east/nodes")).json()["items"]
        }
        h100 = nodes["h100-1"]
        assert (h100["type"], h100["nfd_detected"], len(h100["gpus"])) == ("GPU", True, 8)
        assert h100["hardware_info"]["vendor"] == "nvidia"
        assert {c["type"] for c in h100["conditions"]} >= {"Ready"}
        assert nodes["gaudi-1"]["type"] == "HPU"
        assert h100["topology"]

        twice = await it.client.post("/clusters", json={"name": "other", "kubeconfig": text})
        assert (twice.status_code, twice.json()["code"]) == (409, "cluster_exists")
        assert "east" in twice.json()["detail"]

        deleted = await it.client.delete("/clusters/east")
        assert deleted.status_code == 202
        run = await end_of(it, deleted.json()["workflow_id"])
        assert run["status"] == "completed"
        names = [each["name"] for each in (await it.client.get("/clusters")).json()["items"]]
        assert "east" not in names
        again = await registered(it, "east", text, addons=[])
        assert again["cluster"]["id"] != made["cluster"]["id"]


async def test_what_is_sealed_is_shown_nowhere_and_survives_a_rotation_of_keys(
    rig: RunningCluster, tmp_path: Path
) -> None:
    text = rig.kubeconfig.read_text()
    token = rig.connection().token
    assert token is not None
    async with inside(tmp_path) as it:
        made = await registered(it, "east", text, addons=[])
        shown = [
            json.dumps(made),
            (await it.client.get("/clusters/east")).text,
            (await it.client.get("/clusters/east/credentials")).text,
            (await it.client.get("/events?limit=500")).text,
            (await it.client.get(f"/runs/{made['workflow_id']}/steps")).text,
        ]
        assert all(token not in each for each in shown)
        stored = (tmp_path / "home" / "gpuplane.db").read_bytes()
        wal = tmp_path / "home" / "gpuplane.db-wal"
        assert token.encode() not in stored + (wal.read_bytes() if wal.exists() else b"")
        rotated = await it.client.post("/sealing-keys/rotations")
        assert rotated.status_code == 201
        assert rotated.json()["rewrapped"] >= 1
        again = await it.client.post("/clusters/east/registration", json={"addons": []})
        run = await end_of(it, again.json()["workflow_id"])
        assert run["status"] == "completed"


async def test_credentials_are_replaced_and_those_of_another_cluster_refused(
    rig: RunningCluster, second_rig: RunningCluster, tmp_path: Path
) -> None:
    async with inside(tmp_path) as it:
        await registered(it, "east", rig.kubeconfig.read_text(), addons=[])
        body = {"kubeconfig": rig.kubeconfig.read_text()}
        replaced = await it.client.put("/clusters/east/credentials", json=body)
        assert (replaced.status_code, replaced.json()["number"]) == (200, 2)
        other = {"kubeconfig": second_rig.kubeconfig.read_text()}
        refused = await it.client.put("/clusters/east/credentials", json=other)
        assert (refused.status_code, refused.json()["code"]) == (422, "another_cluster")
        assert (await it.client.get("/clusters/east/credentials")).json()["number"] == 2


async def test_a_form_with_a_file_registers_as_well_and_an_answer_is_given_twice_for_a_key(
    rig: RunningCluster, tmp_path: Path
) -> None:
    async with inside(tmp_path) as it:
        parts = {
            "cluster_create_request": (None, '{"name": "form", "addons": []}'),
            "configuration": ("kubeconfig.yaml", rig.kubeconfig.read_bytes()),
        }
        headers = {"Idempotency-Key": str(new_id())}
        first = await it.client.post("/clusters", json=None, files=parts, headers=headers)
        assert first.status_code == 202, first.text
        body = first.json()
        assert body["success"] is True
        assert {"name": "verify_connection", "status": "pending"}.items() <= body["steps"][
            0
        ].items()
        assert body["metrics_key"].startswith("gpc_")
        run = await end_of(it, body["workflow_id"])
        assert run["status"] == "completed"


async def test_checks_by_kind_say_what_they_found(rig: RunningCluster, tmp_path: Path) -> None:
    from tests.waiting import wait_until_async

    async with inside(tmp_path) as it:
        await registered(it, "east", rig.kubeconfig.read_text(), addons=[])
        it.control.runner.wake(["clusters"])

        async def looked() -> list[dict[str, str]]:
            found: list[dict[str, str]] = (await it.client.get("/clusters/east/health")).json()[
                "checks"
            ]
            return found

        checks = await wait_until_async(looked, "it was looked at", deadline_s=60)
        verdicts = {each["kind"]: each["verdict"] for each in checks}
        assert set(verdicts) == {
            "api_server", "nodes", "device_plugin", "gpu_operator", "kueue", "metrics",
        }  # fmt: skip
        assert verdicts["api_server"] == "healthy"
        assert verdicts["gpu_operator"] == "absent"
        assert verdicts["kueue"] in ("healthy", "absent")

        newest = max(each["checked_at"] for each in checks)
        it.control.runner.wake(["clusters"])

        async def looked_again() -> bool:
            return all(each["checked_at"] > newest for each in await looked())

        await wait_until_async(looked_again, "a look that finds the same is told", deadline_s=60)

        asked = await it.client.get("/clusters/east/health?check=nodes&check=api_server")
        assert [each["kind"] for each in asked.json()["checks"]] == ["api_server", "nodes"]
        refused = await it.client.get("/clusters/east/health?check=weather")
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "check[0]")
