"""`gpuplane apply`: show what manifests would change, ask, make it so; again changes nothing."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from gpuplane.cli.asking import YES, confirm
from gpuplane.cli.client import Client, segment
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.files import unreadable
from gpuplane.cli.kinds.changes import Action, Change, narrowed, texts_of
from gpuplane.cli.kinds.jobs import check_after, plan_job
from gpuplane.cli.kinds.money import plan_price, plan_reservation
from gpuplane.cli.kinds.pipelines import plan_pipeline
from gpuplane.cli.kinds.places import plan_project, plan_tenant
from gpuplane.cli.kinds.queues import (
    plan_cluster_queue,
    plan_cohort,
    plan_local_queue,
    plan_topology,
)
from gpuplane.cli.lookups import is_uuid
from gpuplane.cli.manifests import Document, read_documents
from gpuplane.cli.output import Output, note, paint, show_data

Planner = Callable[[Client, Document, Sequence[Document]], Change]

KINDS: dict[str, Planner] = {
    "Tenant": plan_tenant,
    "Project": plan_project,
    "Price": plan_price,
    "Topology": plan_topology,
    "ClusterQueue": plan_cluster_queue,
    "Cohort": plan_cohort,
    "LocalQueue": plan_local_queue,
    "Reservation": plan_reservation,
    "Pipeline": plan_pipeline,
    "Job": plan_job,
}
"""In the order in which they are made: what comes later may name what comes before."""

SIGNS = {
    Action.CREATE: ("+", "green"),
    Action.CHANGE: ("~", "yellow"),
    Action.REPLACE: ("±", "magenta"),
    Action.UNCHANGED: (" ", "dim"),
}


@click.command()
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="A file of YAML documents, a folder of such files, or - for standard input.",
)
@YES
@click.option("--dry-run", is_flag=True, help="Show the difference and leave.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text",
              show_default=True, help="How the changes are shown.")  # fmt: skip
def apply(files: tuple[str, ...], output: str, *, yes: bool, dry_run: bool) -> int:
    """Make things so as manifests say: show the difference, ask, carry it out.

    Applying the same again changes nothing. Each thing is changed by itself: if one is refused,
    those before it stay changed, and applying again goes on from there.
    """
    client = Client()
    documents = [document for file in files for document in _read(file)]
    if not documents:
        raise CliError("There is no manifest in it.", field=", ".join(files), code=Exit.USAGE)
    order = list(KINDS)
    documents.sort(key=lambda document: order.index(document.kind))
    # Tenants and projects may be made by the same file, so the plan of what needs them waits.
    changes = [_plan(client, document, documents) for document in documents]
    pending = [change for change in changes if change.action is not Action.UNCHANGED]
    if output == "text":
        _show(changes)
    if not pending:
        if output != "text":
            show_data({"items": [_data(change, "") for change in changes]}, Output(output))
        return Exit.OK
    if dry_run:
        if output != "text":
            show_data({"items": [_data(change, "") for change in changes]}, Output(output))
        return Exit.OK
    count = len(pending)
    confirm(f"Apply {count} change{'s' if count > 1 else ''}?", yes=yes)
    results = _carry_out(changes, speaks=output == "text")
    if output != "text":
        items = [_data(change, told) for change, told in zip(changes, results, strict=True)]
        show_data({"items": items}, Output(output))
    return Exit.OK


def _plan(client: Client, document: Document, documents: Sequence[Document]) -> Change:
    missing = _made_here(client, document, documents)
    if missing is not None:
        # It can be planned only once that is there, and then it is surely new.
        planner = KINDS[document.kind]
        if document.kind == "Job":
            is_new = missing.kind != "LocalQueue"
            check_after(client, document, documents, is_project_new=is_new)
        return Change(document, Action.CREATE, (),
                      lambda: planner(client, document, documents).carry_out(),
                      [f"in {missing.kind} {missing.name}, which is made first"])  # fmt: skip
    return KINDS[document.kind](client, document, documents)


def _made_here(
    client: Client, document: Document, documents: Sequence[Document]
) -> Document | None:
    """Return what a document needs and these manifests make first: its tenant, project or queue."""
    if document.kind in ("Tenant", "Project", "Price", "Topology", "Cohort", "ClusterQueue"):
        return None
    tenant = document.metadata.get("tenant")
    made = _of_kind(documents, "Tenant", tenant)
    if made is not None and all(row["name"] != tenant for row in client.items("/tenants")):
        return made
    project = document.metadata.get("project")
    made = _in_tenant_of(client, document, _all_of(documents, "Project", project))
    if made is not None:
        rows = client.items("/projects", tenant_id=_tenant_id(client, document))
        if all(row["name"] != project for row in rows):
            return made
    if document.kind != "Job":
        return None
    queue, cluster = document.spec.get("queue"), document.spec.get("cluster")
    doors = _all_of(documents, "LocalQueue", queue)
    if cluster is not None:
        doors = [each for each in doors if each.metadata.get("cluster") == cluster]
    made = _in_tenant_of(client, document, doors)
    if made is not None:
        path = f"/clusters/{segment(made.metadata.get('cluster'))}/queues"
        tenant_id = _tenant_id(client, document)
        if all((r["name"], r["tenantId"]) != (queue, tenant_id) for r in client.rows(path)):
            return made
    return None


def _all_of(documents: Sequence[Document], kind: str, name: Any) -> list[Document]:
    return [each for each in documents if each.kind == kind and each.name == name]


def _of_kind(documents: Sequence[Document], kind: str, name: Any) -> Document | None:
    return next(iter(_all_of(documents, kind, name)), None)


def _in_tenant_of(
    client: Client, document: Document, others: Sequence[Document]
) -> Document | None:
    """Return the first of some documents that lies in the same tenant as another document."""
    if not others:
        return None
    tenant = _tenant_id(client, document)
    return next((each for each in others if _tenant_id(client, each) == tenant), None)


def _tenant_id(client: Client, document: Document) -> str:
    """Return the id of the tenant a document lies in: the one it names, else the caller's own.

    A tenant that is not there stands under its name.
    """
    named = document.metadata.get("tenant") or document.spec.get("tenant_id")
    if named is None:
        return str(client.get("/whoami")["tenant_id"])
    if is_uuid(str(named)):
        return str(named)
    found = next((row for row in client.items("/tenants") if row["name"] == named), None)
    return str(named if found is None else found["id"])


def _read(file: str) -> list[Document]:
    kinds = list(KINDS)
    if file == "-":
        return read_documents(_text(sys.stdin.buffer.read(), "stdin"), "stdin", Path.cwd(), kinds)
    path = Path(file)
    if path.is_dir():
        inside = sorted(each for each in path.iterdir() if each.suffix in (".yaml", ".yml"))
        return [document for each in inside for document in _read(str(each))]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error
    return read_documents(_text(data, file), file, path.resolve().parent, kinds)


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise unreadable(source, error) from error


def _show(changes: Sequence[Change]) -> None:
    for change in changes:
        sign, style = SIGNS[change.action]
        document = change.document
        where = f" in {change.elsewhere}" if change.elsewhere else ""
        click.echo(paint(f"{sign} {document.kind} {document.name}{where}: {change.action}", style))
        for each in change.differences:
            for part in narrowed(each):
                old, new = texts_of(part)
                click.echo(f"    {part.field}: {paint(old, 'red')} → {paint(new, 'green')}")
        for line in change.notes:
            click.echo(paint(f"    {line}", "dim"))
    counts = {action: sum(each.action is action for each in changes) for action in Action}
    words = (f"{count} to {action}" if action is not Action.UNCHANGED else f"{count} unchanged"
             for action, count in counts.items() if count)  # fmt: skip
    click.echo(", ".join(words))


def _carry_out(changes: Sequence[Change], *, speaks: bool) -> list[str]:
    told: list[str] = []
    total = sum(change.action is not Action.UNCHANGED for change in changes)
    for change in changes:
        if change.action is Action.UNCHANGED:
            told.append("")
            continue
        try:
            result = change.carry_out()
        except CliError as error:
            _place(change.document, error)
            done = sum(map(bool, told))
            note(f"gpuplane: {done} of {total} changes were made before this one was refused; "
                 "once it is mended, applying again goes on from there"
                 if done else f"gpuplane: none of {total} changes was made")  # fmt: skip
            raise
        told.append(result)
        if speaks:
            click.echo(f"{change.document.kind} {change.document.name}: {result}")
    return told


def _place(document: Document, error: CliError) -> None:
    """Let an error name the document that it is about."""
    if not error.field.startswith(document.place):
        field = f", spec.{error.field}" if error.field else ""
        error.field = f"{document.place}, {document.kind} {document.name}{field}"


def _data(change: Change, result: str) -> dict[str, Any]:
    return {
        "kind": change.document.kind,
        "name": change.document.name,
        "elsewhere": change.elsewhere,
        "action": str(change.action),
        "differences": [
            {"field": each.field, "old": each.old, "new": each.new} for each in change.differences
        ],
        "notes": list(change.notes),
        "result": result,
    }
