"""One piece of work for each cluster at a time, where a cluster that is slow slows no other.

Owns the tasks; a loop's turn waits for those that answer, and not again for one that hung.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from gpuplane.core.ids import ClusterId
from gpuplane.kit.tasks import end_tasks

log = logging.getLogger("gpuplane.loops")

Work = Callable[[], Awaitable[None]]


class Looks:
    """The work under way of one loop, by cluster."""

    def __init__(self, name: str) -> None:
        """Begin with none; the name is in those of the tasks."""
        self._name = name
        self._tasks: dict[ClusterId, asyncio.Task[None]] = {}
        self._hung: set[ClusterId] = set()
        self._told: dict[ClusterId, str] = {}

    async def run(self, works: Mapping[ClusterId, Work], timeout_s: float) -> None:
        """Begin the work of each cluster unless it is under way, and wait for those that answer.

        What fails for one cluster is logged once, and tried again in the next turn: the others'
        turn is not to be counted as failed, nor put off, for its sake.

        Raises:
            Exception: What the work of a cluster raised, where none went well.
        """
        ended = self._take_done()
        for cluster_id, work in works.items():
            if cluster_id not in self._tasks:
                self._tasks[cluster_id] = asyncio.create_task(
                    _run(work), name=f"{self._name}:{cluster_id}"
                )
        awaited = [task for key, task in self._tasks.items() if key not in self._hung]
        if awaited:
            await asyncio.wait(awaited, timeout=timeout_s)
        self._hung = {key for key, task in self._tasks.items() if not task.done()}
        self._judge({**ended, **self._take_done()})

    def is_under_way(self, cluster_id: ClusterId) -> bool:
        """Return whether the work of a cluster has not ended."""
        task = self._tasks.get(cluster_id)
        return task is not None and not task.done()

    async def stop(self) -> None:
        """End all work under way; what failed meanwhile is logged, nobody asks for it any more."""
        await end_tasks(self._tasks.values())
        self._tasks.clear()
        self._hung.clear()

    def _take_done(self) -> dict[ClusterId, asyncio.Task[None]]:
        done = {key: task for key, task in self._tasks.items() if task.done()}
        for key in done:
            del self._tasks[key]
        return done

    def _judge(self, done: Mapping[ClusterId, asyncio.Task[None]]) -> None:
        """Tell what failed, by raising it where nothing went well."""
        failures = {
            key: error
            for key, task in done.items()
            if not task.cancelled() and (error := task.exception()) is not None
        }
        for key in done.keys() - failures.keys():
            self._told.pop(key, None)
        if failures and len(failures) == len(done):
            raise next(iter(failures.values()))
        for key, error in failures.items():
            said = repr(error)
            if self._told.get(key) != said:
                log.error("%s of cluster %s failed", self._name, key, exc_info=error)
            self._told[key] = said


async def _run(work: Work) -> None:
    await work()
