"""`gpuplane pipelines`: saved, run, looked at, rolled back, exported and imported again."""

from __future__ import annotations

from pathlib import Path

from tests.integration.cli.conftest import CommandLine

HELLO = Path(__file__).resolve().parents[3] / "examples" / "pipelines" / "hello.yaml"


def test_a_pipeline_is_run_from_its_file_and_looked_at(cli: CommandLine) -> None:
    done = cli("pipelines", "run", str(HELLO), "-P", "who=moon")
    assert (done.code, done.out) == (0, "line: Hello, moon! has 9 letters.\n"), done.err
    assert "greet completed" in done.err
    told = cli.ok("pipelines", "run", "hello", "-o", "json").data
    assert told["outputs"] == {"line": "Hello, world! has 10 letters."}
    shown = cli.ok("pipelines", "show", told["id"]).out
    assert [word in shown for word in ("greet", "count", "sum-up", "completed")] == [True] * 4
    assert cli.ok("pipelines", "logs", told["id"], "greet").out == "greeting world\n"
    assert cli.ok("pipelines", "logs", told["id"], "count").out == "Hello, world!\n"
    assert told["id"] in cli.ok("pipelines", "runs", "hello").out
    whole = cli.ok("pipelines", "show", "hello").out
    assert "function" in whole


def test_versions_are_compared_rolled_back_and_exported(cli: CommandLine) -> None:
    text = HELLO.read_text().replace("name: hello\n", "name: versions\n", 1)
    (cli.folder / "one.yaml").write_text(text)
    (cli.folder / "two.yaml").write_text(text.replace("Greets", "Says hi"))
    cli.ok("pipelines", "apply", "one.yaml")
    assert "unchanged" in cli.ok("pipelines", "apply", "one.yaml").err
    planned = cli.ok("pipelines", "apply", "two.yaml", "--dry-run").out
    assert "versions: 3 steps, 1 changes" in planned
    cli.ok("pipelines", "apply", "two.yaml")
    assert "spec.description" in cli.ok("pipelines", "diff", "versions", "1", "2").out
    rolled = cli.ok("pipelines", "rollback", "versions", "1").out
    assert rolled == "versions has version 3, the content of 1\n"
    exported = cli.ok("pipelines", "export", "versions").out
    (cli.folder / "three.yaml").write_text(exported)
    assert "unchanged" in cli.ok("pipelines", "apply", "three.yaml").err
    cli.ok("pipelines", "archive", "versions")
    refused = cli("pipelines", "run", "versions")
    assert (refused.code, "archived" in refused.err) == (4, True)
    cli.ok("pipelines", "rm", "versions", "--yes")
    assert cli("pipelines", "show", "versions").code == 3


def test_what_was_exported_is_imported_as_it_is_and_under_another_name(cli: CommandLine) -> None:
    (cli.folder / "own.yaml").write_text(
        HELLO.read_text().replace("name: hello\n", "name: own\n", 1)
    )
    cli.ok("pipelines", "apply", "own.yaml")
    (cli.folder / "exported.yaml").write_text(cli.ok("pipelines", "export", "own").out)
    assert "own unchanged, version 1" in cli.ok("pipelines", "import", "exported.yaml").err
    again = cli.ok("pipelines", "import", "exported.yaml", "--name", "own-2")
    assert "own-2 created, version 1" in again.err
    looked = cli.ok("pipelines", "import", "exported.yaml", "--dry-run")
    assert "exported.yaml (gpuplane) can be imported" in looked.err


def test_a_parameter_that_is_declared_a_string_keeps_its_text(cli: CommandLine) -> None:
    (cli.folder / "typed.yaml").write_text(
        "kind: Pipeline\nmetadata: {name: typed}\nspec:\n"
        "  parameters: {who: {type: string}, n: {type: integer}, any: 1}\n"
        "  steps:\n    - {id: a, step_type: transform, config: {expression: params.who}}\n"
    )
    given = ("-P", "who=5", "-P", "n=6", "-P", "any=[7]", "-o", "json")
    told = cli.ok("pipelines", "run", "typed.yaml", *given).data
    assert told["params"] == {"who": "5", "n": 6, "any": [7]}
    quoted = cli.ok("pipelines", "run", "typed", "-P", 'who="5"', "-P", "n=6", "-o", "json").data
    assert quoted["params"] == {"who": "5", "n": 6, "any": 1}


