"""Public files of both systems: how many are accepted, and that each other one says why not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpuplane.core.imports.importing import import_documents
from gpuplane.core.imports.results import ImportResult, SourceKind, Verdict
from gpuplane.domains.pipelines.documents import check_pipeline, read_pipeline
from tests.integration.imports.sets import documents_of, needs_sets, texts_of

pytestmark = needs_sets
KUBEFLOW, ARGO = "kfp-compiled.tar.gz", "argo-examples.tar.gz"
LIBRARIES = (
    "workflow-template/templates.yaml",
    "cluster-workflow-template/clustertemplates.yaml",
    "configmaps/simple-parameters-configmap.yaml",
)
"""What other examples refer to, given to each as a second file."""


def imported(text: str, others: list[Any] | None = None) -> ImportResult:
    found = import_documents(documents_of(text), others=others or ())
    if found.document is not None:
        # What an import accepts can be saved.
        check_pipeline(read_pipeline(dict(found.document)))
    else:
        assert found.refusals
        assert all(row.place and row.feature and row.reason for row in found.refusals)
    return found


def library() -> list[Any]:
    return [part for name in LIBRARIES for part in documents_of(texts_of(ARGO)[name])]


def test_nineteen_of_twenty_kubeflow_pipelines_are_accepted() -> None:
    files = {name: text for name, text in texts_of(KUBEFLOW).items() if name.startswith("valid/")}
    refused = [name for name, text in files.items() if imported(text).document is None]
    assert len(files) - len(refused) >= 0.95 * len(files), refused


def test_every_invalid_kubeflow_file_is_refused() -> None:
    files = {name: text for name, text in texts_of(KUBEFLOW).items() if name.startswith("invalid/")}
    assert files
    assert [name for name, text in files.items() if imported(text).document is not None] == []


def test_seven_of_ten_argo_examples_are_accepted() -> None:
    files, others = texts_of(ARGO), library()
    refused = [name for name, text in files.items() if imported(text, others).document is None]
    assert len(files) - len(refused) >= 0.7 * len(files), refused


def test_an_accepted_file_has_no_refused_row_and_its_kind_is_known() -> None:
    others = library()
    for text in (*texts_of(KUBEFLOW).values(), *texts_of(ARGO).values()):
        found = imported(text, others)
        verdicts = Counter(row.verdict for row in found.rows)
        assert (found.document is None) == bool(verdicts[Verdict.REFUSED])
        assert found.document is None or found.kind is not SourceKind.UNKNOWN
        assert found.document is None or verdicts[Verdict.MAPPED] > 0
