"""Progress of long work on standard error: a bar on a terminal, single lines elsewhere."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from gpuplane.cli.lookups import OVER
from gpuplane.cli.output import note

T = TypeVar("T")
LOOK_S = 0.5


def track(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yield items and show how far it is."""
    if not sys.stderr.isatty():
        yield from items
        note(f"{what}: {total}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total)
        for item in items:
            yield item
            progress.advance(task)


def wait_for_jobs(
    look: Callable[[], list[dict[str, Any]]], total: int, what: str
) -> list[dict[str, Any]]:
    """Return the jobs once all are over, showing their counts meanwhile.

    Args:
        look: Returns the jobs as they are now.
        total: How many there are.
        what: What the bar is called.
    """
    pause, said = threading.Event(), ""
    bar = _bar(total, what) if sys.stderr.isatty() else None
    try:
        while True:
            jobs = look()
            counts = Counter(job["status"] for job in jobs)
            over = sum(counts[status] for status in OVER)
            line = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
            if bar is not None:
                bar.update(bar.task_ids[0], completed=over, counts=line)
            elif line != said:
                note(f"{what}: {line}")
            said = line
            if over == len(jobs) == total:
                return jobs
            pause.wait(LOOK_S)
    finally:
        if bar is not None:
            bar.stop()


def _bar(total: int, what: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
    )  # fmt: skip
    bar = Progress(*columns, console=Console(stderr=True))
    bar.add_task(what, total=total, counts="")
    bar.start()
    return bar
