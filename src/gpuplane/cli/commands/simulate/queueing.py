"""`gpuplane simulate queueing`: how long jobs wait for one pool under an order, worked out here.

Owns reading the file and showing the figures; the simulation is the core's.
"""

import gzip
import io
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import click

from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.output import Output, output_option, show_data, show_fields
from gpuplane.cli.parameters import DURATION
from gpuplane.cli.words import duration_text
from gpuplane.core.simulation.queueing.bounded import WaitTarget
from gpuplane.core.simulation.queueing.orders import Durations, Order, Skip
from gpuplane.core.simulation.queueing.outcomes import compute_figures
from gpuplane.core.simulation.queueing.pools import PoolShape
from gpuplane.core.simulation.queueing.runs import Misfit
from gpuplane.core.simulation.queueing.simulator import QueuePolicy, simulate_queueing
from gpuplane.core.simulation.queueing.traces import (
    SECOND_MS,
    Trace,
    TraceError,
    TraceFilter,
    WindowError,
    read_trace,
)

GZIP_MAGIC = b"\x1f\x8b"
STANDARD_INPUT = Path("-")
DECIMALS = 6
MAX_POOL = 1_000_000
"""Nodes, and GPUs of a node: more are a slip, and would fill the memory."""
"""Of a second: a mean shows what the millisecond clock tells, and no noise behind it."""
BOUNDS = {"since": "--from", "until": "--until"}


@click.command()
@click.option(
    "--jobs",
    "file",
    required=True,
    type=click.Path(path_type=Path),
    help="CSV with job_id, arrival_s, duration_s (or service_sec), gpu_count (or num_gpus); "
    "- reads standard input.",
)
@click.option("--nodes", required=True, type=click.IntRange(1, MAX_POOL), help="Nodes of the pool.")
@click.option(
    "--gpus-per-node",
    type=click.IntRange(1, MAX_POOL),
    default=8,
    show_default=True,
    help="GPUs of a node.",
)
@click.option(
    "--order",
    type=click.Choice([each.value for each in Order]),
    default=Order.FIFO.value,
    show_default=True,
    help="First: the oldest, shortest, smallest, or shortest with a plan against long waits.",
)
@click.option(
    "--skip",
    type=click.Choice([each.value for each in Skip]),
    help="When the first does not fit: all wait (default), who fits passes, or who fits and does "
    "not delay it; the last alone goes with bounded.",
)
@click.option(
    "--wait-target",
    type=DURATION,
    default="16h",
    show_default=True,
    help="How long a job should wait at most; only bounded aims at it.",
)
@click.option(
    "--durations",
    type=click.Choice([each.value for each in Durations]),
    default=Durations.KNOWN.value,
    show_default=True,
    help="What order and backfill know of run times: the truth, or the column estimate_s.",
)
@click.option("--from", "since", help="Jobs from this arrival on, written as in the file.")
@click.option("--until", help="Jobs that arrive before this.")
@click.option("--cluster", "clusters", multiple=True, help="Jobs of this cluster; can be repeated.")
@click.option(
    "--tick-ms",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Step of the clock in milliseconds: times are cut to it.",
)
@output_option
def queueing(
    file: Path,
    nodes: int,
    gpus_per_node: int,
    order: str,
    skip: str | None,
    wait_target: int,
    durations: str,
    since: str | None,
    until: str | None,
    clusters: tuple[str, ...],
    tick_ms: int,
    output: Output,
) -> None:
    """Serve the jobs of a trace from one pool of equal nodes, and show how long they waited.

    The file is CSV, packed with gzip or not; a column timestamp (2017-10-09 07:01:55) does for
    arrival_s. Nothing is asked of a server and nothing is changed.
    """
    kept = TraceFilter(since, until, frozenset(clusters))
    shape = PoolShape(nodes, gpus_per_node)
    policy = _policy(Order(order), skip, Durations(durations), wait_target)
    trace = _read(file, kept, tick_ms)
    if not len(trace):
        is_whole = kept == TraceFilter()
        found = "line 2: no job stands there" if is_whole else "none of its jobs is asked for"
        raise _wrong(file, found, "at least one")
    if policy.durations is Durations.ESTIMATED and not trace.estimate_ms:
        raise _wrong(
            file, "line 1: there is no column estimate_s", "one, for --durations estimated"
        )
    began = time.perf_counter()
    try:
        outcome = simulate_queueing(trace, shape, policy)
    except Misfit as error:
        place = f"line {trace.lines[error.job]}, column {trace.gpus_column}"
        raise _wrong(file, f"{place}: {error.found}", error.expected) from error
    wall_s = time.perf_counter() - began
    figures = compute_figures(outcome)
    shown: dict[str, Any] = {
        "mean_jct_s": round(figures.mean_jct_s, DECIMALS),
        "mean_queue_s": round(figures.mean_queue_s, DECIMALS),
        "p50_queue_s": round(figures.p50_queue_s, DECIMALS),
        "p90_queue_s": round(figures.p90_queue_s, DECIMALS),
        "p99_queue_s": round(figures.p99_queue_s, DECIMALS),
        "max_queue_s": round(figures.max_queue_s, DECIMALS),
        "jobs": figures.jobs,
        "events": figures.events,
        "wall_s": round(wall_s, DECIMALS),
    }
    if output.is_data:
        show_data(shown, output)
        return
    if output is Output.WIDE:
        shown = {"order": order, "skip": policy.skip.value, "durations": durations, "nodes": nodes,
                 "gpus_per_node": gpus_per_node, **shown,
                 "p999_queue_s": round(figures.p999_queue_s, DECIMALS),
                 "events_per_s": round(figures.events / max(wall_s, 1e-9))}  # fmt: skip
    show_fields((name.replace("_", " "), _for_people(name, value)) for name, value in shown.items())


