"""Output is kept, read from any offset and followed to its end."""

from __future__ import annotations

import asyncio

import pytest

from gpuplane.backends.capabilities import ReadsLogs
from gpuplane.backends.interface import AttemptRef, Backend, BackendError, LogChunk, Phase, Stream
from gpuplane.core.reasons import Word
from tests.contract.builders import a_plan, a_ref
from tests.contract.factories import BackendFactory, until_over, until_phase

LINES = ("first", "second", "third")
TEXT = b"first\nsecond\nthird\n"


@pytest.fixture
def logs(backend: Backend) -> ReadsLogs:
    if not isinstance(backend, ReadsLogs):
        pytest.skip("this backend keeps no output")
    return backend


async def follow(logs: ReadsLogs, ref: AttemptRef, offset: int = 0) -> list[LogChunk]:
    async def collect() -> list[LogChunk]:
        return [chunk async for chunk in logs.follow_logs(ref, [0], offset, 0)]

    return await asyncio.wait_for(collect(), 30.0)


def joined(chunks: list[LogChunk], stream: Stream = Stream.STDOUT) -> bytes:
    return b"".join(chunk.data for chunk in chunks if chunk.stream is stream)


async def test_the_output_of_a_job_is_kept(
    factory: BackendFactory, backend: Backend, logs: ReadsLogs
) -> None:
    plan = a_plan(node_name=factory.node_name, log=LINES)
    await backend.ensure_workload(plan, {})
    await until_over(factory, backend, plan.ref)
    chunk = await logs.read_logs(plan.ref, 0, Stream.STDOUT, 0, 1000)
    assert (chunk.rank, chunk.stream, chunk.offset) == (0, Stream.STDOUT, 0)
    assert factory.plain(chunk.data) == TEXT
    assert (await logs.read_logs(plan.ref, 0, Stream.STDERR, 0, 1000)).data == b""


async def test_output_is_read_from_any_offset_up_to_a_limit(
    factory: BackendFactory, backend: Backend, logs: ReadsLogs
) -> None:
    plan = a_plan(node_name=factory.node_name, log=LINES)
    await backend.ensure_workload(plan, {})
    await until_over(factory, backend, plan.ref)
    whole = (await logs.read_logs(plan.ref, 0, Stream.STDOUT, 0, 1000)).data
    chunk = await logs.read_logs(plan.ref, 0, Stream.STDOUT, 6, 4)
    assert (chunk.offset, chunk.data) == (6, whole[6:10])
    end = await logs.read_logs(plan.ref, 0, Stream.STDOUT, len(whole), 100)
    assert (end.offset, end.data) == (len(whole), b"")


async def test_a_follower_gets_everything_and_ends_with_the_job(
    factory: BackendFactory, backend: Backend, logs: ReadsLogs
) -> None:
    plan = a_plan(node_name=factory.node_name, log=LINES)
    await backend.ensure_workload(plan, {})
    await until_over(factory, backend, plan.ref)
    chunks = await follow(logs, plan.ref)
    assert factory.plain(joined(chunks)) == TEXT
    assert chunks[0].offset == 0
    assert joined(await follow(logs, plan.ref, offset=6)) == joined(chunks)[6:]


async def test_a_follower_sees_output_while_the_job_runs(
    factory: BackendFactory, backend: Backend, logs: ReadsLogs
) -> None:
    # Short, because a simulated job writes its lines over the whole of its duration.
    plan = a_plan(node_name=factory.node_name, log=LINES, duration_s=5.0)
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    seen = b""
    async with asyncio.timeout(30.0):
        async for chunk in logs.follow_logs(plan.ref, [0], 0, 0):
            seen += chunk.data
            if factory.plain(seen) == TEXT:
                await backend.evict(plan.ref, 1.0, Word.CANCELLED)
                await factory.pass_time(2.0)
    assert factory.plain(seen).startswith(TEXT)
    [replica] = await until_over(factory, backend, plan.ref)
    assert replica.reason == Word.CANCELLED


async def test_the_output_of_every_rank_is_apart(
    factory: BackendFactory, backend: Backend, logs: ReadsLogs
) -> None:
    plan = a_plan(node_name=factory.node_name, log=LINES, replica_count=2)
    await backend.ensure_workload(plan, {})
    await until_over(factory, backend, plan.ref)
    for rank in (0, 1):
        chunk = await logs.read_logs(plan.ref, rank, Stream.STDOUT, 0, 1000)
        assert (chunk.rank, factory.plain(chunk.data)) == (rank, TEXT)


async def test_the_output_of_an_unknown_attempt_is_refused(logs: ReadsLogs) -> None:
    with pytest.raises(BackendError):
        await logs.read_logs(a_ref(), 0, Stream.STDOUT, 0, 10)
    with pytest.raises(BackendError):
        await follow(logs, a_ref())


async def test_the_output_goes_with_what_is_forgotten(
    factory: BackendFactory, backend: Backend, logs: ReadsLogs
) -> None:
    plan = a_plan(node_name=factory.node_name, log=LINES)
    await backend.ensure_workload(plan, {})
    await until_over(factory, backend, plan.ref)
    await backend.forget(plan.ref)
    with pytest.raises(BackendError):
        await logs.read_logs(plan.ref, 0, Stream.STDOUT, 0, 10)
