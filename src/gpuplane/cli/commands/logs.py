"""`gpuplane logs`: what a job printed, each stream where it belongs, followed on wish."""

import sys
from typing import Any

import click

from gpuplane.cli.client import Client
from gpuplane.cli.errors import ApiError
from gpuplane.cli.following import Follower, LogWriter, follow_log
from gpuplane.cli.lookups import find_job
from gpuplane.cli.output import note, paint

READ_BYTES = 1 << 20


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Stream until the job is over.")
@click.option("--stdout", "only", flag_value="stdout", help="Standard output alone.")
@click.option("--stderr", "only", flag_value="stderr", help="Standard error alone.")
@click.option("--rank", type=click.IntRange(0), help="One replica alone, not the first.")
@click.option("--attempt", type=click.IntRange(1), help="An earlier attempt; the latest if absent.")
@click.option("--tail", type=click.IntRange(0), help="Only the last so many lines.")
def logs(
    job: str,
    only: str | None,
    rank: int | None,
    attempt: int | None,
    tail: int | None,
    *,
    follow: bool,
) -> None:
    """Show what a job printed: its standard output to standard output, its errors to errors.

    Without -f the streams come one after the other; -f brings both in the order in which they
    were written, of every replica, over retries, until the job is over. Ctrl-C leaves the job
    alone.
    """
    client = Client()
    found = find_job(client, job)
    if follow and (only or rank is not None or attempt is not None or tail is not None):
        raise click.UsageError("-f streams everything; leave the other options out.")
    if found["simulated"]:
        note(paint("simulated: this log was described, nothing was executed", "dim", err=True))
    if follow:
        Follower(
            client, found, lambda line: note(paint(f"gpuplane: {line}", "dim", err=True))
        ).run()
        return
    if only is None and rank is None and attempt is None and tail is None and _is_over(found):
        follow_log(client, found, LogWriter(sys.stdout.buffer, sys.stderr.buffer,
                                            found["replica_count"] > 1))  # fmt: skip
        return
    for each in [only] if only else ["stdout", "stderr"]:
        data, read = _read(client, found["id"], rank, each, attempt)
        if attempt is None and each != "stderr" and _is_earlier(found, read):
            note(f"gpuplane: attempt {read + 1} has not begun; attempt {read} printed this")
        if tail is not None:
            data = b"".join(data.splitlines(keepends=True)[-tail:] if tail else [])
        target = sys.stdout.buffer if each == "stdout" else sys.stderr.buffer
        target.write(data)
        target.flush()


def _is_over(job: dict[str, object]) -> bool:
    return job["status"] in ("completed", "failed", "cancelled")


def _is_earlier(job: dict[str, Any], attempt: int) -> bool:
    """Return whether what was read is of an attempt before the one that a job waits for."""
    latest = (job.get("current_attempt") or {}).get("number") or 0
    return 0 < attempt < latest


def _read(
    client: Client, job_id: str, rank: int | None, stream: str, attempt: int | None
) -> tuple[bytes, int]:
    """Return a stream of a replica, of the first there is unless told, and of which attempt."""
    parts, offset = [], 0
    while True:
        try:
            chunk = client.get(
                f"/jobs/{job_id}/logs",
                rank=rank,
                stream=stream,
                offset=offset,
                limit_bytes=READ_BYTES,
                attempt=attempt,
            )
        except ApiError as error:
            oldest = error.problem.get("oldest_offset")
            if not isinstance(oldest, int) or oldest <= offset:
                raise
            note(f"gpuplane: the first {oldest} bytes of {stream} were rotated away")
            offset = oldest
            continue
        parts.append(chunk["text"].encode())
        if chunk["next_offset"] <= offset:
            return b"".join(parts), int(chunk["attempt"])
        # Replicas come and go meanwhile, and so do attempts: the rest is read where it began.
        offset, rank, attempt = chunk["next_offset"], chunk["rank"], chunk["attempt"] or None
