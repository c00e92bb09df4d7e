"""Commands run beside a replica."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from gpuplane.backends.interface import AttemptRef, BackendError, Phase
from gpuplane.core.reasons import Word
from tests.integration.local.conftest import Machine, is_alive, until_dead
from tests.waiting import wait_until_async


@pytest.fixture
def script() -> str:
    return "cd /; echo up; sleep 600"


async def start(local: Machine, script: str = "echo up; sleep 600", **plan: object) -> AttemptRef:
    made = await local.start(script, **plan)  # type: ignore[arg-type]  # passed through
    await local.until_printed(made.ref, "up")
    return made.ref


async def sh(local: Machine, ref: AttemptRef, text: str, stdin: bytes = b"", timeout_s: float = 20):
    return await local.backend.exec(ref, 0, ["/bin/sh", "-c", text], stdin, timeout_s)


async def test_a_command_runs_in_the_directory_and_environment_of_the_replica(
    local: Machine,
) -> None:
    ref = await start(local, "echo hi >mine; echo up; sleep 600", secrets={"TOKEN": "s3cret"})
    result = await sh(local, ref, "cat mine; echo $TOKEN $GPUPLANE_RANK; echo err >&2; exit 5")
    assert result.exit_code == 5
    assert result.stdout == b"hi\ns3cret 0\n"
    assert result.stderr == b"err\n"


async def test_a_command_reads_what_it_is_given(local: Machine) -> None:
    ref = await start(local)
    data = bytes(range(256)) * 2000
    result = await sh(local, ref, "cat", stdin=data)
    assert (result.exit_code, result.stdout) == (0, data)


async def test_a_command_that_reads_nothing_ends_all_the_same(local: Machine) -> None:
    ref = await start(local)
    assert (await sh(local, ref, "exit 0", stdin=b"x" * 500_000)).exit_code == 0


async def test_a_command_that_is_not_there_says_so(local: Machine) -> None:
    ref = await start(local)
    result = await local.backend.exec(ref, 0, ["no-such-program"], b"", 20)
    assert result.exit_code == 127
    assert b"command not found: no-such-program" in result.stderr


async def test_a_command_that_takes_too_long_is_ended(local: Machine) -> None:
    ref = await start(local)
    result = await sh(local, ref, "echo $$; sleep 600", timeout_s=0.5)
    assert result.exit_code == 124
    assert b"took too long" in result.stderr
    await until_dead(int(result.stdout))


async def test_a_command_that_prints_too_much_is_ended(local: Machine) -> None:
    local.factory.settings = replace(local.factory.settings, max_exec_bytes=100_000)
    await local.reopen()
    ref = await start(local)
    result = await sh(local, ref, "yes")
    assert result.exit_code == 124
    assert b"printed more than 100000 bytes" in result.stderr
    assert len(result.stdout) < 400_000


async def test_a_command_whose_caller_is_gone_is_ended(local: Machine) -> None:
    ref = await start(local)
    asked = asyncio.ensure_future(sh(local, ref, "echo $$ >pid.tmp; mv pid.tmp pid; sleep 600"))
    file = local.folder(ref).replica(0) / "work" / "pid"
    await wait_until_async(file.exists, "the command runs")
    pid = int(file.read_text())
    assert is_alive(pid)
    asked.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asked
    await until_dead(pid)
    assert (await local.seen(ref)).phase == Phase.RUNNING, "the replica itself goes on"


async def test_a_command_ends_with_its_replica(local: Machine) -> None:
    ref = await start(local)
    asked = asyncio.ensure_future(sh(local, ref, "echo $$ >pid.tmp; mv pid.tmp pid; sleep 600"))
    file = local.folder(ref).replica(0) / "work" / "pid"
    await wait_until_async(file.exists, "the command runs")
    await local.backend.evict(ref, 1.0, Word.CANCELLED)
    await local.end_of(ref)
    result = await asyncio.wait_for(asked, 20)
    assert result.exit_code == 143
    await until_dead(int(file.read_text()))


async def test_many_commands_run_at_once(local: Machine) -> None:
    ref = await start(local)
    results = await asyncio.gather(*(sh(local, ref, f"echo {i}") for i in range(8)))
    assert [result.stdout for result in results] == [b"%d\n" % i for i in range(8)]


async def test_a_command_beside_what_does_not_run_is_refused(local: Machine) -> None:
    plan = await local.start("true")
    await local.end_of(plan.ref)
    with pytest.raises(BackendError):
        await sh(local, plan.ref, "true")


async def test_a_command_beside_a_rank_that_is_not_there_says_so(local: Machine) -> None:
    ref = await start(local)
    result = await local.backend.exec(ref, 7, ["true"], b"", 20)
    assert result.exit_code == 126


async def test_an_empty_command_is_refused(local: Machine) -> None:
    ref = await start(local)
    with pytest.raises(BackendError, match="empty"):
        await local.backend.exec(ref, 0, [], b"", 20)
