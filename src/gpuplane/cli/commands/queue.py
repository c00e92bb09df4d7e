"""`gpuplane queue`: who waits, in which place, for what, and until when by estimate."""

from datetime import timedelta
from typing import Any

import click

from gpuplane.cli.client import Client, segment
from gpuplane.cli.output import Column, Output, output_option, show_rows
from gpuplane.cli.words import age, first_line, gpus_text, instant_of, now, short_id, when

WAITING = ("queued", "pending", "preempted")
AHEAD = timedelta(days=30)
"""How far a forecast looks: what starts later is as good as unknown."""
ORDER = ("critical", "high", "normal", "low", "spot")


def _starts(row: dict[str, Any]) -> str:
    instant = instant_of(row["estimated_start"])
    if instant is None:
        return "unknown"
    return "any moment" if instant <= now() else when(row["estimated_start"])


def _status(row: dict[str, Any]) -> str:
    """Return a job's status; of a service that runs, how many replicas it has of those it wants."""
    if row["status"] in WAITING:
        return str(row["status"])
    wanted = row["scale"]["wanted"]
    return f"{row['status']} {wanted - row['scale']['missing']}/{wanted}"


def _of_what_waits(row: dict[str, Any], field: str, of_scale: str) -> Any:
    """Return a field of what waits: of the job, or of the replicas that a service lacks."""
    return row[field] if row["status"] in WAITING else row["scale"][of_scale]


def _since(row: dict[str, Any]) -> str:
    """Return since when it waits."""
    return str(_of_what_waits(row, "queued_at", "since") or row["created_at"])


def _gpus(row: dict[str, Any]) -> str:
    return gpus_text({**row, "replicas_wanted": _of_what_waits(row, "replicas_wanted", "missing")})


def _message(row: dict[str, Any]) -> str:
    """Return what it waits for as it was last told, in one line."""
    told = str(_of_what_waits(row, "status_message", "message"))
    return first_line(told) or ("" if row["status"] == "pending" else "not looked at yet")


COLUMNS = (
    Column("POS", lambda row: row["position"], right=True),
    Column("NAME", lambda row: row["name"]),
    Column("STATUS", _status, status=True),
    Column("PRIORITY", lambda row: row["priority"]),
    Column("GPUS", _gpus),
    Column("CLUSTER", lambda row: row["cluster"] or "", spare=True),
    Column("PROJECT", lambda row: f"{row['tenant']}/{row['project']}", spare=True),
    Column("WAITS", lambda row: age(_since(row)), right=True, spare=True),
    Column("STARTS", _starts),
    Column("REASON", lambda row: _of_what_waits(row, "reason", "reason")),
    Column("QUEUE", lambda row: row["queue"], wide=True),
    Column("MESSAGE", _message, spare=True),
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
    before it (a dependency, an array's limit, a pause) is pending and has no place yet. A service
    that runs with fewer replicas than it wants stands with those it lacks. STARTS is unknown where
    nobody can tell: where a cluster's own Kueue admits, for replicas, and beyond 30 days.
    """
    client = Client()
    filters = {"cluster": cluster, "queue": name, "sort": "created_at"}
    jobs = client.items("/jobs", limit=limit, status=WAITING, **filters)
    short = client.items("/jobs", limit=limit, replicas_missing="true", **filters)
    rows = in_order([dict(job) for job in (*jobs, *short)])[:limit]
    forget_starts(rows)
    if forecast:
        _forecast(client, rows)
    show_rows(rows, COLUMNS, output, empty="Nobody waits.")


def in_order(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what waits in its order with its `position`, counted for each cluster."""
    jobs.sort(
        key=lambda job: (
            job["cluster"] or "",
            job["status"] != "queued",
            ORDER.index(job["priority"]),
            _since(job),
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


def forget_starts(rows: list[dict[str, Any]]) -> None:
    """Take out what says nothing of the start to come: one that has gone by, or of what runs."""
    for row in rows:
        instant = instant_of(row["estimated_start"])
        if row["status"] not in WAITING or (instant is not None and instant <= now()):
            row["estimated_start"] = None


def _forecast(client: Client, jobs: list[dict[str, Any]]) -> None:
    """Fill in the expected starts; a job that named no cluster may be told of by any of them."""
    names = {job["cluster"] for job in jobs if job["cluster"]}
    if any(not job["cluster"] for job in jobs):
        names |= {each["name"] for each in client.rows("/clusters")}
    window = {"since": now().isoformat(), "until": (now() + AHEAD).isoformat()}
    for cluster in sorted(names):
        rows = client.get(f"/clusters/{segment(cluster)}/schedule", **window)["rows"]
        starts = known_starts(rows)
        for job in jobs:
            if job["status"] in WAITING:
                job["estimated_start"] = starts.get(job["id"], job["estimated_start"])


def known_starts(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the forecast start of each waiting job of a schedule.

    A bar without an end is no forecast: its start is the present, where nobody knows any better.
    """
    return {
        row["job_id"]: row["start"] for row in rows if row["is_estimate"] and row["end"] is not None
    }
