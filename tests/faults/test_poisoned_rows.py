"""A row that cannot be read: set aside with an alarm, and everything beside it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from gpuplane.db.sessions import WriteSession
from tests.faults.inside import Inside, inside
from tests.waiting import wait_until_async

POISONS = ["{broken", '{"name": 7}', "", '{"name": "x", "job_type": "no such type"}']


def poison(session: WriteSession, job_id: str, spec: str) -> None:
    """Overwrite a stored specification behind the product's back."""
    key = job_id if session.dialect == "postgresql" else job_id.replace("-", "")
    done = session.sql.execute(
        text("UPDATE jobs_jobs SET spec = :spec, version = version + 1 WHERE id = :id"),
        {"spec": spec, "id": key},
    )
    assert done.rowcount == 1  # type: ignore[attr-defined]  # of a cursor


async def alarms_of(plane: Inside, job_id: str) -> list[str]:
    """Return the alarms that were told of a job."""
    answer = await plane.client.get(f"/jobs/{job_id}/events?limit=100")
    assert answer.status_code == 200, answer.text
    return [each["message"] for each in answer.json()["items"] if each["kind"][:5] == "alarm"]


@pytest.mark.parametrize("spec", POISONS)
async def test_a_waiting_job_that_cannot_be_read_fails_with_an_alarm_and_stops_nobody(
    spec: str, migrated_url: str, tmp_path: Path
) -> None:
    async with inside(tmp_path, migrated_url) as plane:
        far = {"gpu_type": "nvidia-h100-80gb", "gpu_count": 8, "replicas": {"count": 9}}
        waiting = (await plane.submit("waits", **far)).json()["id"]
        await plane.wait_for(waiting, "queued")
        await plane.control.database.write("tests.poison", lambda s: poison(s, waiting, spec))
        good = (await plane.submit("goes-on")).json()["id"]
        assert await plane.wait_for(good, "completed", "failed") == "completed"
        assert await plane.wait_for(waiting, "failed") == "failed"
        assert len(await alarms_of(plane, waiting)) == 1
        shown = (await plane.client.get(f"/jobs/{waiting}")).json()
        assert shown["reason"] == "SpecificationUnreadable"
        listed = (await plane.client.get("/jobs")).json()["items"]
        assert {job["id"] for job in listed} == {waiting, good}
        assert plane.faults() == []


async def test_a_running_job_that_cannot_be_read_is_stopped_and_gives_its_devices_back(
    migrated_url: str, tmp_path: Path
) -> None:
    async with inside(tmp_path, migrated_url) as plane:
        body = {"simulated": {"duration_s": 3600.0}, "grace_s": 0}
        running = (await plane.submit("runs", spec=body)).json()["id"]
        await plane.wait_for(running, "running")
        await plane.control.database.write("tests.poison", lambda s: poison(s, running, "{broken"))
        await plane.submit("wakes-the-scheduler")
        assert await plane.wait_for(running, "failed") == "failed"
        assert len(await alarms_of(plane, running)) == 1
        assert plane.faults() == []


async def test_the_check_names_a_damaged_row_before_any_loop_has_seen_it(
    migrated_url: str, tmp_path: Path
) -> None:
    async with inside(tmp_path, migrated_url) as plane:
        done = (await plane.submit("over")).json()["id"]
        await plane.wait_for(done, "completed")
        await plane.control.database.write("tests.poison", lambda s: poison(s, done, "{broken"))
        faults = plane.faults()
        assert len(faults) == 1
        assert done in faults[0]
        assert "cannot be read" in faults[0]
        answer = await plane.client.get(f"/jobs/{done}")
        assert answer.json()["code"] == "job_unreadable"
        listed = await plane.client.get("/jobs")
        assert listed.status_code == 200
        known = plane.control.runner.states
        states = [known[name] for name in ("scheduler", "dispatcher", "observer", "monitor")]
        before = [state.turns for state in states]
        await wait_until_async(
            lambda: all(s.turns > n for s, n in zip(states, before, strict=True)), "loops turn"
        )
        assert [state.name for state in states if state.consecutive_failures] == []
