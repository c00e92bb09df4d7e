"""Pipelines: saved, run with a drawing of their steps, compared, rolled back, exported."""

import json
from pathlib import Path
from typing import Any

import click

from gpuplane.cli.asking import YES, confirm
from gpuplane.cli.client import Client
from gpuplane.cli.commands.identity import project_id
from gpuplane.cli.commands.pipeline_import import import_pipeline
from gpuplane.cli.commands.pipeline_steering import COMMANDS, find_run
from gpuplane.cli.errors import ApiError, CliError, Exit
from gpuplane.cli.files import read_named
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.lookups import find_exactly
from gpuplane.cli.output import Column, Output, note, output_option, show_data, show_one, show_rows
from gpuplane.cli.parameters import PAIR, NumberCommand, parse_value
from gpuplane.cli.runviews import RunFollower, draw_steps, load_steps
from gpuplane.cli.words import age, clock_text, duration_text, seconds_between
from gpuplane.kit.yaml_texts import UnreadableYaml, load_documents

MAX_BYTES = 8 << 20
PROJECT = click.option("-p", "--project", help="Its project; yours unless given.")
KIND = "Pipeline"
FILES = (".yaml", ".yml", ".json")
"""Ends of files; no name of a pipeline has a dot."""


@click.group(cls=NearestGroup)
def pipelines() -> None:
    """Pipelines and their runs. PIPELINE is a name or an id, RUN an id or the end of one.

    What steers a run takes 8 or more characters of its end.
    """


for each in (import_pipeline, *COMMANDS):
    pipelines.add_command(each)


def read_file(path: str) -> list[dict[str, Any]]:
    """Return the pipelines of a file (YAML or JSON), `-` for standard input.

    Raises:
        CliError: If it cannot be read or holds something else.
    """
    text = read_named(path)
    if len(text) > MAX_BYTES:
        raise CliError(f"{path} is longer than {MAX_BYTES} bytes.", code=Exit.USAGE)
    try:
        found = [each for each in load_documents(text) if each is not None]
    except UnreadableYaml as error:
        raise CliError(f"{path}: {error}", code=Exit.USAGE) from error
    for each in found:
        is_ours = isinstance(each, dict) and (each.get("kind") == KIND or "pipeline" in each)
        if not is_ours:
            raise CliError(
                f"{path} holds something that is no pipeline.",
                fix="Its kind is Pipeline; files of other systems go through `pipelines import`.",
                code=Exit.USAGE,
            )
    if not found:
        raise CliError(f"{path} holds no pipeline.", code=Exit.USAGE)
    return found


def _query(client: Client, project: str | None) -> str:
    place = project_id(client, project or client.target.project)
    return "" if place is None else f"?project={place}"


def _save(client: Client, path: str, project: str | None) -> list[dict[str, Any]]:
    query = _query(client, project)
    saved = []
    for document in read_file(path):
        found = client.put(f"/pipelines{query}", document)
        word = "unchanged" if not found["changed"] else "created" if found["created"] else "changed"
        note(f"{found['pipeline']['name']} {word}, version {found['version']}")
        saved.append(found["pipeline"])
    return saved


@pipelines.command("apply")
@click.argument("file")
@click.option("--dry-run", is_flag=True, help="Check it and show what would change.")
@PROJECT
@output_option
def apply_pipeline(file: str, project: str | None, output: Output, *, dry_run: bool) -> None:
    """Save the pipelines of a file: new ones, or new versions where anything changed."""
    client = Client()
    if not dry_run:
        saved = _save(client, file, project)
        if output.is_data:
            show_data(saved, output)
        return
    query = _query(client, project)
    checked = [client.post(f"/pipelines/check{query}", each) for each in read_file(file)]
    if output.is_data:
        show_data(checked, output)
        return
    for each in checked:
        word = "would be created" if each["would_create"] else f"{len(each['changes'])} changes"
        click.echo(f"{each['name']}: {each['step_count']} steps, {word}")
        _show_changes(each["changes"])


