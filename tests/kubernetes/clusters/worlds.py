"""A whole control plane in this process, with what registers clusters and follows runs."""

from __future__ import annotations

from typing import Any

from tests.faults.inside import Inside
from tests.waiting import wait_until_async

OVER = ("completed", "failed", "cancelled")


async def register(it: Inside, name: str, kubeconfig: str, **more: Any) -> dict[str, Any]:
    """Register a cluster and return the answer."""
    body = {"name": name, "kubeconfig": kubeconfig, **more}
    answer = await it.client.post("/clusters", json=body)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def end_of(it: Inside, run_id: str) -> dict[str, Any]:
    """Return a run once it is over."""

    async def over() -> dict[str, Any] | None:
        run: dict[str, Any] = (await it.client.get(f"/runs/{run_id}")).json()
        return run if run["status"] in OVER else None

    found: dict[str, Any] | None = await wait_until_async(
        over, f"run {run_id} is over", deadline_s=90, interval_s=0.2
    )
    assert found is not None
    return found


async def steps_of(it: Inside, run_id: str) -> dict[str, dict[str, Any]]:
    """Return the steps of a run by key."""
    found = (await it.client.get(f"/runs/{run_id}/steps")).json()["items"]
    return {step["key"]: step for step in found}


async def registered(it: Inside, name: str, kubeconfig: str, **more: Any) -> dict[str, Any]:
    """Register a cluster, wait until it takes work, and return the answer of the registration."""
    made = await register(it, name, kubeconfig, **more)
    run = await end_of(it, made["workflow_id"])
    assert run["status"] == "completed", (run, await steps_of(it, made["workflow_id"]))
    return made
