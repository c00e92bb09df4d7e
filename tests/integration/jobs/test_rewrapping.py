"""A rotation of the sealing key reaches the sensitive outputs of jobs."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from gpuplane.core.ids import JobId
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.service import rewrapping
from gpuplane.kit.sealing import SealingKeys
from tests.integration.jobs.worlds import running_world, runs_for


async def test_sealed_outputs_open_without_the_key_that_sealed_them_first(
    migrated_url: str, tmp_path: Path
) -> None:
    keys = SealingKeys(tmp_path / "keys")
    async with running_world(migrated_url, tmp_path, keys) as world:
        job = await world.submit(
            spec=runs_for(1, outputs={"api_key": "sk-1", "token": "t-2", "loss": 0.1})
        )
        await world.turn(2)
        await world.after(2)
        job_id = JobId(UUID(job["id"]))
        old = keys.current_id
        rotated = await world.ask("POST", "/sealing-keys/rotations", 201)
        assert rotated == {"key_id": keys.current_id, "rewrapped": 2}
        keys.retire(old)
        sealed = await world.server.database.read(
            lambda s: repository.list_sealed_outputs(s, job_id)
        )
        opened = {
            name: keys.open(each, rewrapping.OUTPUTS_CONTEXT) for name, each in sealed.items()
        }
        assert opened == {"api_key": b"sk-1", "token": b"t-2"}


async def test_outputs_are_sealed_anew_batch_by_batch_and_only_once(
    migrated_url: str, tmp_path: Path
) -> None:
    keys = SealingKeys(tmp_path / "keys")
    many = {f"token-{index:03}": f"t-{index}" for index in range(70)}
    async with running_world(migrated_url, tmp_path, keys) as world:
        for _ in range(3):
            await world.submit(spec=runs_for(1, outputs=many))
        await world.turn(2)
        await world.after(2)
        keys.rotate()
        database = world.server.database
        count, after = await database.write(
            "tests.first", lambda s: rewrapping.rewrap_outputs(s, keys, None)
        )
        assert count == rewrapping.REWRAP_BATCH
        assert after is not None
        rest = await database.write(
            "tests.rest", lambda s: rewrapping.rewrap_outputs(s, keys, after)
        )
        again = await database.write(
            "tests.again", lambda s: rewrapping.rewrap_outputs(s, keys, None)
        )
        assert rest == (3 * len(many) - rewrapping.REWRAP_BATCH, None)
        assert again[0] == 0
