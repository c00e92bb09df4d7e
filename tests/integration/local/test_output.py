"""Output in order, rotated, followed, and never in a job's way."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest

from gpuplane.backends.interface import OffsetGone, Stream
from gpuplane.core.reasons import Word
from tests.contract.builders import a_plan
from tests.integration.local.conftest import Machine

SEGMENT = 4096
KEPT = 5 * SEGMENT


async def small_logs(local: Machine) -> None:
    local.factory.settings = replace(
        local.factory.settings, log_segment_bytes=SEGMENT, max_log_bytes=KEPT
    )
    await local.reopen()


async def test_both_streams_come_in_the_order_they_were_written(local: Machine) -> None:
    # Each line waits until the one before was taken from its pipe: what lies in two pipes at
    # once has no order that anyone could know.
    code = (
        "import array, fcntl, os, termios\n"
        "left = array.array('i', [0])\n"
        "for i in range(50):\n"
        "    os.write(1 + i % 2, b'%d\\n' % i)\n"
        "    left[0] = 1\n"
        "    while left[0]:\n"
        "        fcntl.ioctl(1 + i % 2, termios.FIONREAD, left)\n"
    )
    plan = a_plan(command=(sys.executable, "-I", "-S", "-c", code))
    await local.backend.ensure_workload(plan, {})
    chunks = await local.followed(plan.ref)
    assert b"".join(chunk.data for chunk in chunks).split() == [b"%d" % i for i in range(50)]
    times = [chunk.at for chunk in chunks if chunk.at is not None]
    assert len(times) == len(chunks)
    assert times == sorted(times)


async def test_the_oldest_output_goes_and_offsets_stay(local: Machine) -> None:
    await small_logs(local)
    plan = await local.start("i=0; while [ $i -lt 5000 ]; do echo line-$i; i=$((i+1)); done")
    await local.end_of(plan.ref)
    whole = "".join(f"line-{i}\n" for i in range(5000)).encode()
    with pytest.raises(OffsetGone) as gone:
        await local.backend.read_logs(plan.ref, 0, Stream.STDOUT, 0, 100)
    oldest = gone.value.oldest_offset
    assert 0 < len(whole) - oldest <= KEPT
    kept = await local.backend.read_logs(plan.ref, 0, Stream.STDOUT, oldest, 1_000_000)
    assert kept.data == whole[oldest:]
    chunks = await local.followed(plan.ref)
    assert chunks[0].offset == oldest
    assert b"".join(chunk.data for chunk in chunks) == whole[oldest:]
    with pytest.raises(OffsetGone):
        await local.followed(plan.ref, 1, 0)
    later = await local.followed(plan.ref, len(whole) - 10, 0)
    assert b"".join(chunk.data for chunk in later) == whole[-10:]


async def test_a_follower_joins_batches_and_keeps_every_byte(local: Machine) -> None:
    code = "import sys\nfor i in range(200_000): sys.stdout.write(f'{i:09d}\\n')"
    plan = a_plan(command=(sys.executable, "-I", "-S", "-c", code), env={"PYTHONUNBUFFERED": ""})
    await local.backend.ensure_workload(plan, {})
    chunks = await local.followed(plan.ref)
    data = b"".join(chunk.data for chunk in chunks)
    assert len(data) == 2_000_000
    assert data == b"".join(b"%09d\n" % i for i in range(200_000))
    offset = 0
    for chunk in chunks:
        assert chunk.offset == offset
        offset += len(chunk.data)


async def test_the_last_words_of_a_killed_job_are_kept(local: Machine) -> None:
    plan = await local.start("printf 'no newline'; kill -KILL $$")
    await local.end_of(plan.ref)
    assert await local.text(plan.ref) == "no newline"


async def test_two_followers_get_the_same(local: Machine) -> None:
    plan = await local.start("for i in 1 2 3; do echo $i; sleep 0.02; done")
    first, second = await asyncio.gather(local.followed(plan.ref), local.followed(plan.ref))
    assert b"".join(c.data for c in first) == b"".join(c.data for c in second) == b"1\n2\n3\n"


async def test_a_follower_of_an_attempt_that_never_started_ends(local: Machine) -> None:
    plan = a_plan()
    await local.backend.evict(plan.ref, 0.0, Word.CANCELLED)
    assert await local.followed(plan.ref) == []


async def test_output_that_is_no_text_is_kept_as_it_is(local: Machine) -> None:
    plan = await local.start(r"printf '\000\377\200\n'")
    await local.end_of(plan.ref)
    chunk = await local.backend.read_logs(plan.ref, 0, Stream.STDOUT, 0, 100)
    assert chunk.data == b"\x00\xff\x80\n"


async def test_a_process_that_keeps_the_pipe_open_does_not_keep_the_job(local: Machine) -> None:
    replica = await local.run("sleep 600 & exit 0")
    assert replica.reason == Word.COMPLETED
