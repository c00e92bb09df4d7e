"""`pipelines import`: a file of another system as a pipeline, or why it cannot be one.

The translation happens here, without a server; only saving what came out asks one.
"""

from pathlib import Path
from typing import Any

import click

from gpuplane.cli.client import Client
from gpuplane.cli.commands.identity import project_id
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.files import read_named, unwritable
from gpuplane.cli.output import Column, Output, note, output_option, show_data, show_rows
from gpuplane.core.imports.importing import import_documents
from gpuplane.core.imports.kfp.spec import is_kubeflow
from gpuplane.core.imports.results import Containers, ImportResult, SourceKind, Verdict
from gpuplane.kit.yaml_texts import UnreadableYaml, load_documents

KIND = "Pipeline"
COLUMNS = (
    Column("PLACE", lambda row: row["place"]),
    Column("FEATURE", lambda row: row["feature"]),
    Column("VERDICT", lambda row: row["verdict"]),
    Column("REASON", lambda row: row["reason"]),
)


@click.command("import")
@click.argument("file")
@click.option(
    "--with",
    "others",
    multiple=True,
    metavar="FILE",
    help="A file with templates or config maps that FILE refers to; repeatable.",
)
@click.option(
    "--containers",
    type=click.Choice([each.value for each in Containers]),
    default=Containers.DOCKER.value,
    show_default=True,
    help="Containers stay containers, or become processes of the machine itself.",
)
@click.option("--name", help="Another name for the pipeline.")
@click.option("--dry-run", is_flag=True, help="Show the table of features and save nothing.")
@click.option("--write", metavar="FILE", help="Write the pipeline's manifest, `-` to show it.")
@click.option("-p", "--project", help="Its project; yours unless given.")
@output_option
def import_pipeline(
    file: str,
    others: tuple[str, ...],
    containers: str,
    name: str | None,
    write: str | None,
    project: str | None,
    output: Output,
    *,
    dry_run: bool,
) -> None:
    """Import a compiled Kubeflow pipeline or an Argo workflow as a pipeline.

    What `pipelines export` printed is saved as it stands. Of other systems each feature of FILE
    is mapped, left out or refused, with a reason; a file with a refused one is not imported, and
    the command ends with 4.
    """
    documents = _documents(file)
    found = (
        _ours(documents, file)
        if documents and is_ours(documents[0])
        else import_documents(
            documents, Containers(containers), [part for each in others for part in
                                                _documents(each)],
        )
    )  # fmt: skip
    document = _renamed(found, name)
    if dry_run or document is None:
        _show(found, document, file, output)
        if document is None:
            raise SystemExit(Exit.REFUSED)
        return
    if write is not None:
        _write(document, write)
        return
    client = Client()
    place = project_id(client, project or client.target.project)
    query = "" if place is None else f"?project={place}"
    saved = client.put(f"/pipelines{query}", document)
    if output.is_data:
        show_data(saved["pipeline"], output)
        return
    left_out = [row for row in found.rows if row.verdict is Verdict.LEFT_OUT]
    if left_out:
        show_rows(_rows(left_out), COLUMNS, output)
    word = "created" if saved["created"] else "changed" if saved["changed"] else "unchanged"
    note(f"{saved['pipeline']['name']} {word}, version {saved['version']}")


def _documents(path: str) -> list[Any]:
    """Return the documents of a file.

    Raises:
        CliError: If it cannot be read.
    """
    text = read_named(path)
    try:
        return load_documents(text)
    except UnreadableYaml as error:
        raise CliError(f"{path}: {error}", code=Exit.USAGE) from error


def is_ours(document: Any) -> bool:
    """Return whether a document is a pipeline of our own."""
    return isinstance(document, dict) and (
        document.get("kind") == KIND or "pipeline" in document
    ) and not is_kubeflow(document)  # fmt: skip


def _ours(documents: list[Any], path: str) -> ImportResult:
    """Return a pipeline of our own as it stands."""
    if len(documents) > 1:
        raise CliError(
            f"{path} holds {len(documents)} documents.",
            fix="`gpuplane pipelines apply` takes several.",
            code=Exit.USAGE,
        )
    return ImportResult(SourceKind.OURS, documents[0])


def _renamed(found: ImportResult, name: str | None) -> dict[str, Any] | None:
    if found.document is None:
        return None
    document = dict(found.document)
    if name is not None:
        part = "pipeline" if "pipeline" in document else "metadata"
        head = document.get(part)
        document[part] = {**(head if isinstance(head, dict) else {}), "name": name}
    return document


def _rows(rows: Any) -> list[dict[str, Any]]:
    return [
        {"place": row.place, "feature": row.feature, "verdict": str(row.verdict),
         "reason": row.reason}
        for row in rows
    ]  # fmt: skip


def _show(
    found: ImportResult, document: dict[str, Any] | None, file: str, output: Output
) -> None:  # fmt: skip
    if output.is_data:
        show_data({"kind": str(found.kind), "accepted": document is not None,
                   "rows": _rows(found.rows), "document": document}, output)  # fmt: skip
        return
    show_rows(_rows(found.rows), COLUMNS, output, empty="There is no feature in it.")
    counts = {each: sum(row.verdict is each for row in found.rows) for each in Verdict}
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    verdict = "cannot be imported" if document is None else "can be imported"
    note(f"{file} ({found.kind}) {verdict}: {told}")


def _write(document: dict[str, Any], path: str) -> None:
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    if path == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from error
    note(f"{path} written")
