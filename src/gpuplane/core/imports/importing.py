"""The one way in: finds out what parsed documents are and has them translated."""

from collections.abc import Sequence
from typing import Any

from gpuplane.core.imports.argo.spec import is_argo
from gpuplane.core.imports.argo.translating import translate as translate_argo
from gpuplane.core.imports.kfp.spec import is_kubeflow
from gpuplane.core.imports.kfp.translating import translate as translate_kubeflow
from gpuplane.core.imports.results import (
    Containers,
    ImportResult,
    Malformed,
    SourceKind,
    Table,
)

MAX_DEPTH = 100


def import_documents(
    documents: Sequence[Any],
    containers: Containers = Containers.DOCKER,
    others: Sequence[Any] = (),
) -> ImportResult:
    """Return what the documents of one file come to; never raises for what they hold.

    Args:
        documents: JSON values, as `kit.yaml_texts.load_documents` returns them.
        containers: How containers become jobs.
        others: Documents of further files, which the first may refer to.
    """
    table = Table()
    if not documents:
        table.refused("the file", "content", "There is no document in it.")
        return table.result(SourceKind.UNKNOWN, None)
    if any(_is_too_deep(each) for each in (*documents, *others)):
        table.refused("the file", "content", f"It is nested more than {MAX_DEPTH} deep.")
        return table.result(SourceKind.UNKNOWN, None)
    if any(_has_nul(each) for each in (*documents, *others)):
        table.refused("the file", "content", "A text in it holds the character NUL.")
        return table.result(SourceKind.UNKNOWN, None)
    kind = SourceKind.UNKNOWN
    document = None
    try:
        if is_kubeflow(documents[0]):
            kind = SourceKind.KUBEFLOW
            document = translate_kubeflow(documents, containers, table)
        elif is_argo(documents):
            kind = SourceKind.ARGO
            document = translate_argo(documents, others, containers, table)
        else:
            table.refused("the file", "kind", "This is neither compiled by Kubeflow Pipelines nor "
                                              "a manifest of Argo Workflows.")  # fmt: skip
    except Malformed as error:
        table.refused(error.place, "form", error.reason)
    return table.result(kind, document)


def _is_too_deep(value: Any) -> bool:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return True
        level = [part for each in level if isinstance(each, dict | list)
                 for part in (each.values() if isinstance(each, dict) else each)]  # fmt: skip
    return False


def _has_nul(value: Any) -> bool:
    """Return whether any text holds NUL, which marks steps while a pipeline is made."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            if "\0" in each:
                return True
        elif isinstance(each, dict):
            left += [*each, *each.values()]
        elif isinstance(each, list):
            left += each
    return False