def _policy(
    order: Order, skip: str | None, durations: Durations, wait_target_s: int
) -> QueuePolicy:
    """Return how the queue is served.

    Raises:
        CliError: If the options do not go together.
    """
    default = Skip.BACKFILL if order is Order.BOUNDED else Skip.STRICT
    try:
        target = WaitTarget(wait_target_s * SECOND_MS)
        return QueuePolicy(order, Skip(skip) if skip else default, durations, target)
    except ValueError as error:
        text = str(error)
        raise CliError(f"{text[0].upper()}{text[1:]}.", code=Exit.USAGE) from error


def _for_people(name: str, value: Any) -> str:
    """Return seconds with one decimal and, where that is long, in larger units too."""
    if not name.endswith("_s") or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if name == "wall_s":
        return f"{value:.2f}"
    text = f"{value:,.1f}"
    return f"{text} ({duration_text(value)})" if value >= 60 else text


def _read(file: Path, kept: TraceFilter, tick_ms: int) -> Trace:
    """Return the trace of a file.

    Raises:
        CliError: If the file cannot be read, or a line of it cannot be meant.
    """
    try:
        standard_input = file == STANDARD_INPUT
        packed = sys.stdin.buffer.read() if standard_input else file.read_bytes()
        content = gzip.decompress(packed) if packed.startswith(GZIP_MAGIC) else packed
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _wrong(file, f"line {line}: a byte is not UTF-8", "text in UTF-8") from error
    except FileNotFoundError as error:
        raise CliError(
            f"There is no file {str(file)!r}.", field="--jobs", code=Exit.NOT_FOUND
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problem = f"{file} is packed with gzip, and cut off or damaged; expected a whole file."
        raise CliError(problem, field="--jobs", code=Exit.USAGE) from error
    except OSError as error:
        raise CliError(
            f"{file}: {error.strerror or error}.", field="--jobs", code=Exit.USAGE
        ) from error
    try:
        return read_trace(io.StringIO(text, newline=""), kept, tick_ms=tick_ms)
    except TraceError as error:
        raise CliError(f"{file}: {error}.", field="--jobs", code=Exit.USAGE) from error
    except WindowError as error:
        raise CliError(
            f"{error.text!r} is no instant of this file; expected {error.expected}.",
            field=BOUNDS[error.bound],
            code=Exit.USAGE,
        ) from error


def _wrong(file: Path, problem: str, expected: str) -> CliError:
    return CliError(f"{file}: {problem}; expected {expected}.", field="--jobs", code=Exit.USAGE)
