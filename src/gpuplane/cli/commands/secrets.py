"""Secrets: values go in and never come out; jobs name them."""

import sys
from typing import IO

import click

from gpuplane.cli.asking import YES, confirm
from gpuplane.cli.client import Client
from gpuplane.cli.commands.identity import project_id
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.lookups import pick_exactly
from gpuplane.cli.output import Column, Output, output_option, show_rows
from gpuplane.cli.words import age, clock_text

PROJECT = click.option("-p", "--project", help="Its project; yours unless given.")


@click.group(cls=NearestGroup)
def secrets() -> None:
    """Secrets by name; `run --secret NAME` hands one to a job."""


def _project(client: Client, project: str | None) -> str | None:
    return project_id(client, project or client.target.project)


@secrets.command("ls")
@PROJECT
@output_option
def list_secrets(project: str | None, output: Output) -> None:
    """List secrets without their values."""
    client = Client()
    columns = (
        Column("NAME", lambda row: row["name"]),
        Column("VERSION", lambda row: row["value_version"], right=True),
        Column("SET", lambda row: clock_text(row["rotated_at"])),
        Column("BY", lambda row: row["created_by"]),
        Column("AGE", lambda row: age(row["created_at"]), right=True),
        Column("ID", lambda row: row["id"], wide=True),
    )
    show_rows(client.items("/secrets", project_id=_project(client, project)), columns, output)


@secrets.command("rotate-keys")
def rotate_keys() -> None:
    """Make a new sealing key and seal by it whatever lies sealed, while everything goes on.

    Secrets, kubeconfigs, outputs of jobs, webhooks, and states of clusters made from the server's
    home. Older keys stay where they are, for what backups hold.
    """
    made = Client().post("/sealing-keys/rotations")
    click.echo(f"key {made['key_id']} seals from now on; {made['rewrapped']} sealed anew by it")


@secrets.command("set")
@click.argument("name")
@click.option("--from-file", type=click.File(), help="Read the value from a file; - is stdin.")
@PROJECT
def set_secret(name: str, from_file: IO[str] | None, project: str | None) -> None:
    """Create a secret or give it a new value, read from a prompt, a pipe or a file.

    There is no option for the value itself: arguments are seen by everybody on the machine.
    """
    client = Client()
    place = _project(client, project)
    value = _value(from_file)
    rows = [row for row in client.items("/secrets", project_id=place) if row["name"] == name]
    if rows:
        found = client.put(f"/secrets/{rows[0]['id']}", {"value": value})
    else:
        body = {"name": name, "value": value} | ({} if place is None else {"project_id": place})
        found = client.post("/secrets", body)
    click.echo(f"{name} set, version {found['value_version']}")


@secrets.command("rm")
@click.argument("name")
@PROJECT
@YES
def delete_secret(name: str, project: str | None, *, yes: bool) -> None:
    """Delete a secret; jobs that name it do not start any more."""
    client = Client()
    rows = client.items("/secrets", project_id=_project(client, project))
    found = pick_exactly(rows, name, "secret")
    confirm(f"Delete secret {found['name']}?", yes=yes)
    client.delete(f"/secrets/{found['id']}")
    click.echo(f"{found['name']} deleted")


def _value(file: IO[str] | None) -> str:
    if file is not None:
        text = str(file.read())
    elif sys.stdin.isatty():
        text = click.prompt("Value", hide_input=True, confirmation_prompt=True, err=True)
    else:
        text = sys.stdin.read()
    value = text.removesuffix("\n")
    if not value:
        raise CliError("The value is empty.", fix="Pipe it in, or name a file.", code=Exit.USAGE)
    return value
