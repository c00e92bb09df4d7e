"""A text as a pipeline: one of ours, or one of another system that can be translated."""

from dataclasses import dataclass
from typing import Any

from gpuplane.core.imports.argo.spec import is_argo
from gpuplane.core.imports.kfp.spec import is_kubeflow
from gpuplane.core.imports.results import Containers, ImportResult
from gpuplane.domains.pipelines.documents.models import KIND
from gpuplane.domains.pipelines.documents.reading import read_documents
from gpuplane.domains.pipelines.errors import BadPipeline, ImportRefused
from gpuplane.kit.errors import FieldError

OURS = "gpuplane"
MAX_REFUSALS = 100
"""Told at once; the check of an import tells all."""


@dataclass(frozen=True, slots=True)
class Translated:
    """What a text came to.

    Args:
        kind: Which system it is of.
        document: The pipeline; None if anything was refused.
        result: Each feature with what became of it; None of our own documents.
    """

    kind: str
    document: dict[str, Any] | None
    result: ImportResult | None


def translate_text(
    text: str, others: list[str], containers: Containers, name: str | None
) -> Translated:
    """Return the pipeline of a text: as it stands if it is ours, else translated.

    Args:
        text: YAML or JSON.
        others: Further files that the first may refer to.
        containers: How containers become jobs.
        name: Another name for the pipeline.

    Raises:
        BadPipeline: If a text cannot be read.
        PipelineTooLarge: If one is too long.
    """
    documents = read_documents(text)
    first = documents[0] if documents else None
    if isinstance(first, dict) and _is_ours(first) and not is_argo(documents):
        if len(documents) > 1:
            raise BadPipeline(
                f"The text holds {len(documents)} documents.", fix="Send one pipeline at a time."
            )
        return Translated(OURS, _renamed(first, name), None)
    # Two megabytes that a server of which nobody asks a translation need not hold.
    from gpuplane.core.imports.importing import import_documents

    result = import_documents(
        documents, containers, [each for other in others for each in read_documents(other)]
    )
    document = None if result.document is None else _renamed(dict(result.document), name)
    return Translated(str(result.kind), document, result)


def _is_ours(document: dict[str, Any]) -> bool:
    """Return whether a document is to be ours; like a body's, its kind may be left out."""
    is_named = document.get("kind") == KIND or "pipeline" in document or "spec" in document
    return is_named and not is_kubeflow(document)


def refusal_of_import(found: Translated) -> ImportRefused:
    """Return the refusal that names each feature that stands against a pipeline."""
    refused = found.result.refusals if found.result is not None else ()
    errors = [FieldError(row.place, row.reason, "") for row in refused[:MAX_REFUSALS]]
    first, more = refused[0], len(refused) - 1
    return ImportRefused(
        f"{first.place}: {first.reason}{f' ({more} more.)' if more else ''}",
        field=first.place,
        fix="POST /pipelines/import/check tells what became of each feature.",
        errors=tuple(errors),
    )


def _renamed(document: dict[str, Any], name: str | None) -> dict[str, Any]:
    if name is None:
        return document
    part = "pipeline" if "pipeline" in document else "metadata"
    head = document.get(part)
    return {**document, part: {**(head if isinstance(head, dict) else {}), "name": name}}
