"""Ends tasks that go on beside what began them."""

import asyncio
import logging
from collections.abc import Collection

log = logging.getLogger("gpuplane.tasks")

END_S = 10.0
"""How long a task that was cancelled is waited for."""


async def end_tasks(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for them; what failed is logged, for nobody else will ask."""
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    done, pending = await asyncio.wait(tasks, timeout=END_S)
    for task in pending:
        log.warning("%s did not end within %g s of being cancelled", task.get_name(), END_S)
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s failed as it was ended: %s", task.get_name(), error)
