"""The examples for other systems: what they call exists, and they start and await a real run."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.integration.cli.conftest import CommandLine, Server, cli, server
from tests.integration.imports.test_running import ARGO

__all__ = ["cli", "server"]
ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "integrations"
WORKFLOW = FOLDER / "github-actions.yml"
CALLS = re.compile(r"(?:(GET|POST)\W+f?\"|-X (POST)[^/]*|)(?:\$GPUPLANE_URL)?(/api/v1/[^\"?\s]*)")


@pytest.fixture
def pipeline(cli: CommandLine) -> CommandLine:
    """A command line on a server that has the pipeline `nightly`, imported from Argo."""
    (cli.folder / "words.yaml").write_text(ARGO)
    told = cli.ok("pipelines", "import", "words.yaml", "--containers", "process", "--name",
                  "nightly")  # fmt: skip
    assert re.search("nightly (created|unchanged), version 1", told.err)
    return cli


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_call_of_the_examples_is_one_of_the_api() -> None:
    known = json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"]
    patterns = [re.sub(r"\{[^}]*\}", "[^/]+", path) + "$" for path in known]
    found = {call[3] for path in FOLDER.glob("*.*") for call in CALLS.finditer(path.read_text())}
    # An expression in a path of the examples stands for one part of it.
    plain = {re.sub(r"\{[^{}]*\}|\$\w+", "x", each) for each in found}
    assert len(plain) >= 5
    assert [each for each in plain if not any(re.match(one, each) for one in patterns)] == []


@pytest.mark.parametrize("name", ["airflow_dag", "dagster_assets"])
def test_the_snippets_call_what_the_module_beside_them_has(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
             and node.module == "gpuplane_runs" for alias in node.names}  # fmt: skip
    function = example("gpuplane_runs").run_pipeline
    assert names == {function.__name__}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)
             and getattr(node.func, "id", "") == "run_pipeline"]  # fmt: skip
    wanted = function.__code__.co_varnames[: function.__code__.co_argcount]
    given = [wanted[: len(call.args)] + tuple(each.arg for each in call.keywords) for call in calls]
    assert given == [wanted]


@pytest.mark.timeout(300)
def test_the_module_starts_a_run_awaits_it_and_finds_it_again(
    pipeline: CommandLine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("gpuplane_runs")
    monkeypatch.setattr(module, "POLL_S", 0.1)
    monkeypatch.setenv("GPUPLANE_URL", server.address)
    monkeypatch.setenv("GPUPLANE_TOKEN", (server.home / "admin-token").read_text().strip())
    given = {"words": '["four"]'}
    assert module.run_pipeline("nightly", given, "one") == {}
    assert module.run_pipeline("nightly", given, "one") == {}
    runs = pipeline.ok("pipelines", "runs", "-o", "json").data
    assert [run["dedup_id"] for run in runs["items"]].count("one") == 1
    with pytest.raises(module.RunFailed, match="no pipeline 'weekly'"):
        module.run_pipeline("weekly", {}, "two")
    with pytest.raises(module.RunFailed, match="parameters"):
        module.run_pipeline("nightly", {"nonsense": 1}, "three")


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "curl", "jq"))), reason="needs bash, curl and jq"
)
def test_the_steps_of_the_github_workflow_start_a_run_and_await_it(
    pipeline: CommandLine, server: Server, tmp_path: Path
) -> None:
    job: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())["jobs"]["train"]
    start, wait, _ = (step["run"] for step in job["steps"])
    outputs = tmp_path / "outputs"
    env = {
        "PATH": os.environ["PATH"], "GITHUB_OUTPUT": str(outputs), "PIPELINE": "nightly",
        "GPUPLANE_URL": server.address, "DEDUP": "github-1-1",
        "GPUPLANE_TOKEN": (server.home / "admin-token").read_text().strip(),
    }  # fmt: skip
    # The model is a parameter of the example's own pipeline; this one has words.
    script = start.replace("{model: $m}", "{words: $m}")
    subprocess.run(["bash", "-eo", "pipefail", "-c", script], check=True,
                   env={**env, "MODEL": '["four"]'})  # fmt: skip
    run = outputs.read_text().strip().removeprefix("run=")
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", wait.replace("sleep 10", "sleep 0.2")],
                          env={**env, "RUN": run}, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done
    assert pipeline.ok("pipelines", "show", run, "-o", "json").data["status"] == "completed"
