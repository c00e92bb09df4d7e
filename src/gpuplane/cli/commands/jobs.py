"""`ps` and the noun `jobs`: list, show, attempts, artifacts, checkpoints, manifest, compare."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gpuplane.cli.client import Client, segment
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.lookups import OVER, attempt_of_now, find_job, find_job_exactly, is_uuid
from gpuplane.cli.output import (
    Column,
    Output,
    declared_option,
    note,
    output_option,
    paint_status,
    show_data,
    show_fields,
    show_one,
    show_rows,
)
from gpuplane.cli.parameters import NumberCommand
from gpuplane.cli.words import (
    age,
    clock_text,
    cost_text,
    duration_text,
    first_line,
    gpus_text,
    money_text,
    project_text,
    seconds_between,
    short_id,
    size_text,
    when,
)

NOT_AVAILABLE = "ClusterNotAvailable"
"""The reason of a job whose cluster does not answer: whether it still runs is not known."""
UNFINISHED = ("pending", "queued", "scheduled", "running", "preempted")
NOT_RUNNING = ("pending", "queued", "preempted")
"""Statuses in which `actual_start` is that of a try that is over."""
WHERE = ("url", "port")
"""Outputs that say where the latest attempt of a service was reached."""
ROWS = 200
COPY_BYTES = 1 << 20


def _time_column(job: dict[str, Any]) -> str:
    """Return how long a job's attempts ran together, or when it should start while it waits."""
    began, expected = job["actual_start"], job["estimated_start"]
    if job["status"] in NOT_RUNNING:
        is_past = began is not None and expected is not None and expected <= began
        return "" if job["condition"] == "Paused" or is_past else when(expected)
    return when(expected) if began is None else duration_text(job["ran_seconds"])


def _reason(job: dict[str, Any]) -> str:
    """Return why a job stands where it stands; of a service that runs, what does not serve."""
    if job["status"] == "running" and job["reason"] != NOT_AVAILABLE:
        wanted = job["replicas_wanted"]
        if wanted is None or job["replicas_ready"] >= wanted:
            return "no replica" if wanted == 0 else ""
        return f"{job['replicas_ready']}/{wanted} ready"
    return "" if job["status"] == "completed" else str(job["reason"])


def _replicas_column(job: dict[str, Any]) -> str:
    """Return ready and wanted replicas of a service that scales."""
    wanted = job["replicas_wanted"]
    return "" if wanted is None else f"{job['replicas_ready']}/{wanted}"


COLUMNS = (
    Column("ID", lambda job: short_id(job["id"])),
    Column("NAME", lambda job: job["name"]),
    Column("STATUS", lambda job: job["status"], status=True),
    Column("CONDITION", lambda job: job["condition"], wide=True),
    Column("REASON", _reason, spare=True),
    Column("PRIORITY", lambda job: job["priority"], spare=True),
    Column("TYPE", lambda job: job["job_type"], wide=True),
    Column("GPUS", gpus_text),
    Column("CLUSTER", lambda job: job["cluster"] or "", spare=True),
    Column("SIM", lambda job: "yes" if job["simulated"] else "", wide=True),
    Column("PROJECT", project_text, spare=True),
    Column("USER", lambda job: job["user"], wide=True),
    Column("QUEUE", lambda job: job["queue"], wide=True),
    Column("TRIES", lambda job: job["attempt_count"], wide=True, right=True),
    Column("RAN/START", _time_column, right=True),
    Column("AGE", lambda job: age(job["created_at"]), right=True, spare=True),
    Column("REPLICAS", _replicas_column, wide=True),
    Column("COST", lambda job: _cost_column(job), wide=True, right=True),
    Column("FULL ID", lambda job: job["id"], wide=True),
    Column("LABELS", lambda job: job["labels"], wide=True),
)  # fmt: skip


def _cost_column(job: dict[str, Any]) -> str:
    """Return what a job cost; lists are not told what those cost that go on."""
    return cost_text(job) if job["actual_end"] else money_text(job["actual_cost"], job["currency"])


