"""Reads the output of pods off a cluster into the archive: once, or as it is written.

Owns the connections to logs: as many at a time as a setting allows. One reader of a rank at a
time, so that its archive has one writer.
"""

import asyncio
import contextlib
import datetime
import logging
from collections.abc import AsyncGenerator, Callable
from typing import cast

from gpuplane.backends.kubernetes.archive import LogArchive, RankLog
from gpuplane.backends.kubernetes.shapes import Pod
from gpuplane.core.ids import AttemptId
from gpuplane.kit.tasks import end_tasks
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import BadRequest, KubeError, NotThere

log = logging.getLogger("gpuplane.kubernetes")

AGAIN_S = 1.0
"""Pause before a log that broke, or that the disk did not take, is read again."""

Key = tuple[AttemptId, int]


class LogTails:
    """The logs that are being read off one cluster."""

    def __init__(
        self, client: KubeClient, archive: LogArchive, at_once: int, on_output: Callable[[], None]
    ) -> None:
        """Read nothing yet.

        Args:
            client: Of the cluster.
            archive: Where output goes.
            at_once: Streams that may be open.
            on_output: Called when something was archived.
        """
        self._client = client
        self._archive = archive
        self._places = asyncio.Semaphore(at_once)
        self._on_output = on_output
        self._locks: dict[Key, asyncio.Lock] = {}
        self._tails: dict[Key, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        """End every stream."""
        await end_tasks(list(self._tails.values()))
        self._tails.clear()

    async def read_off(self, pod: Pod, attempt_id: AttemptId, rank: int) -> None:
        """Archive what a pod has written so far; nothing where it has no log.

        Raises:
            KubeError: If it cannot be read.
            OSError: If it cannot be written.
        """
        key = (attempt_id, rank)
        if self.is_following(attempt_id, rank):
            return
        async with self._locks.setdefault(key, asyncio.Lock()), self._places:
            target = self._archive.rank_log(attempt_id, rank)
            try:
                await self._read_once(pod, target)
            except (BadRequest, NotThere):
                return  # it has not started, or it is gone: there is nothing to read

    async def save(self, pod: Pod, attempt_id: AttemptId, rank: int, timeout_s: float) -> None:
        """Archive what an ended pod wrote; a disk without room is tried again for so long.

        Raises:
            KubeError: If it cannot be read.
            OSError: If it was not read and written in time.
        """
        tries = 0
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await self.read_off(pod, attempt_id, rank)
                    return
                except OSError as error:
                    tries += 1
                    if tries == 1:  # once, not at each try
                        log.warning("the log of %s cannot be written: %s", pod.metadata.name, error)
                    await asyncio.sleep(AGAIN_S)

    def follow(self, pod: Pod, attempt_id: AttemptId, rank: int) -> None:
        """Begin to archive what a pod writes until its container ends, unless that goes on."""
        key = (attempt_id, rank)
        if self.is_following(attempt_id, rank):
            return
        task = asyncio.create_task(self._follow(pod, key), name=f"log:{pod.metadata.name}")
        self._tails[key] = task
        task.add_done_callback(lambda _: self._tails.pop(key, None))

    def is_following(self, attempt_id: AttemptId, rank: int) -> bool:
        """Return whether the output of a rank is being followed, or no more of it is kept."""
        key = (attempt_id, rank)
        return key in self._tails or self._archive.rank_log(*key).mark.full

    async def wait_ended(self, attempt_id: AttemptId, rank: int, timeout_s: float) -> None:
        """Return when the stream of a rank has ended, or is given up after so long."""
        task = self._tails.get((attempt_id, rank))
        if task is not None:
            await asyncio.wait([task], timeout=timeout_s)
            task.cancel()
            await asyncio.wait([task])

    async def _follow(self, pod: Pod, key: Key) -> None:
        target = self._archive.rank_log(*key)
        async with self._locks.setdefault(key, asyncio.Lock()), self._places:
            tries = 0
            while tries < 3:
                try:
                    await self._read_stream(pod, target)
                    return
                except NotThere:
                    return
                except BadRequest:
                    return  # not started yet: whoever follows asks again
                except (KubeError, OSError) as error:
                    tries += 1
                    log.info("the log of %s broke: %s", pod.metadata.name, error)
                    await asyncio.sleep(AGAIN_S)

    async def _read_once(self, pod: Pod, target: RankLog) -> None:
        since = _since(target)
        age_s = None
        if since is not None:
            # Measured by the server's clock: a minute more, in case ours is ahead of it.
            now = datetime.datetime.now(datetime.UTC)
            age_s = max(1, round((now - since).total_seconds())) + 60
        data = await self._client.read_log(
            pod.metadata.name,
            pod.metadata.namespace,
            pod.container_name,
            since_s=age_s,
            timestamps=True,
            limit_bytes=target.max_bytes,
        )
        target.begin_reading()
        wrote = target.take(data)
        if pod.is_over:  # else a line without an end is still being written
            wrote += target.end_reading()
        if wrote:
            self._on_output()

    async def _read_stream(self, pod: Pod, target: RankLog) -> None:
        target.begin_reading()
        stream = self._client.follow_log(
            pod.metadata.name,
            pod.metadata.namespace,
            pod.container_name,
            since=_since(target),
            timestamps=True,
        )
        # Closed here and now, also when this task is cancelled between two pieces.
        async with contextlib.aclosing(cast(AsyncGenerator[bytes, None], stream)):
            async for chunk in stream:
                if target.take(chunk):
                    self._on_output()
                if target.mark.full:
                    return
        if target.end_reading():
            self._on_output()


def _since(target: RankLog) -> datetime.datetime | None:
    text = target.last_second
    return datetime.datetime.fromisoformat(text) if text else None
