"""Loops run by wake-up and by period, one turn at a time, and survive their own errors."""

import asyncio
import contextlib

import pytest

from gpuplane.kit.loops import LoopRunner
from tests.clocks import FakeClock


class CountingLoop:
    """Counts its turns; fails and asks for more as told."""

    def __init__(self, name: str = "counting", period_s: float = 3600.0) -> None:
        self.name = name
        self.period_s = period_s
        self.turns = 0
        self.again = 0
        self.fails = 0
        self.at_once = 0
        self.most_at_once = 0
        self.turned = asyncio.Event()

    async def run_once(self) -> bool:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.turns += 1
        self.turned.set()
        if self.fails:
            self.fails -= 1
            raise LookupError("a bad turn")
        self.again -= 1
        return self.again > 0

    async def wait_for(self, turns: int) -> None:
        while self.turns < turns:
            self.turned.clear()
            await asyncio.wait_for(self.turned.wait(), 10)


class WaitingLoop(CountingLoop):
    """Waits in each turn for what somebody else may cancel."""

    def __init__(self) -> None:
        super().__init__("waiting")
        self.awaited: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def run_once(self) -> bool:
        self.awaited = asyncio.get_running_loop().create_future()
        self.turns += 1
        self.turned.set()
        return await self.awaited


async def test_a_loop_runs_when_it_is_woken_and_not_before() -> None:
    runner, loop = LoopRunner(FakeClock()), CountingLoop()
    runner.add(loop)
    runner.start()
    await loop.wait_for(1)
    runner.wake(["another", "counting"])
    await loop.wait_for(2)
    await runner.stop()
    assert loop.turns == 2


async def test_a_loop_that_knows_of_more_work_runs_on() -> None:
    runner, loop = LoopRunner(FakeClock()), CountingLoop()
    loop.again = 5
    runner.add(loop)
    runner.start()
    await loop.wait_for(5)
    await runner.stop()
    assert loop.turns == 5


@pytest.mark.parametrize("later", range(5))
async def test_a_loop_ends_though_it_is_woken_in_the_moment_in_which_it_is_stopped(
    later: int,
) -> None:
    runner, loop = LoopRunner(FakeClock()), CountingLoop()
    runner.add(loop)
    runner.start()
    await loop.wait_for(1)
    await asyncio.sleep(0)  # it waits to be woken
    runner.wake(["counting"])
    for _ in range(later):
        await asyncio.sleep(0)
    stopping = asyncio.create_task(runner.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    assert "loop:counting" not in {task.get_name() for task in asyncio.all_tasks()}
    await stopping


class DeafLoop(CountingLoop):
    """Keeps to itself that it was cancelled."""

    async def run_once(self) -> bool:
        self.turns += 1
        self.turned.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return False


async def test_a_loop_ends_though_its_body_keeps_its_cancellation_to_itself() -> None:
    runner, loop = LoopRunner(FakeClock()), DeafLoop()
    runner.add(loop)
    runner.start()
    await loop.wait_for(1)
    stopping = asyncio.create_task(runner.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    assert stopping.done()


class KeepingLoop(CountingLoop):
    """Keeps work that outlasts its turns, and fails to end it when told to."""

    def __init__(self, name: str, refuses: bool = False) -> None:
        super().__init__(name)
        self.refuses = refuses
        self.ended = False

    async def stop(self) -> None:
        if self.refuses:
            raise LookupError("it does not end")
        self.ended = True


async def test_what_a_loop_keeps_at_work_ends_with_it_though_another_fails_at_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner = LoopRunner(FakeClock())
    stubborn, keeping = KeepingLoop("stubborn", refuses=True), KeepingLoop("keeping")
    for each in (stubborn, CountingLoop(), keeping):
        runner.add(each)
    runner.start()
    await keeping.wait_for(1)
    await runner.stop()
    assert keeping.ended
    assert "what loop stubborn keeps at work was not ended" in caplog.text


async def test_turns_of_one_loop_never_overlap() -> None:
    runner, loop = LoopRunner(FakeClock()), CountingLoop()
    runner.add(loop)
    runner.start()
    for turn in range(1, 20):
        runner.wake(["counting"])
        await loop.wait_for(turn)
    await runner.stop()
    assert loop.most_at_once == 1


async def test_an_error_ends_the_turn_is_counted_and_the_next_turn_is_the_retry() -> None:
    runner, loop = LoopRunner(FakeClock()), CountingLoop()
    loop.fails = 1
    runner.add(loop)
    await runner.turn(loop, runner.states["counting"])
    state = runner.states["counting"]
    assert (state.failures, state.consecutive_failures) == (1, 1)
    assert state.last_error == "LookupError: a bad turn"
    await runner.turn(loop, state)
    assert (state.failures, state.consecutive_failures, state.last_error) == (1, 0, None)


async def test_a_turn_whose_work_was_cancelled_by_others_has_failed_and_the_loop_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner, loop = LoopRunner(FakeClock()), WaitingLoop()
    runner.add(loop)
    runner.start()
    await loop.wait_for(1)
    loop.awaited.cancel()
    await loop.wait_for(2)
    state = runner.states["waiting"]
    assert (state.failures, state.consecutive_failures) == (1, 1)
    assert "loop waiting failed" in caplog.text
    await runner.stop()


async def test_a_loop_that_is_stopped_in_a_turn_ends_without_a_failure() -> None:
    runner, loop = LoopRunner(FakeClock()), WaitingLoop()
    runner.add(loop)
    runner.start()
    await loop.wait_for(1)
    await runner.stop()
    state = runner.states["waiting"]
    assert (state.failures, state.turns, loop.turns) == (0, 1, 1)
    assert loop.awaited.cancelled()


async def test_two_loops_of_one_name_are_refused() -> None:
    runner = LoopRunner(FakeClock())
    runner.add(CountingLoop("twice"))
    with pytest.raises(ValueError, match="two loops are named"):
        runner.add(CountingLoop("twice"))


async def test_a_loop_without_a_finished_turn_for_long_is_stalled() -> None:
    clock = FakeClock()
    runner, loop = LoopRunner(clock), CountingLoop(period_s=10)
    runner.add(loop)
    state = runner.states["counting"]
    await runner.turn(loop, state)
    assert not state.is_stalled(clock.now_ms() + 49_000)
    assert state.is_stalled(clock.now_ms() + 51_000)
