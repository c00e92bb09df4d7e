"""Runs on a terminal: the steps as a tree that changes while one looks, or a line for each change.

Owns following a run to its end; what is data goes to standard output elsewhere.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpuplane.cli.client import Client
from gpuplane.cli.errors import ApiError, Exit, Unreachable
from gpuplane.cli.following import wait_for_server
from gpuplane.cli.output import note, paint_status
from gpuplane.cli.words import duration_text, seconds_between

OVER = frozenset({"completed", "partial", "failed", "cancelled"})
STEP_OVER = frozenset({"completed", "failed", "skipped", "cancelled"})
LOOK_S = 0.3
LONG_LOOK_S = 2.0
SHOWN = 60
"""Steps drawn at most; of longer runs those that are under way, and failures, are."""
MARKS = {
    "waiting": "·", "pending": "○", "running": "◐", "completed": "●", "failed": "✗",
    "skipped": "–", "cancelled": "⊘",
}  # fmt: skip


def load_steps(client: Client, run_id: str) -> list[dict[str, Any]]:
    """Return the steps of a run, parts of steps among them."""
    return list(client.items(f"/runs/{run_id}/steps"))


class RunFollower:
    """Looks at one run until it is over; a server that went away is waited for meanwhile.

    Attributes:
        client: Who answered last: a server that came back may have another address.
    """

    def __init__(self, client: Client, run_id: str) -> None:
        """Follow a run by this client first."""
        self.client, self._run_id = client, run_id

    def follow(self) -> dict[str, Any]:
        """Return the run once it is over, drawing its steps meanwhile."""
        return self._follow_live() if sys.stderr.isatty() else self._follow_lines()

    def _look(self, say: Callable[[str], None]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the run and its steps, which are no older than it."""
        while True:
            try:
                run: dict[str, Any] = self.client.get(f"/runs/{self._run_id}")
                return run, load_steps(self.client, self._run_id)
            except ApiError as error:
                if error.exit_code != Exit.UNREACHABLE:
                    raise
            except Unreachable:
                pass
            self.client, _ = wait_for_server(
                f"/runs/{self._run_id}",
                say,
                what="run",
                fix=f"The run goes on once it is back: `gpuplane pipelines show {self._run_id}`.",
            )

    def _follow_lines(self) -> dict[str, Any]:
        """Follow a run where nothing can be drawn: a line for each step that ended."""
        pause, told = threading.Event(), set[str]()
        while True:
            run, steps = self._look(note)
            for row in steps:
                if row["status"] in STEP_OVER and row["id"] not in told:
                    told.add(row["id"])
                    note(f"{row['key']} {row['status']}{_reason(row)}")
            if run["status"] in OVER:
                return run
            pause.wait(LOOK_S)

    def _follow_live(self) -> dict[str, Any]:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.text import Text

        console = Console(stderr=True)
        progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        task = progress.add_task("steps")
        pause = threading.Event()
        with Live(console=console, auto_refresh=False) as live:
            while True:
                run, steps = self._look(console.print)
                done = sum(row["status"] in STEP_OVER for row in steps)
                told = f"{run['name']} {run['status']}"
                progress.update(task, total=len(steps), completed=done, description=told)
                lines = list(draw_steps(_worth_showing(steps)))
                live.update(Group(*map(Text.from_ansi, lines), progress), refresh=True)
                if run["status"] in OVER:
                    return run
                pause.wait(LOOK_S if len(steps) <= SHOWN else LONG_LOOK_S)


def draw_steps(steps: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each step, parts of steps indented below their own, in the run's order."""
    rows = list(steps)
    names = {row["seq"]: row["key"].rpartition("/")[2] for row in rows}
    below: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        below.setdefault(row["parent"], []).append(row)
    for depth, row in _walk(below, 0, 0):
        yield f"{'  ' * depth}{_line(row, names)}"


def _walk(
    below: dict[int, list[dict[str, Any]]], parent: int, depth: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    for row in sorted(below.get(parent, []), key=lambda each: each["seq"]):
        yield depth, row
        yield from _walk(below, row["seq"], depth + 1)


def _line(row: dict[str, Any], names: dict[int, str]) -> str:
    status = row["status"]
    took = seconds_between(row["started_at"], row["ended_at"])
    parts = [MARKS.get(status, "?"), row["key"].rpartition("/")[2], paint_status(status, err=True)]
    if row["needs"] and status == "waiting":
        parts.append("after " + ", ".join(names.get(seq, str(seq)) for seq in row["needs"][:5]))
    if row["attempt"] > 1:
        parts.append(f"try {row['attempt']} of {row['attempts']}")
    if took is not None:
        parts.append(duration_text(took))
    if row["message"]:
        parts.append(row["message"][:120])
    return "  ".join(parts)


def _reason(row: dict[str, Any]) -> str:
    told = row["status"] in ("failed", "completed") and row["message"]
    return f": {row['message']}" if told else ""


def _worth_showing(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps to draw: all of a short run, else those under way and those that failed."""
    if len(steps) <= SHOWN:
        return steps
    by_seq = {row["seq"]: row for row in steps}
    shown: dict[int, dict[str, Any]] = {}
    for row in steps:
        if row["status"] not in ("running", "pending", "failed"):
            continue
        while row is not None and row["seq"] not in shown and len(shown) < SHOWN:
            shown[row["seq"]] = row
            row = by_seq.get(row["parent"])  # type: ignore[assignment]  # None at the top
    return list(shown.values())