def _list_options(function: Any) -> Any:
    for option in reversed([
        click.option("-a", "--all", "everything", is_flag=True, help="Finished ones too."),
        click.option("--status", multiple=True, help="Only these statuses; repeatable."),
        click.option("--cluster", help="Only on this cluster."),
        click.option("--priority", help="Only of this class."),
        click.option("--type", "job_type", help="Only service, batch or training."),
        click.option("--name", help="Only names that begin so."),
        click.option("-l", "--label", multiple=True, help="Only with KEY=VALUE; repeatable."),
        click.option("--queue", help="Only of CLUSTER/QUEUE."),
        click.option("--gpu-model", help="Only of this GPU model."),
        click.option("--array", help="Only of this array."),
        click.option("--sort", type=click.Choice(["created_at", "-created_at", "name", "-name"]),
                     help="Order; newest first unless given."),
        click.option("-n", "--limit", type=click.IntRange(1), default=ROWS, show_default=True,
                     help="Rows at most."),
        output_option,
    ]):  # fmt: skip
        function = option(function)
    return function


@click.command()
@_list_options
def ps(*, everything: bool, **values: Any) -> None:
    """List unfinished jobs, newest first."""
    _list(everything=everything, **values)


@click.group(cls=NearestGroup)
def jobs() -> None:
    """Jobs in detail. JOB is an id, a name, or a unique part of either."""


@jobs.command("ls")
@_list_options
def list_command(*, everything: bool, **values: Any) -> None:
    """List unfinished jobs, newest first, or all with -a."""
    _list(everything=everything, **values)


def _list(
    *,
    everything: bool,
    status: tuple[str, ...],
    gpu_model: str | None,
    array: str | None,
    limit: int,
    output: Output,
    **filters: Any,
) -> None:
    client = Client()
    wanted = status or (None if everything else UNFINISHED)
    found = client.items(
        "/jobs", limit=limit, status=wanted, gpu_type=gpu_model, array_id=array, **filters
    )
    rows = list(found)
    show_rows(rows, COLUMNS, output, empty="No jobs." if everything else "No unfinished jobs.")
    if len(rows) == limit and not output.is_data:
        note(f"Only the first {limit} are shown; -n shows more.")


@jobs.command()
@click.argument("job")
@output_option
def show(job: str, output: Output) -> None:
    """Show one job: what was asked and what became of it."""
    found = find_job(Client(), job)
    show_one(found, _fields(found), output)


def _fields(job: dict[str, Any]) -> list[tuple[str, object]]:
    attempt = attempt_of_now(job)
    waits = not attempt and job["status"] not in OVER
    nodes = sorted({each["node"] for each in attempt.get("replicas", [])})
    state = paint_status(job["status"]) + (f" ({job['condition']})" if job["condition"] else "")
    reason = f"{job['reason']} — {first_line(job['status_message'])}" if job["reason"] else ""
    urls = list(dict.fromkeys(each["url"] for each in attempt.get("replicas", []) if each["url"]))
    asked = f"{job['cpu_cores']:g} cores, {job['memory_gb']:g} GiB"
    return [
        ("name", job["name"]),
        ("id", job["id"]),
        ("status", state),
        ("reason", reason),
        ("project", f"{project_text(job)}, by {job['user']}"),
        ("cluster", f"{job['cluster'] or ''}{' (simulated)' if job['simulated'] else ''}"),
        ("nodes", nodes),
        ("url", urls),
        ("kind", f"{job['job_type']}, {job['deployment_type']}, priority {job['priority']}"),
        ("GPUs", gpus_text(job)),
        ("replicas", _replicas_text(job)),
        ("next replica", _growth_text(attempt)),
        ("each replica", asked),
        ("command", " ".join(job["spec"]["command"])),
        ("image", job["spec"]["image"]),
        ("queue", job["queue"]),
        ("labels", job["labels"]),
        ("progress", f"{job['progress']:.0%}" if job["progress"] is not None else None),
        ("created", clock_text(job["created_at"])),
        ("started", None if waits else clock_text(job["actual_start"])),
        ("ended", clock_text(job["actual_end"])),
        ("starts", when(job["estimated_start"]) if waits or not job["actual_start"] else None),
        ("deadline", clock_text(job["deadline"])),
        ("attempts", job["attempt_count"]),
        ("exit code", job["exit_code"]),
        ("cost", cost_text(job)),
        ("estimated cost", money_text(job["estimated_cost"], job["currency"])),
        ("budget", money_text(job["budget_limit"], job["currency"])),
        ("checkpoint", job["last_checkpoint"]),
        ("outputs", _own_outputs(job)),
    ]


