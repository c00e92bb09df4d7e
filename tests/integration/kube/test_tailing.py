"""Output of pods read off a cluster: streams without end, and a disk that takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.backends.kubernetes.archive import FULL, LogArchive
from gpuplane.backends.kubernetes.tailing import LogTails
from gpuplane.kube.clients import KubeClient
from tests.integration.kube.scripted import Reply, ScriptedServer, Stream
from tests.unit.backends.kubernetes.builders import ID, a_pod
from tests.waiting import wait_until_async

MAX_BYTES = 1 << 20
LINES = b"2026-01-02T03:04:05.1Z first\n2026-01-02T03:04:05.2Z second\n"


@pytest.fixture
def archive(tmp_path: Path) -> LogArchive:
    return LogArchive(tmp_path / "logs", MAX_BYTES)


@pytest.fixture
async def tails(client: KubeClient, archive: LogArchive) -> AsyncIterator[LogTails]:
    found = LogTails(client, archive, 4, lambda: None)
    yield found
    await found.stop()


def kept(archive: LogArchive) -> bytes:
    return archive.read(ID, 0, 0, 2 * MAX_BYTES)


async def test_a_stream_of_which_no_more_is_kept_is_ended_and_not_opened_again(
    server: ScriptedServer, tails: LogTails, archive: LogArchive
) -> None:
    stream = Stream()
    server.handler = lambda request: stream
    stream.send(b"2026-01-02T03:04:05Z ")
    for _ in range(20):
        stream.send(b"y" * 65_536)
    pod = a_pod()
    tails.follow(pod, ID, 0)
    await asyncio.wait_for(stream.closed.wait(), 20)
    await tails.wait_ended(ID, 0, 20)
    assert len(kept(archive)) == MAX_BYTES
    assert kept(archive).endswith(FULL)
    tails.follow(pod, ID, 0)
    await tails.read_off(pod, ID, 0)
    assert tails.is_following(ID, 0)
    assert len(server.requests) == 1


async def test_the_log_of_an_ended_pod_outlasts_a_disk_that_takes_nothing_for_a_while(
    server: ScriptedServer, tails: LogTails, archive: LogArchive, caplog: pytest.LogCaptureFixture
) -> None:
    server.handler = lambda request: Reply(body=LINES)
    archive.folder.write_text("a file in the folder's place", encoding="ascii")
    saving = asyncio.create_task(tails.save(a_pod(phase="Succeeded"), ID, 0, 20))
    await wait_until_async(lambda: "cannot be written" in caplog.text, "it is told")
    archive.folder.unlink()
    await saving
    assert kept(archive) == b"first\nsecond\n"


async def test_the_log_of_an_ended_pod_is_given_up_when_its_time_is_over(
    server: ScriptedServer, tails: LogTails, archive: LogArchive
) -> None:
    server.handler = lambda request: Reply(body=LINES)
    archive.folder.write_text("a file in the folder's place", encoding="ascii")
    with pytest.raises(TimeoutError):
        await tails.save(a_pod(phase="Succeeded"), ID, 0, 0.5)


async def test_a_stream_that_the_disk_did_not_take_is_read_again(
    server: ScriptedServer, tails: LogTails, archive: LogArchive, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server.handler = lambda request: Reply(body=LINES)
    archive.folder.write_text("a file in the folder's place", encoding="ascii")
    tails.follow(a_pod(), ID, 0)
    await wait_until_async(lambda: "broke" in caplog.text, "it is told")
    archive.folder.unlink()
    await tails.wait_ended(ID, 0, 20)
    assert kept(archive) == b"first\nsecond\n"