def _show_changes(changes: list[dict[str, Any]]) -> None:
    signs = {"added": "+", "removed": "-", "changed": "~"}
    for each in changes:
        old, new = (json.dumps(each[key], ensure_ascii=False)[:80] for key in ("old", "new"))
        told = {"added": new, "removed": old}.get(each["kind"], f"{old} → {new}")
        click.echo(f"  {signs[each['kind']]} {each['path']}: {told}")


@pipelines.command("run")
@click.argument("pipeline")
@click.option("-P", "--param", "params", multiple=True, type=PAIR, metavar="NAME=VALUE",
              help="A parameter; VALUE is JSON or else text.")  # fmt: skip
@click.option("--version", type=click.IntRange(1), help="An earlier version.")
@click.option(
    "--dedup-id", help="At most one run of the project has it; the run that has it is followed."
)
@click.option("-d", "--detach", is_flag=True, help="Start it and do not wait for its end.")
@PROJECT
@output_option
def run_pipeline(
    pipeline: str,
    params: tuple[tuple[str, str], ...],
    version: int | None,
    dedup_id: str | None,
    project: str | None,
    output: Output,
    *,
    detach: bool,
) -> None:
    """Run a pipeline and draw its steps until it is over; ends with 1 if it failed.

    PIPELINE is a name, an id, or a file, which is saved first.
    """
    client = Client()
    found = _meant(client, pipeline, project)
    body: dict[str, Any] = {"parameters": _values(client, found, version, params)}
    body |= {} if version is None else {"version": version}
    body |= {} if dedup_id is None else {"dedup_id": dedup_id}
    run = client.post(f"/pipelines/{found['id']}/runs", body)
    if not detach:
        follower = RunFollower(client, run["id"])
        run, client = follower.follow(), follower.client
    _show_run(client, run, output, is_over=not detach)
    if not detach and run["status"] != "completed":
        raise SystemExit(Exit.FAILED)


def _values(
    client: Client, found: dict[str, Any], version: int | None, params: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    """Return parameters as JSON; the text itself where the pipeline declares a string."""
    values = {name: parse_value(text) for name, text in params}
    if all(isinstance(value, str) for value in values.values()):
        return values
    number = version or found["version"]
    kept = client.get(f"/pipelines/{found['id']}/versions/{number}")
    declared = kept["document"].get("spec", {}).get("parameters") or {}
    for name, text in params:
        part = declared.get(name)
        kind = part.get("type") if isinstance(part, dict) else None
        if str(kind).lower() == "string" and not isinstance(values[name], str):
            values[name] = text
    return values


def _meant(client: Client, key: str, project: str | None) -> dict[str, Any]:
    if key == "-" or Path(key).is_file():
        saved = _save(client, key, project)
        if len(saved) > 1:
            raise CliError(f"{key} holds several pipelines.", fix="Name one.", code=Exit.USAGE)
        return saved[0]
    if key.lower().endswith(FILES):
        raise CliError(
            f"There is no file {key}.",
            fix="Give its path, or the name or id of a pipeline.",
            code=Exit.USAGE,
        )
    return _find(client, key, project)


def _find(client: Client, key: str, project: str | None) -> dict[str, Any]:
    place = project_id(client, project or client.target.project)
    return find_exactly(client, "/pipelines", key, "pipeline", project_id=place)


def _show_run(client: Client, run: dict[str, Any], output: Output, *, is_over: bool) -> None:
    outputs = _outputs(client, run["id"]) if is_over else None
    if output.is_data:
        show_data({**run, "outputs": outputs}, output)
        return
    if not is_over:
        click.echo(run["id"])
        return
    took = seconds_between(run["started_at"], run["ended_at"])
    why = f": {run['message']}" if run["message"] else ""
    note(f"{run['id']} {run['status']} in {duration_text(took or 0)}{why}")
    for name, value in (outputs or {}).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        click.echo(f"{name}: {text}")


def _outputs(client: Client, run_id: str) -> dict[str, Any] | None:
    found = client.find(f"/runs/{run_id}/steps/pipeline-outputs")
    value = None if found is None else found["output"]
    return value if isinstance(value, dict) else None


@pipelines.command("ls")
@PROJECT
@output_option
def list_pipelines(project: str | None, output: Output) -> None:
    """List pipelines."""
    client = Client()
    place = project_id(client, project or client.target.project)
    columns = (
        Column("NAME", lambda row: row["name"]),
        Column("STATUS", lambda row: row["status"], status=True),
        Column("VERSION", lambda row: row["version"], right=True),
        Column("STEPS", lambda row: row["step_count"], right=True),
        Column("CHANGED", lambda row: clock_text(row["updated_at"])),
        Column("BY", lambda row: row["created_by"], wide=True),
        Column("ID", lambda row: row["id"], wide=True),
    )
    show_rows(client.items("/pipelines", project_id=place), columns, output)


@pipelines.command("runs")
@click.argument("pipeline", required=False)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 10_000),
    default=30,
    show_default=True,
    help="Rows at most.",
)
@PROJECT
@output_option
def list_runs(pipeline: str | None, limit: int, project: str | None, output: Output) -> None:
    """List runs, newest first: of one pipeline, or of all."""
    client = Client()
    path, query = "/runs", {"kind": "pipeline"}
    if pipeline is not None:
        path, query = f"/pipelines/{_find(client, pipeline, project)['id']}/runs", {}
    columns = (
        Column("ID", lambda row: row["id"]),
        Column("PIPELINE", lambda row: row["name"]),
        Column("VERSION", lambda row: row["source_version"], right=True),
        Column("STATUS", lambda row: row["status"], status=True),
        Column("STEPS", lambda row: f"{row['step_count'] - row['left']}/{row['step_count']}"),
        Column("TRIGGER", lambda row: row["trigger"]),
        Column("AGE", lambda row: age(row["created_at"]), right=True),
        Column("TOOK", lambda row: _took(row), right=True),
        Column("WHY", lambda row: row["message"], wide=True),
    )
    show_rows(client.items(path, limit, **query), columns, output)


