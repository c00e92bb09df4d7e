"""Who follows logs holds a seat: there are so many, and they are given back."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from gpuplane.kit.access import Role
from gpuplane.kit.feeds import Seats
from gpuplane.kit.sealing import SealingKeys
from tests.integration.jobs.worlds import World, running_world, runs_for
from tests.waiting import wait_until_async


async def follow(world: World, job_id: str, token: str | None = None) -> str:
    http = world.http if token is None else world.server.client(token)
    answer = await http.get(f"/api/v1/jobs/{job_id}/logs?follow=true")
    assert answer.status_code == 200, answer.text
    return answer.text


def seats_of(world: World) -> Seats:
    seats = world.server.ports["log_followers"]
    assert isinstance(seats, Seats)
    return seats


async def test_one_follower_too_many_is_told_when_to_come_back(world: World) -> None:
    job = await world.submit(spec=runs_for(600))
    seats = seats_of(world)
    reading = [asyncio.create_task(follow(world, job["id"])) for _ in range(seats.limit)]
    await wait_until_async(lambda: seats.is_full, "every seat is taken")
    refused = await world.http.get(f"/api/v1/jobs/{job['id']}/logs?follow=true")
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_followers")
    assert int(refused.headers["retry-after"]) > 0
    assert (await world.ask("GET", f"/jobs/{job['id']}/logs"))["text"] == ""
    await world.ask("DELETE", f"/jobs/{job['id']}")
    assert await asyncio.wait_for(asyncio.gather(*reading), 20) == [""] * seats.limit
    assert seats.taken == 0
    assert await follow(world, job["id"]) == ""


async def test_a_follower_that_goes_away_gives_its_seat_back(world: World) -> None:
    job = await world.submit(spec=runs_for(600))
    seats = seats_of(world)
    reading = asyncio.create_task(follow(world, job["id"]))
    await wait_until_async(lambda: seats.taken == 1, "the reader is seated")
    reading.cancel()
    await asyncio.wait([reading])
    await wait_until_async(lambda: seats.taken == 0, "the seat is free")
    assert reading.cancelled()


async def test_a_follower_whose_token_is_revoked_reads_no_further(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    code = (
        "import itertools, time\nfor i in itertools.count(): print(i, flush=True); time.sleep(.02)"
    )
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys, has_local=True) as world:
        admin = world.server.admin
        assert admin.project_id is not None
        user_id, token = await world.server.make_user(
            "ada", Role.ADMIN, admin.tenant_id, admin.project_id
        )
        job = await world.submit(
            cluster="local",
            spec={"command": [sys.executable, "-c", code]},
            cpu_cores=0.1,
            memory_gb=0.1,
            resources={"ephemeral_storage_gb": 0},
        )
        reading = asyncio.create_task(follow(world, job["id"], token))

        async def reads() -> dict[str, Any] | None:
            await world.turn()
            shown = await world.job(job["id"])
            is_read = shown["status"] == "running" and seats_of(world).taken == 1
            return shown if is_read else None

        await wait_until_async(reads, "the reader is seated")
        tokens = await world.ask("GET", f"/tokens?user_id={user_id}")
        await world.ask("DELETE", f"/tokens/{tokens['items'][0]['id']}")
        world.server.clock.advance(20)
        text = await asyncio.wait_for(reading, 20)
        assert "[token_invalid]" in text.splitlines()[-1]
        await world.ask("DELETE", f"/jobs/{job['id']}")
        await world.turn(3)
