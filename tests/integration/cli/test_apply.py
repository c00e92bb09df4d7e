"""`gpuplane apply`: the difference, the question, and that the second time changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.conftest import CommandLine

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "jobs"
JOB = """\
apiVersion: gpuplane.io/v1
kind: Job
metadata: {{name: {name}, labels: {{team: vision}}}}
spec:
  cluster: demo
  gpu_type: H100
  gpu_count: {gpus}
  priority: {priority}
  estimated_duration_seconds: 3600
  run:
    command: [train]
    simulated: {{duration_s: 3600, log: [one]}}
"""


def manifest(folder: Path, text: str, name: str = "it.yaml") -> str:
    (folder / name).write_text(text)
    return name


def actions(cli: CommandLine, file: str, *more: str) -> dict[str, str]:
    items = cli.ok("apply", "-f", file, "-o", "json", *more).data["items"]
    return {f"{each['kind']}/{each['name']}": each["action"] for each in items}


def jobs_named(cli: CommandLine, name: str) -> list[dict[str, Any]]:
    return list(cli.ok("ps", "-a", "--name", name, "-o", "json").data["items"])


def test_a_job_is_submitted_once_however_often_it_is_applied(
    cli: CommandLine, tmp_path: Path
) -> None:
    file = manifest(tmp_path, JOB.format(name="applied", gpus=1, priority="normal"))
    assert actions(cli, file, "--yes") == {"Job/applied": "create"}
    assert actions(cli, file) == {"Job/applied": "unchanged"}
    assert len(jobs_named(cli, "applied")) == 1
    cli.ok("cancel", "applied")


def test_a_change_of_priority_is_made_in_place(cli: CommandLine, tmp_path: Path) -> None:
    file = manifest(tmp_path, JOB.format(name="reranked", gpus=1, priority="normal"))
    cli.ok("apply", "-f", file, "--yes")
    manifest(tmp_path, JOB.format(name="reranked", gpus=1, priority="low"))
    assert actions(cli, file, "--yes") == {"Job/reranked": "change"}
    (job,) = jobs_named(cli, "reranked")
    assert job["priority"] == "low"
    cli.ok("cancel", "reranked")


def test_an_array_is_one_thing_to_apply(cli: CommandLine, tmp_path: Path) -> None:
    text = JOB.format(name="many", gpus=1, priority="normal")
    file = manifest(tmp_path, f"{text}  array: {{size: 3}}\n")
    assert actions(cli, file, "--yes") == {"Job/many": "create"}
    assert actions(cli, file, "--yes") == {"Job/many": "unchanged"}
    manifest(tmp_path, f"{text}  array: {{size: 2}}\n")
    assert actions(cli, file, "--yes") == {"Job/many": "replace"}
    assert actions(cli, file, "--yes") == {"Job/many": "unchanged"}
    cli.ok("cancel", "--array", "many-0")


def test_other_content_replaces_the_unfinished_job_and_shows_what_differs(
    cli: CommandLine, tmp_path: Path
) -> None:
    file = manifest(tmp_path, JOB.format(name="replaced", gpus=1, priority="normal"))
    cli.ok("apply", "-f", file, "--yes")
    manifest(tmp_path, JOB.format(name="replaced", gpus=2, priority="normal"))
    done = cli.ok("apply", "-f", file, "--yes")
    assert "± Job replaced: replace" in done.out
    assert "gpu_count: 1 → 2" in done.out
    assert sorted(job["gpu_count"] for job in jobs_named(cli, "replaced")) == [1, 2]
    cli.wait_for(next(j["id"] for j in jobs_named(cli, "replaced") if j["gpu_count"] == 1),
                 "cancelled")  # fmt: skip
    cli.ok("cancel", "replaced")


def test_without_a_terminal_nothing_happens_unless_told(cli: CommandLine, tmp_path: Path) -> None:
    file = manifest(tmp_path, JOB.format(name="unasked", gpus=1, priority="normal"))
    done = cli("apply", "-f", file)
    assert done.code == 2
    assert "+ Job unasked: create" in done.out
    assert "--yes" in done.err
    assert jobs_named(cli, "unasked") == []


def test_a_dry_run_shows_the_difference_with_the_plan(cli: CommandLine, tmp_path: Path) -> None:
    file = manifest(tmp_path, JOB.format(name="dry", gpus=1, priority="normal"))
    done = cli.ok("apply", "-f", file, "--dry-run")
    assert "plan: demo (simulated: nothing is executed)" in done.out
    assert jobs_named(cli, "dry") == []


def test_manifests_come_from_standard_input_too(cli: CommandLine) -> None:
    text = JOB.format(name="piped", gpus=1, priority="normal")
    done = cli.ok("apply", "-f", "-", "--yes", stdin=text)
    assert "Job piped: " in done.out
    cli.ok("cancel", "piped")


def test_a_working_directory_is_relative_to_the_file(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "deep" / "src").mkdir(parents=True)
    (tmp_path / "deep" / "src" / "main.py").write_text("print('from the folder')")
    text = JOB.format(name="with-folder", gpus=0, priority="normal")
    text = text.replace("  cluster: demo\n  gpu_type: H100\n", "").split("  run:")[0]
    text += "  memory_gb: 0.5\n  resources: {ephemeral_storage_gb: 1}\n"
    text += "  run: {workdir: src, command: [python3, main.py]}\n"
    file = manifest(tmp_path / "deep", text)
    cli.ok("apply", "-f", f"deep/{file}", "--yes")
    cli.wait_for("with-folder", "completed")
    assert cli.ok("logs", "with-folder").out == "from the folder\n"
    assert actions(cli, f"deep/{file}") == {"Job/with-folder": "unchanged"}


def test_a_field_that_does_not_exist_is_named_where_it_stands(
    cli: CommandLine, tmp_path: Path
) -> None:
    text = JOB.format(name="typo", gpus=1, priority="normal")
    file = manifest(tmp_path, text.replace("gpu_count", "gpu_cuont"))
    done = cli("apply", "-f", file, "--yes")
    assert done.code == 2
    assert "it.yaml, line 1, Job typo, spec.gpu_cuont" in done.err
    assert "gpu_count" in done.err
    inner = manifest(tmp_path, text.replace("log:", "lgo:"))
    assert "spec.run.simulated.lgo" in cli("apply", "-f", inner, "--yes").err


def test_tenants_projects_queues_prices_and_reservations_are_made_and_kept(
    cli: CommandLine,
) -> None:
    file = str(EXAMPLES / "team.yaml")
    first = actions(cli, file, "--yes")
    assert first.pop("Price/l4-on-demo") == "change"
    assert set(first.values()) == {"create"}
    assert set(actions(cli, file).values()) == {"unchanged"}
    assert "research" in cli.ok("projects", "ls").out
    assert "example-team" in cli.ok("quotas", "ls", "--cluster", "demo").out
    assert "0.65 USD" in cli.ok("prices", "ls", "--cluster", "demo").out


def test_a_reservation_is_made_once_and_made_anew_when_it_changes(
    cli: CommandLine, tmp_path: Path
) -> None:
    day = datetime.now(UTC).date() + timedelta(days=3)
    text = (
        "apiVersion: gpuplane.io/v1\nkind: Reservation\nmetadata: {name: course}\n"
        "spec: {cluster: demo, model: L4, count: 2, "
        f"start: '{day}T09:00:00Z', end: '{day}T17:00:00Z'}}\n"
    )
    file = manifest(tmp_path, text)
    assert actions(cli, file, "--yes") == {"Reservation/course": "create"}
    assert actions(cli, file) == {"Reservation/course": "unchanged"}
    manifest(tmp_path, text.replace("count: 2", "count: 3"))
    assert actions(cli, file, "--yes") == {"Reservation/course": "replace"}
    rows = cli.ok("reservations", "ls", "-o", "json").data["items"]
    held = [row for row in rows if row["state"] == "scheduled"]
    assert [row["count"] for row in held] == [3]
    cli.ok("reservations", "rm", "course" if len(rows) == 1 else held[0]["id"], "--yes")
    manifest(tmp_path, text.replace("start: '", "start: '19"))
    refused = cli("apply", "-f", file, "--yes")
    assert refused.code == 2
    assert "it.yaml, line 1, Reservation course, spec.start" in refused.err


@pytest.mark.parametrize("after", ["nowhere", "lonely", "later"])
def test_a_plan_refuses_a_job_after_one_that_is_not_made_before_it(
    cli: CommandLine, tmp_path: Path, after: str
) -> None:
    lonely = JOB.format(name="lonely", gpus=1, priority="normal") + f"  after: [{{job: {after}}}]\n"
    later = JOB.format(name="later", gpus=1, priority="normal")
    file = manifest(tmp_path, f"{lonely}---\n{later}")
    for more in ("--dry-run", "--yes"):
        done = cli("apply", "-f", file, more)
        assert done.code != 0
        assert "it.yaml, line 1, Job lonely, spec.after[0]: " in done.err
        assert "Traceback" not in done.err
    assert jobs_named(cli, "lonely") == jobs_named(cli, "later") == []


def test_what_is_refused_half_way_tells_what_was_made_before_it(
    cli: CommandLine, tmp_path: Path
) -> None:
    first = JOB.format(name="first-of-two", gpus=1, priority="normal")
    second = JOB.format(name="second-of-two", gpus=1, priority="normal")
    over = "  after: [{job: first-of-two, condition: never}]\n"
    file = manifest(tmp_path, f"{first}---\n{second}{over}")
    done = cli("apply", "-f", file, "--yes")
    assert done.code != 0
    assert "1 of 2 changes were made before this one was refused" in done.err
    manifest(tmp_path, f"{second.replace('second-of', 'third-of')}{over}")
    assert "none of 1 changes was made" in cli("apply", "-f", file, "--yes").err
    cli.ok("cancel", "--wait", "first-of-two")


def test_jobs_of_one_file_may_come_after_each_other(cli: CommandLine) -> None:
    cli.ok("apply", "-f", str(EXAMPLES / "chain.yaml"), "--yes")
    chain = {name: cli.job(name) for name in ("chain-prepare", "chain-train", "chain-report")}
    assert chain["chain-train"]["after"][0]["job_id"] == chain["chain-prepare"]["id"]
    assert chain["chain-report"]["after"][0]["condition"] == "finished"
    assert set(actions(cli, str(EXAMPLES / "chain.yaml")).values()) == {"unchanged"}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_every_example_is_one_that_the_server_takes(cli: CommandLine, name: str) -> None:
    done = cli.ok("apply", "-f", str(EXAMPLES / name), "--dry-run")
    assert "create" in done.out or "unchanged" in done.out


def test_the_first_example_runs(cli: CommandLine) -> None:
    cli.ok("apply", "-f", str(EXAMPLES / "hello.yaml"), "--yes")
    cli.wait_for("hello", "completed")
    assert cli.ok("logs", "hello").out == "hello\n"
