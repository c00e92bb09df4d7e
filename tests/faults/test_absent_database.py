"""A database that goes away: the API says so, the loops back off, and all goes on after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.postgres import PostgresServer, PostgresUnavailable, start_postgres
from tests.faults.inside import inside
from tests.waiting import wait_until_async

pytestmark = pytest.mark.postgresql
AWAY_S = 3.0
"""Long enough for loops to fail several times; what a minute adds is only more of them."""


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server of this test alone, because it is stopped under the product."""
    try:
        server = start_postgres()
    except PostgresUnavailable as error:
        pytest.skip(str(error))
    yield server
    server.stop()


async def test_nothing_is_lost_while_the_database_is_away_and_all_goes_on_after(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    url = own_server.create_database()
    async with inside(tmp_path, url) as plane:
        spec = {"simulated": {"duration_s": 2.0}}
        running = (await plane.submit("runs", spec=spec)).json()["id"]
        await plane.wait_for(running, "running")
        await asyncio.to_thread(own_server.halt)
        refused = await plane.submit("refused")
        assert refused.status_code == 503, refused.text
        assert refused.json()["code"] == "database_unavailable"
        assert int(refused.headers["Retry-After"]) > 0
        known = plane.control.runner.states
        names = ("scheduler", "observer", "monitor")
        since = time.monotonic()
        await wait_until_async(
            lambda: (
                all(known[name].consecutive_failures for name in names)
                and time.monotonic() - since > AWAY_S
            ),
            "the loops met it",
            deadline_s=60,
        )
        turns = sum(known[name].consecutive_failures for name in names)
        assert turns < AWAY_S * 20, "loops back off instead of spinning"
        ready = await plane.client.get("http://gpuplane.test/ready")
        assert ready.status_code == 503
        await asyncio.to_thread(own_server.start_again)
        await wait_until_async(
            lambda: not any(known[name].consecutive_failures for name in names),
            "the loops go on",
            deadline_s=60,
        )
        after = (await plane.submit("after")).json()["id"]
        assert await plane.wait_for(after, "completed", "failed") == "completed"
        assert await plane.wait_for(running, "completed", "failed") == "completed"
        names_now = {job["name"] for job in (await plane.client.get("/jobs")).json()["items"]}
        assert names_now == {"runs", "after"}
        assert plane.faults() == []