def _took(row: dict[str, Any]) -> str:
    took = seconds_between(row["started_at"], row["ended_at"])
    return "" if took is None else duration_text(took)


@pipelines.command("show")
@click.argument("what")
@PROJECT
@output_option
def show(what: str, project: str | None, output: Output) -> None:
    """Show a pipeline, or a run with its steps. WHAT is the name or id of either."""
    client = Client()
    run = _find_run_or_none(client, what)
    if run is None:
        _show_pipeline(client, _find(client, what, project), output)
        return
    steps = load_steps(client, run["id"])
    if output.is_data:
        show_data({**run, "steps": steps}, output)
        return
    fields = [
        ("run", run["id"]),
        ("pipeline", f"{run['name']} version {run['source_version']}"),
        ("status", run["status"]),
        ("why", run["message"]),
        ("trigger", run["trigger"]),
        ("started", clock_text(run["started_at"])),
        ("took", _took(run)),
        ("parameters", json.dumps(run["params"], ensure_ascii=False)),
    ]
    show_one(run, fields, output)
    for line in draw_steps(steps):
        click.echo(line)


def _find_run_or_none(client: Client, key: str) -> dict[str, Any] | None:
    try:
        return find_run(client, key)
    except ApiError as error:
        if error.status != 404:
            raise
    except CliError as error:
        if error.code is not Exit.NOT_FOUND:
            raise
    return None


