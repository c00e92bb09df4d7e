"""What is done to jobs that exist: cancel, retry, suspend, resume, exec."""

import sys
from collections.abc import Callable
from typing import Any

import click

from gpuplane.cli.client import Client
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.lookups import find_job_exactly
from gpuplane.cli.output import note

Act = Callable[[Client, dict[str, Any]], dict[str, Any]]
WAIT_S = 0.2


@click.command()
@click.argument("jobs", nargs=-1, required=True)
@click.option("--array", is_flag=True, help="Every job of its array.")
@click.option("--wait", is_flag=True, help="Come back once they are over.")
def cancel(jobs: tuple[str, ...], *, array: bool, wait: bool) -> int:
    """Stop jobs for good: SIGTERM, then SIGKILL after their grace period."""

    def act(client: Client, job: dict[str, Any]) -> dict[str, Any]:
        done: dict[str, Any] = client.delete(f"/jobs/{job['id']}", array=array or None)
        return _wait(client, done) if wait else done

    return _each(jobs, act)


@click.command()
@click.argument("jobs", nargs=-1, required=True)
def retry(jobs: tuple[str, ...]) -> int:
    """Try failed or cancelled jobs again; their retries start anew."""
    return _each(jobs, lambda client, job: client.post(f"/jobs/{job['id']}/retry"))


@click.command()
@click.argument("jobs", nargs=-1, required=True)
@click.option("--reason", default="", help="Why, for the events.")
def suspend(jobs: tuple[str, ...], reason: str) -> int:
    """Hold jobs back until they are resumed; what runs is stopped."""
    body = {"reason": reason}
    return _each(jobs, lambda client, job: client.post(f"/jobs/{job['id']}/suspend", body))


@click.command()
@click.argument("jobs", nargs=-1, required=True)
def resume(jobs: tuple[str, ...]) -> int:
    """Let suspended jobs stand in line again."""
    return _each(jobs, lambda client, job: client.post(f"/jobs/{job['id']}/resume"))


@click.command(
    "exec", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
@click.argument("job")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--rank", type=click.IntRange(0), default=0, help="Beside this replica.")
@click.option("-i", "--stdin", "sends_input", is_flag=True, help="Send standard input.")
@click.option("--timeout", type=click.FloatRange(0.1, 300), default=30.0, show_default=True,
              help="Seconds.")  # fmt: skip
def exec_(
    job: str, command: tuple[str, ...], rank: int, timeout: float, *, sends_input: bool
) -> int:
    """Run a command beside a running job, in its folder and environment, and end as it ends."""
    client = Client()
    found = find_job_exactly(client, job)
    words = list(command[1:] if command[0] == "--" else command)
    if not words:
        raise click.UsageError("What should run? Write it after the job.")
    body = {
        "command": words,
        "rank": rank,
        "timeout_s": timeout,
        "stdin": sys.stdin.read() if sends_input else "",
    }
    result = client.post(f"/jobs/{found['id']}/exec", body)
    sys.stdout.write(result["stdout"])
    sys.stdout.flush()
    sys.stderr.write(result["stderr"])
    return int(result["exit_code"])


def _each(keys: tuple[str, ...], act: Act) -> int:
    """Do something to each job; one that is refused does not keep the others from it."""
    client, code = Client(), int(Exit.OK)
    for key in keys:
        try:
            job = act(client, find_job_exactly(client, key))
        except CliError as error:
            if len(keys) == 1:
                raise
            error.show()
            code = code or error.exit_code
            continue
        condition = f" ({job['condition']})" if job["condition"] else ""
        click.echo(f"{job['name']} {job['status']}{condition}")
    return code


def _wait(client: Client, job: dict[str, Any]) -> dict[str, Any]:
    import threading

    pause = threading.Event()
    while job["status"] not in ("completed", "failed", "cancelled"):
        pause.wait(WAIT_S)
        job = client.get(f"/jobs/{job['id']}")
    note(f"{job['name']} is over")
    return job
