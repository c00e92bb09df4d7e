"""Work for each cluster at a time: what hangs for one does not hold up the others."""

from __future__ import annotations

import asyncio
import gc
from uuid import UUID

import pytest

from gpuplane.core.ids import ClusterId
from gpuplane.loops.looks import Looks

QUICK, SLOW = ClusterId(UUID(int=1)), ClusterId(UUID(int=2))


async def test_one_that_hangs_is_waited_for_once_and_begun_once() -> None:
    looks, done, begun = Looks("test"), [0], [0]
    gate, ended = asyncio.Event(), asyncio.Event()

    async def quick() -> None:
        done[0] += 1

    async def slow() -> None:
        begun[0] += 1
        await gate.wait()
        ended.set()

    works = {QUICK: quick, SLOW: slow}
    await looks.run(works, 0.01)
    assert looks.is_under_way(SLOW)
    for _ in range(3):
        await asyncio.wait_for(looks.run(works, 30), 20)  # would take 30 s if it waited for it
    assert (done[0], begun[0]) == (4, 1)
    gate.set()
    await ended.wait()
    await asyncio.sleep(0)  # the task ends
    await looks.run(works, 1)
    assert begun[0] == 2
    await looks.stop()


async def fails() -> None:
    raise ValueError("no")


async def goes_well() -> None:
    await asyncio.sleep(0)


async def test_what_fails_for_one_is_logged_once_and_fails_no_turn_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = Looks("test")
    for _ in range(3):
        await looks.run({QUICK: fails, SLOW: goes_well}, 5)
    assert caplog.text.count(f"test of cluster {QUICK} failed") == 1
    assert "ValueError: no" in caplog.text
    await looks.run({QUICK: goes_well, SLOW: goes_well}, 5)
    await looks.run({QUICK: fails, SLOW: goes_well}, 5)
    assert caplog.text.count(f"test of cluster {QUICK} failed") == 2


async def test_a_failure_is_raised_where_none_went_well() -> None:
    with pytest.raises(ValueError, match="no"):
        await Looks("test").run({QUICK: fails, SLOW: fails}, 5)


async def test_stopping_ends_what_is_under_way() -> None:
    looks = Looks("test")

    async def hangs() -> None:
        await asyncio.Event().wait()

    await looks.run({SLOW: hangs}, 0.01)
    await looks.stop()
    assert not looks.is_under_way(SLOW)


async def test_what_fails_as_it_is_ended_is_logged_and_not_left_to_the_collector(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks, told = Looks("test"), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, said: told.append(said["message"]))

    async def fails_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("the database is closed")

    await looks.run({SLOW: fails_at_its_end}, 0.01)
    await looks.stop()
    gc.collect()
    assert told == []
    assert f"test:{SLOW} failed as it was ended: the database is closed" in caplog.text