def _show_pipeline(client: Client, found: dict[str, Any], output: Output) -> None:
    whole = client.get(f"/pipelines/{found['id']}")
    if output.is_data:
        show_data(whole, output)
        return
    spec = whole["document"].get("spec", {})
    fields = [
        ("name", whole["name"]),
        ("id", whole["id"]),
        ("status", whole["status"]),
        ("version", whole["version"]),
        ("about", spec.get("description", "")),
        ("parameters", ", ".join(spec.get("parameters") or {})),
        ("changed", clock_text(whole["updated_at"])),
    ]
    show_one(whole, fields, output)
    for step in spec.get("steps", []):
        after = ", ".join(step.get("depends_on") or [])
        kind = str(step["step_type"]).lower()
        click.echo(f"  {step['id']}  {kind}{f'  after {after}' if after else ''}")
    for each in whole["triggers"]:
        when = f", next {clock_text(each['due_at'])}" if each["due_at"] else ""
        where = f", POST {each['path']}" if each["path"] else ""
        click.echo(f"  trigger {each['kind']}{when}{where}  {each['problem']}".rstrip())


@pipelines.command("versions")
@click.argument("pipeline")
@PROJECT
@output_option
def versions(pipeline: str, project: str | None, output: Output) -> None:
    """List the versions of a pipeline, newest first."""
    client = Client()
    columns = (
        Column("VERSION", lambda row: row["number"], right=True),
        Column("STEPS", lambda row: row["step_count"], right=True),
        Column("SAVED", lambda row: clock_text(row["created_at"])),
        Column("BY", lambda row: row["created_by"]),
        Column("CONTENT OF", lambda row: row["rolled_back_from"] or ""),
        Column("DIGEST", lambda row: row["digest"], wide=True),
    )
    found = _find(client, pipeline, project)
    show_rows(client.items(f"/pipelines/{found['id']}/versions"), columns, output)


@pipelines.command("diff", cls=NumberCommand)
@click.argument("pipeline")
@click.argument("old", type=click.IntRange(1))
@click.argument("new", type=click.IntRange(1))
@PROJECT
@output_option
def diff(pipeline: str, old: int, new: int, project: str | None, output: Output) -> None:
    """Show what differs between two versions."""
    client = Client()
    found = _find(client, pipeline, project)
    told = client.get(f"/pipelines/{found['id']}/diff", old=old, new=new)
    if output.is_data:
        show_data(told, output)
    else:
        _show_changes(told["changes"])


@pipelines.command("rollback", cls=NumberCommand)
@click.argument("pipeline")
@click.argument("version", type=click.IntRange(1))
@PROJECT
def rollback(pipeline: str, version: int, project: str | None) -> None:
    """Make an old version's content the newest, as a version of its own."""
    client = Client()
    found = _find(client, pipeline, project)
    saved = client.post(f"/pipelines/{found['id']}/rollback?version={version}")
    click.echo(f"{found['name']} has version {saved['version']}, the content of {version}")


@pipelines.command("export")
@click.argument("pipeline")
@click.option("--version", type=click.IntRange(1), help="An earlier version.")
@PROJECT
def export(pipeline: str, version: int | None, project: str | None) -> None:
    """Print a pipeline as YAML, without values that look secret."""
    client = Client()
    found = _find(client, pipeline, project)
    click.echo(client.get(f"/pipelines/{found['id']}/export", version=version), nl=False)


@pipelines.command("archive")
@click.argument("pipeline")
@PROJECT
def archive(pipeline: str, project: str | None) -> None:
    """Let a pipeline start no more runs."""
    _keep_as("archive", pipeline, project)


@pipelines.command("restore")
@click.argument("pipeline")
@PROJECT
def restore(pipeline: str, project: str | None) -> None:
    """Let an archived pipeline start runs again."""
    _keep_as("restore", pipeline, project)


def _keep_as(verb: str, pipeline: str, project: str | None) -> None:
    client = Client()
    found = client.post(f"/pipelines/{_find(client, pipeline, project)['id']}/{verb}")
    click.echo(f"{found['name']} {found['status']}")


@pipelines.command("rm")
@click.argument("pipeline")
@PROJECT
@YES
def delete(pipeline: str, project: str | None, *, yes: bool) -> None:
    """Delete a pipeline with its versions; refused while runs of it are not over."""
    client = Client()
    found = _find(client, pipeline, project)
    confirm(f"Delete pipeline {found['name']}?", yes=yes)
    client.delete(f"/pipelines/{found['id']}")
    click.echo(f"{found['name']} deleted")
