"""One piece of work for each cluster at a time, where a cluster that is slow slows no other.

Owns the tasks; a loop's turn waits for those that answer, and not again for one that hung.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from gpuplane.core.ids import ClusterId

Work = Callable[[], Awaitable[None]]


class Looks:
    """The work under way of one loop, by cluster."""

    def __init__(self, name: str) -> None:
        """Begin with none; the name is in those of the tasks."""
        self._name = name
        self._tasks: dict[ClusterId, asyncio.Task[None]] = {}
        self._hung: set[ClusterId] = set()

    async def run(self, works: Mapping[ClusterId, Work], timeout_s: float) -> None:
        """Begin the work of each cluster unless it is under way, and wait for those that answer.

        Raises:
            Exception: What the work of a cluster raised, once all others were waited for.
        """
        ended = list(self._take_done())
        for cluster_id, work in works.items():
            if cluster_id not in self._tasks:
                self._tasks[cluster_id] = asyncio.create_task(
                    _run(work), name=f"{self._name}:{cluster_id}"
                )
        awaited = [task for key, task in self._tasks.items() if key not in self._hung]
        if awaited:
            await asyncio.wait(awaited, timeout=timeout_s)
        self._hung = {key for key, task in self._tasks.items() if not task.done()}
        failures = [
            error
            for task in [*ended, *self._take_done()]
            if not task.cancelled() and (error := task.exception()) is not None
        ]
        if failures:
            raise failures[0]

    def is_under_way(self, cluster_id: ClusterId) -> bool:
        """Return whether the work of a cluster has not ended."""
        task = self._tasks.get(cluster_id)
        return task is not None and not task.done()

    async def stop(self) -> None:
        """End all work under way."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=5)
        self._tasks.clear()
        self._hung.clear()

    def _take_done(self) -> Iterable[asyncio.Task[None]]:
        done = [(key, task) for key, task in self._tasks.items() if task.done()]
        for key, _ in done:
            del self._tasks[key]
        return [task for _, task in done]


async def _run(work: Work) -> None:
    await work()
