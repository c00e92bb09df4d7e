"""Reservations: GPUs set aside for a project from start to end."""

import click

from gpuplane.cli.asking import YES, confirm
from gpuplane.cli.client import Client
from gpuplane.cli.commands.identity import project_id
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.lookups import pick, pick_exactly
from gpuplane.cli.output import Column, Output, output_option, show_one, show_rows
from gpuplane.cli.parameters import INSTANT
from gpuplane.cli.words import clock_text, model_text, short_id

COLUMNS = (
    Column("ID", lambda row: short_id(row["id"])),
    Column("NAME", lambda row: row["name"]),
    Column("STATE", lambda row: row["state"], status=True),
    Column("GPUS", lambda row: f"{row['count']} {model_text(row['model'])}"),
    Column("HELD", lambda row: len(row["gpu_ids"]), right=True),
    Column("FROM", lambda row: clock_text(row["start"])),
    Column("TO", lambda row: clock_text(row["end"])),
    Column("UNUSED IS PAID", lambda row: row["charge_unused"], wide=True),
    Column("PROJECT", lambda row: row["project_id"], wide=True),
    Column("FULL ID", lambda row: row["id"], wide=True),
)


@click.group(cls=NearestGroup)
def reservations() -> None:
    """GPUs set aside for a project from start to end."""


@reservations.command("ls")
@click.option("--cluster", help="Only on this cluster.")
@click.option("--state", multiple=True, help="Only in this state; repeatable.")
@output_option
def list_reservations(cluster: str | None, state: tuple[str, ...], output: Output) -> None:
    """List reservations by start."""
    rows = Client().get("/capacity/reservations", cluster=cluster, state=state)["items"]
    show_rows(rows, COLUMNS, output, empty="Nothing is reserved.")


@reservations.command("show")
@click.argument("reservation")
@output_option
def show_reservation(reservation: str, output: Output) -> None:
    """Show one reservation and the GPUs it holds."""
    client = Client()
    found = pick(client.get("/capacity/reservations")["items"], reservation, "reservation")
    show_one(found, [(name.replace("_", " "), value) for name, value in found.items()], output)


@reservations.command("create")
@click.option("--cluster", required=True, help="Where.")
@click.option("--gpu-model", required=True, help="Which GPUs.")
@click.option("--gpus", type=click.IntRange(1), required=True, help="How many.")
@click.option("--from", "start", type=INSTANT, required=True, help="When it begins (or +1h).")
@click.option("--to", "end", type=INSTANT, required=True, help="When it ends (or +5h).")
@click.option("-p", "--project", help="For this project; yours unless given.")
@click.option("--name", default="", help="For people.")
@click.option(
    "--charge-unused/--free-unused",
    default=True,
    show_default=True,
    help="Whether reserved time that no job uses is paid for.",
)
@output_option
def create_reservation(
    cluster: str,
    gpu_model: str,
    gpus: int,
    start: str,
    end: str,
    project: str | None,
    name: str,
    output: Output,
    *,
    charge_unused: bool,
) -> None:
    """Set GPUs aside."""
    client = Client()
    body = {
        "cluster": cluster,
        "model": gpu_model,
        "count": gpus,
        "start": start,
        "end": end,
        "charge_unused": charge_unused,
        "project_id": project_id(client, project or client.target.project),
        "name": name,
    }
    found = client.post("/capacity/reservations", body)
    show_one(found, [(key.replace("_", " "), value) for key, value in found.items()], output)


@reservations.command("rm")
@click.argument("reservation")
@YES
def cancel_reservation(reservation: str, *, yes: bool) -> None:
    """Give a reservation up; jobs that run on its GPUs go on."""
    client = Client()
    found = pick_exactly(client.get("/capacity/reservations")["items"], reservation, "reservation")
    confirm(f"Give reservation {found['name'] or found['id']} up?", yes=yes)
    client.delete(f"/capacity/reservations/{found['id']}")
    click.echo(f"{found['name'] or found['id']} given up")
