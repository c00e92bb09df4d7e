"""Runs of pipelines steered: their output read, retried, cancelled, paused, forked, told."""

import sys
from typing import Any

import click

from gpuplane.cli.client import Client
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.following import LogWriter, follow_log
from gpuplane.cli.lookups import SURE_PART, is_uuid
from gpuplane.cli.output import note
from gpuplane.cli.parameters import parse_value
from gpuplane.cli.runviews import load_steps


def find_run(client: Client, key: str) -> dict[str, Any]:
    """Return the run that an id or the end of one means.

    Raises:
        CliError: If there is none, or more than one.
    """
    if is_uuid(key):
        found: dict[str, Any] = client.get(f"/runs/{key}")
        return found
    rows = [row for row in client.items("/runs", 500) if row["id"].endswith(key.lower())]
    if len(rows) == 1:
        return rows[0]
    reason = f"{len(rows)} runs end with {key!r}." if rows else f"There is no run {key!r}."
    raise CliError(reason, fix="`gpuplane pipelines runs` lists them.", code=Exit.NOT_FOUND)


def _find_run_exactly(client: Client, key: str) -> dict[str, Any]:
    """Return the run that is to be steered, which few characters may not name."""
    if len(key) < SURE_PART:
        raise CliError(
            f"{key!r} is too little of an id for a run that is to be changed.",
            fix=f"Write {SURE_PART} or more characters of its end; `gpuplane pipelines runs` "
            "lists them.",
            code=Exit.USAGE,
        )
    return find_run(client, key)


def _step(client: Client, run_id: str, key: str) -> str:
    """Return the id of a step, whose key may have slashes."""
    for row in load_steps(client, run_id):
        if key in (row["id"], row["key"]):
            return str(row["id"])
    raise CliError(
        f"The run has no step {key!r}.", fix="`gpuplane pipelines show RUN`.", code=Exit.NOT_FOUND
    )


@click.command("logs")
@click.argument("run")
@click.argument("step")
def logs(run: str, step: str) -> None:
    """Show what a step printed: its function, or its job."""
    client = Client()
    found = find_run(client, run)
    kept = client.get(f"/runs/{found['id']}/steps/{_step(client, found['id'], step)}/logs")
    for each in kept["tries"]:
        click.echo(each["text"], nl=not each["text"].endswith("\n"))
    if kept["job_id"] is not None:
        job = client.get(f"/jobs/{kept['job_id']}")
        several = job["replica_count"] > 1
        follow_log(client, job, LogWriter(sys.stdout.buffer, sys.stderr.buffer, several))
    elif not kept["tries"]:
        note(f"{step} printed nothing.")


@click.command("retry")
@click.argument("run")
@click.argument("step", required=False)
def retry(run: str, step: str | None) -> None:
    """Run one step again, or without one everything that failed; what completed stays."""
    client = Client()
    found = _find_run_exactly(client, run)
    part = "rerun" if step is None else f"steps/{_step(client, found['id'], step)}/retry"
    again = client.post(f"/runs/{found['id']}/{part}")
    click.echo(f"{again['id']} {again['status']}")


@click.command("cancel")
@click.argument("run")
def cancel(run: str) -> None:
    """Cancel what is not over of a run, its jobs too; nothing is rolled back."""
    _do(run, "cancel")


@click.command("pause")
@click.argument("run")
def pause(run: str) -> None:
    """Begin no more steps of a run; those under way go on."""
    _do(run, "pause")


@click.command("resume")
@click.argument("run")
def resume(run: str) -> None:
    """Let a paused run go on."""
    _do(run, "resume")


@click.command("fork")
@click.argument("run")
@click.argument("step")
def fork(run: str, step: str) -> None:
    """Start a new run from a step, with the outputs of what lies before it."""
    _do(run, "fork", {"step": step})


def _do(run: str, verb: str, body: dict[str, Any] | None = None) -> None:
    client = Client()
    found = client.post(f"/runs/{_find_run_exactly(client, run)['id']}/{verb}", body)
    click.echo(f"{found['id']} {found['condition'] or found['status']}")


@click.command("event")
@click.argument("run")
@click.argument("name")
@click.argument("payload", required=False)
def event(run: str, name: str, payload: str | None) -> None:
    """Send an event to a run; PAYLOAD is JSON or else text."""
    client = Client()
    value = None if payload is None else parse_value(payload)
    client.post(
        f"/runs/{_find_run_exactly(client, run)['id']}/events", {"name": name, "payload": value}
    )
    click.echo(f"{name} sent")


COMMANDS = (logs, retry, cancel, pause, resume, fork, event)