def _own_outputs(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a job put out; of a service without where it was reached, which is told above."""
    hidden = WHERE if job["job_type"] == "service" else ()
    return {name: value for name, value in job["outputs"].items() if name not in hidden}


def _replicas_text(job: dict[str, Any]) -> str | None:
    """Return how many replicas a service that scales wants and has ready, None for others."""
    wanted = job["replicas_wanted"]
    if wanted is None:
        return None
    noun = "replica" if wanted == 1 else "replicas"
    return f"{wanted} {noun}, {job['replicas_ready']} ready"


def _growth_text(attempt: Mapping[str, Any]) -> str | None:
    """Return why the next replica that is wanted waits, None when none does."""
    found = attempt.get("scale") or {}
    # An attempt that ends keeps what was told last; nothing is missing of it any more.
    waits = found.get("reason") and found["missing"]
    return f"{found['reason']} — {found['message']}" if waits else None


@jobs.command()
@click.argument("job")
@output_option
def attempts(job: str, output: Output) -> None:
    """List a job's attempts: of a service with all nodes it was on, and GPUs it held at most."""
    client = Client()
    found = client.get(f"/jobs/{find_job(client, job)['id']}/attempts")["items"]
    columns = (
        Column("NO", lambda row: row["number"], right=True),
        Column("STATE", lambda row: row["state"], status=True),
        Column("NODES", lambda row: row["nodes"]),
        Column("GPUS", lambda row: row["most_gpus"]),
        Column("STARTED", lambda row: clock_text(row["started_at"])),
        Column("RAN", lambda row: _ran(row), right=True),
        Column("EXIT", lambda row: row["exit_code"], right=True),
        Column("REASON", lambda row: row["reason"]),
        Column("MESSAGE", lambda row: row["message"], wide=True),
        Column("LOST GPU-S", lambda row: row["lost_gpu_seconds"], wide=True, right=True),
        Column("ID", lambda row: row["id"], wide=True),
    )
    show_rows(found, columns, output, empty="It was not tried yet.")


def _ran(attempt: dict[str, Any]) -> str:
    seconds = seconds_between(attempt["started_at"], attempt["ended_at"])
    return "" if seconds is None else duration_text(seconds)


@jobs.command()
@click.argument("job")
@click.option("--to", type=click.Path(file_okay=False), help="Fetch them into this folder.")
@output_option
def artifacts(job: str, to: str | None, output: Output) -> None:
    """List the artifacts of a job that is over, or fetch them with --to."""
    client = Client()
    found = find_job(client, job)
    rows = client.get(f"/jobs/{found['id']}/artifacts")["items"]
    if to is None:
        columns = (
            Column("PATH", lambda row: row["path"]),
            Column("SIZE", lambda row: size_text(row["size_bytes"]), right=True),
        )
        show_rows(rows, columns, output, empty="It left no artifacts.")
        return
    from gpuplane.cli.progress import track

    folder = Path(to).resolve()
    for row in track(rows, len(rows), "artifacts"):
        _fetch(client, found["id"], row["path"], folder)


def _fetch(client: Client, job_id: str, path: str, folder: Path) -> None:
    target = (folder / path).resolve()
    if not target.is_relative_to(folder):
        raise CliError(f"The artifact {path!r} would lie outside {folder}.", code=Exit.REFUSED)
    target.parent.mkdir(parents=True, exist_ok=True)
    address = f"/jobs/{job_id}/artifacts/" + "/".join(segment(part) for part in path.split("/"))
    draft = target.with_name(f".{target.name}.part")
    with (
        client.stream(address, accept="*/*", timeout_s=60.0, headers={}) as response,
        draft.open("wb") as file,
    ):
        shutil.copyfileobj(response, file, COPY_BYTES)
        missing = response.length
    if missing:
        draft.unlink()
        raise CliError(f"{path} came with {missing} bytes missing.", fix="Fetch it again.")
    draft.replace(target)


@jobs.command()
@click.argument("job")
@output_option
def checkpoints(job: str, output: Output) -> None:
    """List the checkpoints a job keeps, newest first."""
    client = Client()
    rows = client.get(f"/jobs/{find_job(client, job)['id']}/checkpoints")["items"]
    columns = (
        Column("AT", lambda row: clock_text(row["at"])),
        Column("PROGRESS", lambda row: "" if row["progress"] is None else f"{row['progress']:.0%}",
               right=True),
        Column("PATH", lambda row: row["path"]),
    )  # fmt: skip
    show_rows(rows, columns, output, empty="It wrote no checkpoint.")


@jobs.command()
@click.argument("job")
@declared_option
def manifest(job: str, output: Output) -> None:
    """Show what would be needed to run a job again (names of variables, never values)."""
    client = Client()
    found = client.get(f"/jobs/{find_job(client, job)['id']}/reproducibility-manifest")
    show_one(found["manifest"], _manifest_fields(found["manifest"], output), output)


def _manifest_fields(manifest: dict[str, Any], output: Output) -> list[tuple[str, object]]:
    versions, devices = manifest["versions"], manifest["devices"]
    fields: list[tuple[str, object]] = [
        ("captured", clock_text(manifest["captured_at"])),
        ("attempt", manifest["attempt"]),
        ("image", "@".join(filter(None, (manifest["image"], manifest["image_digest"])))),
        ("command", " ".join(manifest["command"])),
        ("variables", manifest["environment_names"]),
        ("secrets", manifest["secret_names"]),
        ("working directory", manifest["workspace_digest"]),
        ("seed", manifest["seed"]),
        ("GPUs", ", ".join(sorted({each["model"] for each in devices}))),
        ("versions", versions),
    ]
    if output is Output.WIDE:
        fields += [
            ("nodes", manifest["nodes"]),
            ("devices", "\n".join(f"{each['gpu_id']}  {each['model']}" for each in devices)),
            ("each replica", manifest["resources"]),
            ("replicas", manifest["replicas"]),
            ("resumed from", manifest["resumed_from"]),
        ]
    return fields


@jobs.command()
@click.argument("jobs", nargs=-1, required=True)
@output_option
def compare(jobs: tuple[str, ...], output: Output) -> None:
    """Show what differs between jobs."""
    client = Client()
    ids = [key if is_uuid(key) else find_job(client, key)["id"] for key in jobs]
    found = client.get("/jobs/compare", ids=",".join(ids))
    if output.is_data:
        show_data(found, output)
        return
    titles = [job["name"] for job in found["jobs"]]
    columns = [Column("FIELD", lambda row: row["field"])]
    columns += [
        Column(title, lambda row, at=at: row["values"][at])  # type: ignore[misc]  # at is bound now
        for at, title in enumerate(titles)
    ]
    show_rows(found["differences"], columns, output, empty="They do not differ.")


@jobs.command()
@click.argument("job")
@output_option
def schedule(job: str, output: Output) -> None:
    """Show when a job is expected to run, or ran."""
    client = Client()
    found = client.get(f"/jobs/{find_job(client, job)['id']}/schedule")
    if output.is_data:
        show_data(found, output)
        return
    show_fields(
        [
            ("status", paint_status(found["status"])),
            ("cluster", found["cluster"]),
            ("position", found["position"]),
            ("not before", clock_text(found["scheduled_start"])),
            ("starts", when(found["estimated_start"])),
            ("ends", when(found["estimated_end"])),
            ("started", clock_text(found["actual_start"])),
            ("ended", clock_text(found["actual_end"])),
            ("deadline", clock_text(found["deadline"])),
            ("meets its deadline", found["meets_deadline"]),
            ("because", "\n".join(found["explanation"])),
        ]
    )


@jobs.command()
@click.argument("job")
@click.argument("priority", type=click.Choice(["critical", "high", "normal", "low", "spot"]))
def priority(job: str, priority: str) -> None:
    """Give a job another priority class."""
    client = Client()
    key = find_job_exactly(client, job)["id"]
    found = client.put(f"/jobs/{key}/priority", {"priority": priority})
    click.echo(f"{found['name']} has priority {found['priority']}")


@jobs.command(cls=NumberCommand)
@click.argument("job")
@click.argument("replicas", type=click.IntRange(0))
def scale(job: str, replicas: int) -> None:
    """Give a running service another number of replicas."""
    client = Client()
    key = find_job_exactly(client, job)["id"]
    found = client.put(f"/jobs/{key}/scale", {"replicas": replicas})
    click.echo(f"{found['name']} is to have {_replicas_text(found)}")


@jobs.command()
@click.argument("job")
@click.option("--reason", default="", help="Why, for the events.")
@click.option("--grace", type=click.IntRange(0), help="Seconds between SIGTERM and SIGKILL.")
def preempt(job: str, reason: str, grace: int | None) -> None:
    """Stop a running job as if a higher one needed its GPUs; it stands in line again."""
    client = Client()
    body = {"reason": reason} | ({} if grace is None else {"grace_s": grace})
    found = client.post(f"/jobs/{find_job_exactly(client, job)['id']}/preempt", body)
    condition = f" ({found['condition']})" if found["condition"] else ""
    click.echo(f"{found['name']} {found['status']}{condition}")