def test_running_a_file_that_is_not_there_says_so(cli: CommandLine) -> None:
    for name in ("nofile.yaml", "no/file.YML", "x.json"):
        done = cli("pipelines", "run", name)
        assert (done.code, f"There is no file {name}." in done.err) == (2, True), done.err


def test_a_run_that_fails_ends_with_one_and_can_be_retried_and_cancelled(cli: CommandLine) -> None:
    (cli.folder / "bad.yaml").write_text(
        "kind: Pipeline\nmetadata: {name: bad}\nspec:\n  steps:\n"
        "    - {id: div, step_type: transform, config: {expression: 1 / 0}}\n"
        "    - {id: ask, step_type: wait, depends_on: [div], config: {wait_for_event: go}}\n"
    )
    failed = cli("pipelines", "run", "bad.yaml")
    assert (failed.code, "divided by zero" in failed.err) == (1, True)
    (cli.folder / "bad.yaml").write_text(
        "kind: Pipeline\nmetadata: {name: bad}\nspec:\n  steps:\n"
        "    - {id: ask, step_type: wait, config: {wait_for_event: go}}\n"
    )
    run = cli.ok("pipelines", "run", "bad.yaml", "-d").out.strip()
    assert cli.ok("pipelines", "cancel", run[-8:]).out.startswith(run)
    assert cli.ok("pipelines", "retry", run).out.startswith(run)
    assert cli.ok("pipelines", "pause", run).out == f"{run} Paused\n"
    assert cli.ok("pipelines", "resume", run).out.startswith(run)
    assert cli.ok("pipelines", "fork", run, "ask").out.split()[0] != run
    assert cli.ok("pipelines", "event", run, "go", '{"x": 1}').out == "go sent\n"
    assert cli.ok("pipelines", "archive", "bad").out == "bad archived\n"
    assert cli.ok("pipelines", "restore", "bad").out == "bad active\n"


def test_a_document_that_cannot_be_meant_is_refused_with_every_place(cli: CommandLine) -> None:
    (cli.folder / "wrong.yaml").write_text(
        "kind: Pipeline\nmetadata: {name: wrong}\nspec:\n  steps:\n"
        "    - {id: a, step_type: wait, config: {}}\n"
        "    - {id: b, step_type: job, config: {gpu_count: x}}\n"
    )
    done = cli("pipelines", "apply", "wrong.yaml")
    assert done.code == 2
    assert "spec.steps[0].config" in done.err
    assert "spec.steps[1].config.gpu_count" in done.err
    assert cli("pipelines", "apply", "absent.yaml").code == 2
    assert cli("pipelines", "show", "nothing-like-it").code == 3


def test_apply_takes_pipelines_beside_other_manifests(cli: CommandLine) -> None:
    text = HELLO.read_text().replace("name: hello\n", "name: applied\n", 1)
    (cli.folder / "p.yaml").write_text(text)
    first = cli.ok("apply", "-f", "p.yaml", "-o", "json", "--yes").data["items"]
    assert [(each["kind"], each["action"]) for each in first] == [("Pipeline", "create")]
    again = cli.ok("apply", "-f", "p.yaml", "-o", "json", "--yes").data["items"]
    assert [each["action"] for each in again] == ["unchanged"]
    (cli.folder / "p.yaml").write_text(text.replace("default: world", "default: you"))
    changed = cli.ok("apply", "-f", "p.yaml", "-o", "json", "--yes").data["items"]
    assert [each["action"] for each in changed] == ["change"]
    assert cli.ok("pipelines", "versions", "applied", "-o", "json").data["items"][0]["number"] == 2
