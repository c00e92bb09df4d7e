"""`gpuplane queue`: who waits, in which place, for what, and until when by estimate."""

from datetime import timedelta
from typing import Any

import click

from gpuplane.cli.client import Client, segment
from gpuplane.cli.output import Column, Output, output_option, show_rows
from gpuplane.cli.words import age, gpus_text, instant_of, now, short_id, when

WAITING = ("queued", "pending", "preempted")
AHEAD = timedelta(days=30)
"""How far a forecast looks: what starts later is as good as unknown."""
ORDER = ("critical", "high", "normal", "low", "spot")


def _starts(row: dict[str, Any]) -> str:
    instant = instant_of(row["estimated_start"])
    if instant is None:
        return "unknown"
    return "any moment" if instant <= now() else when(row["estimated_start"])


COLUMNS = (
    Column("POS", lambda row: row["position"], right=True),
    Column("NAME", lambda row: row["name"]),
    Column("STATUS", lambda row: row["status"], status=True),
    Column("PRIORITY", lambda row: row["priority"]),
    Column("GPUS", gpus_text),
    Column("CLUSTER", lambda row: row["cluster"] or "", spare=True),
    Column("PROJECT", lambda row: f"{row['tenant']}/{row['project']}", spare=True),
    Column("WAITS", lambda row: age(row["queued_at"] or row["created_at"]), right=True, spare=True),
    Column("STARTS", _starts),
    Column("REASON", lambda row: row["reason"]),
    Column("QUEUE", lambda row: row["queue"], wide=True),
    Column("MESSAGE", lambda row: row["status_message"], wide=True),
    Column("ID", lambda row: short_id(row["id"]), wide=True),
)


@click.command()
@click.option("--cluster", help="Only of this cluster.")
@click.option("--queue", "name", help="Only of CLUSTER/QUEUE.")
@click.option(
    "--forecast/--no-forecast",
    default=True,
    show_default=True,
    help="Forecast the starts, which takes some seconds.",
)
@click.option("-n", "--limit", type=click.IntRange(1), default=200, show_default=True,
              help="Rows at most.")  # fmt: skip
@output_option
def queue(
    cluster: str | None, name: str | None, limit: int, output: Output, *, forecast: bool
) -> None:
    """Show who waits, in which place, for what, and until when by estimate.

    POS counts the jobs that stand in line, by cluster, priority class and age. A job with a gate
    before it (a dependency, an array's limit, a pause) is pending and has no place yet.
    """
    client = Client()
    jobs = client.items(
        "/jobs", limit=limit, status=WAITING, cluster=cluster, queue=name, sort="created_at"
    )
    rows = in_order([dict(job) for job in jobs])
    if forecast:
        _forecast(client, rows)
    show_rows(rows, COLUMNS, output, empty="Nobody waits.")


def in_order(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return waiting jobs in their order with their `position`, counted for each cluster."""
    jobs.sort(
        key=lambda job: (
            job["cluster"] or "",
            job["status"] != "queued",
            ORDER.index(job["priority"]),
            job["queued_at"] or job["created_at"],
            job["id"],
        )
    )
    counts: dict[str, int] = {}
    for job in jobs:
        job["position"] = None
        if job["status"] == "queued":
            place = job["cluster"] or ""
            counts[place] = counts.get(place, 0) + 1
            job["position"] = counts[place]
    return jobs


def _forecast(client: Client, jobs: list[dict[str, Any]]) -> None:
    """Fill in the expected starts; a job that named no cluster may be told of by any of them."""
    names = {job["cluster"] for job in jobs if job["cluster"]}
    if any(not job["cluster"] for job in jobs):
        names |= {each["name"] for each in client.items("/clusters")}
    window = {"since": now().isoformat(), "until": (now() + AHEAD).isoformat()}
    for cluster in sorted(names):
        rows = client.get(f"/clusters/{segment(cluster)}/schedule", **window)["rows"]
        starts = {row["job_id"]: row["start"] for row in rows if row["is_estimate"]}
        for job in jobs:
            job["estimated_start"] = starts.get(job["id"], job["estimated_start"])
