"""`pipelines import` without a server: the table, the manifest, the reasons, the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuplane.cli.commands.pipelines import pipelines
from gpuplane.cli.errors import Exit
from tests.unit.core.imports.importing import SAY, argo

GOOD = argo(SAY, "- {name: main, steps: [[{name: a, template: say}]]}", serviceAccountName="x")
BAD = argo("- {name: main, resource: {action: create}}")
SHARED = """
apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: shared}
spec: {templates: [{name: say, container: {image: busybox, command: [echo]}}]}
"""
USING = argo("- {name: main, steps: [[{name: a, templateRef: {name: shared, template: say}}]]}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"good": GOOD, "bad": BAD, "shared": SHARED, "using": USING}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def ask(*arguments: object) -> Result:
    return CliRunner().invoke(pipelines, ["import", *map(str, arguments)])


def test_a_dry_run_prints_each_feature_with_its_verdict(folder: Path) -> None:
    done = ask(folder / "good.yaml", "--dry-run")
    assert done.exit_code == Exit.OK
    rows = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    assert rows[0] == ["PLACE", "FEATURE", "VERDICT", "REASON"]
    assert [row[:2] for row in rows[1:]] == [
        ["spec.serviceAccountName", "serviceAccountName"],
        ["spec.templates.say.container", "container"],
        ["spec.templates.main.steps", "steps"],
    ]
    assert "can be imported: 2 mapped, 1 left out, 0 refused" in done.stderr


def test_for_programs_the_rows_and_the_pipeline_are_json(folder: Path) -> None:
    found = json.loads(ask(folder / "good.yaml", "--dry-run", "-o", "json").stdout)
    assert (found["kind"], found["accepted"]) == ("Argo Workflows", True)
    assert {row["verdict"] for row in found["rows"]} == {"mapped", "left out"}
    assert found["document"]["spec"]["steps"][0]["id"] == "main-a"


def test_what_cannot_be_imported_ends_with_its_reasons(folder: Path) -> None:
    done = ask(folder / "bad.yaml")
    assert done.exit_code == Exit.REFUSED
    assert "spec.templates.main.resource" in done.stdout
    assert "cannot be imported" in done.stderr


def test_the_manifest_can_be_written_under_another_name(folder: Path) -> None:
    target = folder / "out.yaml"
    done = ask(folder / "good.yaml", "--name", "mine", "--containers", "process",
               "--write", target)  # fmt: skip
    assert done.exit_code == Exit.OK
    document = yaml.safe_load(target.read_text())
    assert (document["kind"], document["metadata"]["name"]) == ("Pipeline", "mine")
    assert document["spec"]["steps"][0]["config"]["deployment_type"] == "process"


def test_several_pipelines_of_our_own_in_one_file_are_for_another_command(folder: Path) -> None:
    one = "kind: Pipeline\nmetadata: {name: a}\nspec: {steps: []}\n"
    (folder / "two.yaml").write_text(f"{one}---\n{one}")
    done = ask(folder / "two.yaml")
    assert (done.exit_code, "2 documents" in done.stderr) == (Exit.USAGE, True), done.output


def test_templates_of_other_files_are_given_beside(folder: Path) -> None:
    assert ask(folder / "using.yaml", "--dry-run").exit_code == Exit.REFUSED
    done = ask(folder / "using.yaml", "--with", folder / "shared.yaml", "--dry-run")
    assert done.exit_code == Exit.OK


@pytest.mark.parametrize("text", ["a: [", "\x00", None])
def test_a_file_that_cannot_be_read_is_wrong_usage(folder: Path, text: str | None) -> None:
    path = folder / "broken.yaml"
    if text is not None:
        path.write_text(text)
    done = ask(path, "--dry-run")
    assert (done.exit_code, str(path) in done.stderr) == (Exit.USAGE, True)
