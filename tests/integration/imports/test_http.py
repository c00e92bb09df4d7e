"""Files of other systems over HTTP: the same table as the command line's, saved or only checked."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from tests.integration.imports.test_running import KUBEFLOW
from tests.integration.pipelines.worlds import World

ARGO = (Path(__file__).parents[3] / "examples" / "integrations" / "hello-argo.yaml").read_text()
USES = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: uses}
spec: {workflowTemplateRef: {name: shared}}
"""
SHARED = """
apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: shared}
spec:
  entrypoint: say
  templates: [{name: say, script: {image: "python:3", command: [python], source: "print('hi')"}}]
"""


async def test_a_workflow_is_checked_imported_under_another_name_and_runs(world: World) -> None:
    body = {"text": ARGO, "containers": "process", "name": "greeter"}
    checked = await world.post("/pipelines/import/check", body)
    assert (checked["kind"], checked["accepted"]) == ("Argo Workflows", True)
    assert {row["verdict"] for row in checked["rows"]} == {"mapped", "left out"}
    assert (await world.get("/pipelines"))["items"] == []
    saved = await world.post("/pipelines/import", body, 201)
    assert (saved["pipeline"]["name"], saved["created"]) == ("greeter", True)
    shown = await world.get(f"/pipelines/{saved['pipeline']['id']}")
    assert shown["document"] == checked["document"]
    run = await world.post(f"/pipelines/{saved['pipeline']['id']}/runs", None, 202)
    ended = await world.ended(run["id"])
    assert ended.output("main-sum-up") == {"result": "line: Hello, world! has 10 letters."}


async def test_a_compiled_pipeline_of_kubeflow_is_taken_too(world: World) -> None:
    checked = await world.post("/pipelines/import/check", {"text": dedent(KUBEFLOW)})
    assert (checked["kind"], checked["accepted"]) == ("Kubeflow Pipelines", True)
    saved = await world.post("/pipelines/import", {"text": dedent(KUBEFLOW)}, 201)
    assert saved["created"] is True


async def test_a_file_is_read_with_the_files_it_refers_to(world: World) -> None:
    alone = await world.post("/pipelines/import/check", {"text": USES})
    assert (alone["accepted"], alone["document"]) == (False, None)
    both = await world.post("/pipelines/import/check", {"text": USES, "with": [SHARED]})
    assert both["accepted"] is True


async def test_what_cannot_be_imported_is_refused_with_every_feature(world: World) -> None:
    text = ARGO.replace("entrypoint: hello", "entrypoint: hello\n  shutdown: Stop\n  oddity: 1")
    checked = await world.post("/pipelines/import/check", {"text": text})
    refused = [row for row in checked["rows"] if row["verdict"] == "refused"]
    answer = await world.http.post("/api/v1/pipelines/import", json={"text": text})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "import_refused")
    assert [(each["field"], each["reason"]) for each in problem["errors"]] == [
        (row["place"], row["reason"]) for row in refused
    ]
    assert {row["place"] for row in refused} == {"spec.shutdown", "spec.oddity"}
    assert (await world.get("/pipelines"))["items"] == []


async def test_texts_that_are_nothing_at_all_are_refused_in_a_sentence(world: World) -> None:
    for text, word in (
        ("a: [", "no YAML"), ("a: 1\na: 2", "stands twice"), ("just text", "neither"),
        ("kind: Pipeline\n---\nkind: Pipeline", "2 documents"), ("---\n", "no document"),
        ("a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(2)), "neither"),
    ):  # fmt: skip
        answer = await world.http.post("/api/v1/pipelines/import", json={"text": text})
        assert answer.status_code == 422, (text, answer.text)
        assert word in answer.json()["detail"], (text, answer.json()["detail"])
    unnamed = await world.http.post(
        "/api/v1/pipelines/import", json={"text": ARGO, "name": "No Name!"}
    )
    assert unnamed.json()["field"] == "metadata.name"
