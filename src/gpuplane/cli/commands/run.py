"""`gpuplane run`: show the plan, submit, stream the log, end as the job ends."""

import sys
from pathlib import Path
from typing import Any

import click

from gpuplane.cli.client import Client
from gpuplane.cli.errors import ApiError, CliError, Exit
from gpuplane.cli.following import Follower, end_code, end_line
from gpuplane.cli.jobbodies import body_of
from gpuplane.cli.joboptions import CLIENT, JOB_OPTIONS, JobOption, SectionedCommand
from gpuplane.cli.output import note, paint
from gpuplane.cli.plans import plan_lines
from gpuplane.cli.words import size_text

HELP = """Run a command as a job, stream its output, and end with its exit code.

\b
  gpuplane run -- python3 train.py
  gpuplane run --gpus 1 --gpu-model H100 --cluster demo -- python3 train.py
  gpuplane run -d --workdir . --array 10 -- ./sweep.sh

Options stand before the command; `--` ends them. The plan and the reasons of waiting go to
standard error, the job's own output goes where the job sends it.

Ctrl-C cancels the job and waits until it is over; a second Ctrl-C leaves at once, and the job is
cancelled all the same. With --on-interrupt leave the job goes on. The exit code is the job's
(128 + the signal that killed it), 1 if it ended without one, 130 after Ctrl-C."""

ARRAY_LOOK_S = 0.5


def _own_options() -> list[click.Option]:
    return [
        JobOption(["--detach", "-d"], is_flag=True, section=CLIENT,
                  help="Print the id and leave."),
        JobOption(["--dry-run"], is_flag=True, section=CLIENT,
                  help="Show the plan, submit nothing."),
        JobOption(["--quiet", "-q"], is_flag=True, section=CLIENT,
                  help="No plan and no reasons, the job's output alone."),
        JobOption(["--on-interrupt"], type=click.Choice(["cancel", "leave"]), default="cancel",
                  show_default=True, section=CLIENT, help="What Ctrl-C does to the job."),
    ]  # fmt: skip


def _run(command: tuple[str, ...], **values: Any) -> int:
    client = Client()
    if not command and not values.get("image"):
        raise click.UsageError("What should run? Write it after `--`.")
    body = body_of(client, command, values)
    quiet = values["quiet"]
    if values.get("workdir"):
        body.setdefault("spec", {})["workspace_digest"] = _send(
            client, values["workdir"], quiet=quiet
        )
    if not quiet or values["dry_run"]:
        for line in _plan(client, body):
            note(paint(line, "dim", err=True))
    if values["dry_run"]:
        return Exit.OK
    job = client.post("/jobs", body, key=values.get("idempotency_key"))
    array = job.get("array")
    if values["detach"]:
        for identity in array["job_ids"] if array else [job["id"]]:
            click.echo(identity)
        return Exit.OK
    if array:
        return _follow_array(client, job, leave=values["on_interrupt"] == "leave")
    return _follow(client, job, values)


run = SectionedCommand(
    "run",
    callback=_run,
    params=[
        *_own_options(),
        *JOB_OPTIONS,
        click.Argument(["command"], nargs=-1, type=click.UNPROCESSED),
    ],
    help=HELP,
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)


def _send(client: Client, folder: str, *, quiet: bool) -> str:
    from gpuplane.cli.snapshots import upload

    snapshot = upload(client, Path(folder).resolve())
    if not quiet:
        size = size_text(snapshot.size_bytes)
        note(paint(f"workdir: {snapshot.file_count} files, {size}", "dim", err=True))
    return snapshot.digest


def _plan(client: Client, body: dict[str, Any]) -> list[str]:
    try:
        return plan_lines(client.post("/jobs/estimate", body))
    except ApiError as error:
        if error.status < 500:
            raise
        return [f"plan: unknown ({error.message})"]


def _follow(client: Client, job: dict[str, Any], values: dict[str, Any]) -> int:
    quiet = values["quiet"]

    def say(line: str) -> None:
        if not quiet:
            click.echo(paint(f"gpuplane: {line}", "dim", err=True), err=True)

    follower = Follower(client, job, say)
    try:
        ended = follower.run()
    except KeyboardInterrupt:
        if values["on_interrupt"] == "leave":
            note(f"gpuplane: left; the job goes on: gpuplane logs -f {job['name']}")
            return Exit.INTERRUPTED
        _cancel(job)
        try:
            follower.run()
        except KeyboardInterrupt:
            note("gpuplane: left before the job was over; it is being cancelled")
        return Exit.INTERRUPTED
    sys.stdout.flush()
    line = end_line(ended)
    if line:
        note(f"gpuplane: {line}")
    return end_code(ended)


def _cancel(job: dict[str, Any]) -> None:
    note("gpuplane: cancelling the job; Ctrl-C again leaves at once")
    try:
        # A connection of its own: the other one may have been cut in the middle of an answer.
        Client().delete(f"/jobs/{job['id']}")
    except ApiError as error:
        if error.status != 409:
            raise
    except CliError as error:
        note(f"gpuplane: {error.message}")


def _follow_array(client: Client, job: dict[str, Any], *, leave: bool) -> int:
    """Wait for every job of an array and return 0 if all completed."""
    from gpuplane.cli.progress import wait_for_jobs

    identity = job["array"]["id"]

    def look() -> list[dict[str, Any]]:
        return list(client.items("/jobs", array_id=identity))

    try:
        jobs = wait_for_jobs(look, job["array"]["size"], job["name"])
    except KeyboardInterrupt:
        if not leave:
            Client().delete(f"/jobs/{job['id']}", array=True)
            note("gpuplane: the array is being cancelled")
        return Exit.INTERRUPTED
    bad = [each for each in jobs if each["status"] != "completed"]
    if bad:
        note(f"gpuplane: {len(bad)} of {len(jobs)} did not complete; `gpuplane ps -a` lists them")
    return Exit.FAILED if bad else Exit.OK
