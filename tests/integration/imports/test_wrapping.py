"""The lines of sh around a container's command tell its outputs exactly, in any sh."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuplane.core.imports.wrapping import (
    ARTIFACT,
    BOOL,
    RAW,
    STDOUT,
    TASK,
    TEXT,
    Output,
    copied,
    stored,
    wrapped,
)

AWKWARD = "a \"quoted\" \\path\\ 'it''s'\ttab\n\nsecond line\n$HOME `id` é 日本 %s"


def ran(
    folder: Path, words: list[object], outputs: dict[str, Output], before: list[str], **env: str
) -> tuple[subprocess.CompletedProcess[str], Any]:
    told = folder / "told.json"
    done = subprocess.run(
        [str(each) for each in wrapped(words, outputs, before)],
        cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "GPUPLANE_JOB_ID": "job-1", "GPUPLANE_OUTPUTS": str(told),
             **env},
    )  # fmt: skip
    return done, json.loads(told.read_text()) if told.exists() else None


def test_files_and_what_was_printed_become_outputs(tmp_path: Path) -> None:
    script = (
        'printf %s "$0" > out/text; echo \'[1, {"a": null}]\' > out/raw; echo True > out/flag; '
        f'echo printed; echo "$1"; mkdir -p made/{TASK}; echo x > made/{TASK}/model'
    )
    outputs = {
        "text": Output(TEXT, "out/text"), "raw": Output(RAW, "out/raw"),
        "flag": Output(BOOL, "out/flag"), "result": Output(STDOUT),
        "model": Output(ARTIFACT, f"made/{TASK}/model", about={"name": 'm"x'}),
        "missing": Output(TEXT, "out/missing", default='no "one"'),
        'an "odd" name': Output(RAW, "out/none", default="7"),
    }  # fmt: skip
    done, told = ran(tmp_path, ["sh", "-c", script, AWKWARD, f"of {TASK}"], outputs, [])
    assert (done.returncode, done.stdout) == (0, "printed\nof job-1\n")
    assert told == {
        "text": AWKWARD, "raw": [1, {"a": None}], "flag": True, "result": "printed\nof job-1",
        "model": {"name": 'm"x', "metadata": {}, "uri": "made/job-1/model"},
        "missing": 'no "one"', 'an "odd" name': 7,
    }  # fmt: skip
    assert (tmp_path / "made" / "job-1" / "model").read_text() == "x\n"


@pytest.mark.parametrize("outputs", [{}, {"result": Output(STDOUT)}])
def test_the_exit_code_is_the_commands_own(tmp_path: Path, outputs: dict[str, Output]) -> None:
    done, told = ran(tmp_path, ["sh", "-c", "echo before; exit 7"], outputs, ["true\n"])
    assert (done.returncode, done.stdout, told) == (7, "before\n", None)


def test_artifacts_are_put_where_they_are_looked_for_and_copied_away(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "in").write_text("given")
    before = [
        copied("$ARTIFACT_0", "inputs/one"), stored("ARTIFACT_1", "inputs/two"),
        copied("$ARTIFACT_2", "inputs/three", is_optional=True),
    ]  # fmt: skip
    outputs = {"o": Output(ARTIFACT, f"volume/{TASK}/o", None, {"name": "o"}, "made here")}
    done, told = ran(
        tmp_path, ["sh", "-c", "cat inputs/one inputs/two > 'made here'; ls inputs"], outputs,
        before, ARTIFACT_0="volume/in", ARTIFACT_1=AWKWARD, ARTIFACT_2="volume/nothing",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")
    assert told["o"]["uri"] == "volume/job-1/o"
    assert (tmp_path / "volume" / "job-1" / "o").read_text() == "given" + AWKWARD


def test_an_artifact_that_is_not_there_fails_the_job(tmp_path: Path) -> None:
    done, told = ran(tmp_path, ["true"], {}, [copied("$ARTIFACT_0", "in")], ARTIFACT_0="nowhere")
    assert (done.returncode, told) == (1, None)
    assert "nowhere" in done.stderr


def test_a_command_without_outputs_is_left_as_it_is() -> None:
    assert wrapped(["echo", "hello"], {}) == ["echo", "hello"]
    assert shutil.which("sh")
