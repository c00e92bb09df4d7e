"""`gpuplane queue`: who waits, in which place, for what, and until when by estimate."""

from typing import Any

import click

from gpuplane.cli.client import Client
from gpuplane.cli.errors import ApiError
from gpuplane.cli.output import Column, Output, note, output_option, show_rows
from gpuplane.cli.words import age, gpus_text, short_id, when

WAITING = ("queued", "pending", "preempted")
PLACED = 40
"""Rows whose place is asked for; each is a forecast of its own."""

COLUMNS = (
    Column("POS", lambda row: row["position"] or "", right=True),
    Column("NAME", lambda row: row["name"]),
    Column("STATUS", lambda row: row["status"], status=True),
    Column("PRIORITY", lambda row: row["priority"]),
    Column("GPUS", gpus_text),
    Column("CLUSTER", lambda row: row["schedule_cluster"] or row["cluster"] or ""),
    Column("PROJECT", lambda row: f"{row['tenant']}/{row['project']}"),
    Column("WAITS", lambda row: age(row["queued_at"] or row["created_at"]), right=True),
    Column("STARTS", lambda row: when(row["eta"]) or "unknown"),
    Column("REASON", lambda row: row["reason"]),
    Column("QUEUE", lambda row: row["queue"], wide=True),
    Column("MESSAGE", lambda row: row["status_message"], wide=True),
    Column("ID", lambda row: short_id(row["id"]), wide=True),
)


@click.command()
@click.option("--cluster", help="Only of this cluster.")
@click.option("--queue", "name", help="Only of CLUSTER/QUEUE.")
@click.option("-n", "--limit", type=click.IntRange(1), default=200, show_default=True,
              help="Rows at most.")  # fmt: skip
@output_option
def queue(cluster: str | None, name: str | None, limit: int, output: Output) -> None:
    """Show who waits, in which place, for what, and until when by estimate."""
    client = Client()
    jobs = client.items(
        "/jobs", limit=limit, status=WAITING, cluster=cluster, queue=name, sort="created_at"
    )
    rows = [{**job, "position": None, "eta": job["estimated_start"], "schedule_cluster": None}
            for job in jobs]  # fmt: skip
    _place(client, rows[:PLACED])
    rows.sort(key=lambda row: (row["schedule_cluster"] or row["cluster"] or "~",
                               row["position"] is None, row["position"] or 0))  # fmt: skip
    show_rows(rows, COLUMNS, output, empty="Nobody waits.")
    if len(rows) > PLACED and not output.is_data:
        note(f"Places are shown for {PLACED} of {len(rows)}; `gpuplane jobs schedule JOB` has any.")


def _place(client: Client, rows: list[dict[str, Any]]) -> None:
    """Ask for each row's place and its start; the estimate in the list may be older."""
    for row in rows:
        try:
            schedule = client.get(f"/jobs/{row['id']}/schedule")
        except ApiError as error:
            if error.status == 404:
                continue  # it has gone meanwhile
            if error.status >= 500:
                note(f"gpuplane: places are not known just now ({error.message})")
                return
            raise
        row["position"] = schedule["position"]
        row["eta"] = schedule["estimated_start"] or row["eta"]
        row["schedule_cluster"] = schedule["cluster"]
