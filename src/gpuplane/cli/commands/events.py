"""`gpuplane events`: what happened, as a list or as it happens."""

import json
import threading
from http.client import HTTPException
from typing import Any

import click

from gpuplane.cli.client import Client
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.following import EVENT_STREAM, SILENCE_S, read_frames, wait_for_server
from gpuplane.cli.lookups import find_job
from gpuplane.cli.output import Column, Output, note, output_option, paint, show_rows
from gpuplane.cli.parameters import INSTANT
from gpuplane.cli.words import clock_text

AGAIN_S = 0.5
"""The pause before a stream that ended is opened again."""

COLUMNS = (
    Column("AT", lambda event: clock_text(event["at"])),
    Column("KIND", lambda event: event["kind"]),
    Column("REASON", lambda event: event["reason"], spare=True),
    Column("BY", lambda event: event["actor"], spare=True),
    Column("MESSAGE", lambda event: event["message"]),
    Column("ABOUT", lambda event: f"{event['subject_kind']} {event['subject_id']}", wide=True),
    Column("POSITION", lambda event: event["position"], wide=True, right=True),
)


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Stream them as they happen.")
@click.option("--job", help="Only of this job.")
@click.option("--kind", multiple=True, help="Only of this kind, or `job.*`; repeatable.")
@click.option("--since", type=INSTANT, help="Only from then on (or -1h).")
@click.option("--until", type=INSTANT, help="Only until then.")
@click.option("--audit/--no-audit", default=None, help="Only audited reads, or none of them.")
@click.option("-n", "--limit", type=click.IntRange(1), default=50, show_default=True,
              help="The newest so many.")  # fmt: skip
@output_option
def events(
    job: str | None,
    kind: tuple[str, ...],
    since: str | None,
    until: str | None,
    limit: int,
    output: Output,
    *,
    follow: bool,
    audit: bool | None,
) -> None:
    """List what happened in order of time, or follow it as it is committed.

    What is seen late, as after an absence of the control plane, is told with the time at which it
    happened: a list shows it there, -f when it was seen.
    """
    client = Client()
    job_id = None if job is None else find_job(client, job)["id"]
    if follow:
        _follow(client, {"kind": kind, "job_id": job_id}, output)
        return
    rows = list(
        client.items(
            "/events",
            limit=limit,
            kind=kind,
            job_id=job_id,
            since=since,
            until=until,
            audit=audit,
        )
    )
    show_rows(by_time(rows), COLUMNS, output, empty="Nothing happened.")


def by_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events, newest commit first, in order of time; those of one instant as committed."""
    as_committed = list(reversed(rows))
    return sorted(as_committed, key=lambda event: str(event["at"]))


def _follow(client: Client, query: dict[str, Any], output: Output) -> None:
    """Write events until Ctrl-C; a lost stream is resumed where it ended."""
    position = ""
    pause = threading.Event()
    while True:
        headers = {"Last-Event-ID": position} if position else {}
        try:
            with client.stream(
                "/events/stream", accept=EVENT_STREAM, timeout_s=SILENCE_S, headers=headers, **query
            ) as response:
                for last_id, _, data in read_frames(response):
                    event = json.loads(data) if data else {}
                    if "kind" in event:
                        _write(event, output)
                    position = last_id or position
        except (OSError, HTTPException):
            pass  # it ended, as one does that the server closes
        except CliError as error:
            if error.code is not Exit.UNREACHABLE or not position:
                raise
            fix = "Follow them again: `gpuplane events -f`."
            client, _ = wait_for_server("/whoami", note, what="work", fix=fix)
        pause.wait(AGAIN_S)


def _write(event: dict[str, Any], output: Output) -> None:
    if output.is_data:
        click.echo(json.dumps(event, ensure_ascii=False))
        return
    at = paint(clock_text(event["at"]), "dim")
    reason = f" {event['reason']}" if event["reason"] else ""
    click.echo(f"{at}  {event['kind']}{reason}  {event['message']}")
