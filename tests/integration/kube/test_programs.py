"""Programs that are run for a cluster, on the event loop that the server runs on."""

from __future__ import annotations

import asyncio
import contextlib

import uvloop

from gpuplane.kube.processes import _feed, run_program


async def _feed_an_ended_one() -> int | None:
    process = await asyncio.create_subprocess_exec("true", stdin=asyncio.subprocess.PIPE)
    await process.wait()
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        await process.stdin.wait_closed()  # uvloop has seen that nobody reads
    await _feed(process, b"values")
    return process.returncode


def test_a_program_that_ends_before_it_is_given_what_it_does_not_read_ends_well() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_feed_an_ended_one()) == 0


def test_a_program_reads_what_it_is_given() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ended = runner.run(run_program(["cat"], environment={}, stdin=b"values", timeout_s=60))
    assert (ended.code, ended.stdout) == (0, b"values")
