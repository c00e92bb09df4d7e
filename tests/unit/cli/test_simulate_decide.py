"""`gpuplane simulate decide` as people and programs call it: the same, another, or no record."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuplane.cli.errors import Exit
from gpuplane.cli.main import build
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.recording import Recording
from gpuplane.loops.scheduler.recorder import Recorder
from tests.builders import NOW, World, a_node, a_workload


def a_recording(now: int = NOW) -> Recording:
    pending = [a_workload("fits").gpus(8).build(), a_workload("waits").gpus(8).age(-1).build()]
    return Recording(World([a_node()], pending=pending).snapshot(), Policy(), now, 3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    recording = a_recording()
    return Recorder(tmp_path / "decisions", 2).store(recording, recording.replay())


def call(*words: object) -> Result:
    return CliRunner().invoke(build(), ["simulate", "decide", *map(str, words)])


def test_a_record_is_decided_on_again_to_the_same_bytes(file: Path) -> None:
    shown = call(file)
    assert shown.exit_code == 0, shown.output
    assert "the same bytes" in shown.stdout
    assert "InsufficientGpu" in shown.stdout
    data = call(file, "-o", "json")
    assert [each["kind"] for each in json.loads(data.stdout)["verdicts"]] == ["Placed", "Waiting"]


def test_another_decision_in_the_record_is_told(file: Path) -> None:
    first, _, rest = gzip.decompress(file.read_bytes()).partition(b"\n")
    file.write_bytes(first + b"\n" + rest.replace(b'"seed":3', b'"seed":4'))
    shown = call(file)
    assert shown.exit_code == Exit.FAILED
    assert "something else" in shown.output


def test_an_input_without_a_decision_is_decided_on_alone(file: Path) -> None:
    file.write_bytes(gzip.decompress(file.read_bytes()).partition(b"\n")[0])
    shown = call(file)
    assert shown.exit_code == 0
    assert "nothing to compare with" in shown.stdout


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [(None, Exit.NOT_FOUND, "no file"), (b"{}", Exit.USAGE, "no recording"),
     (b"\x1f\x8bxx", Exit.USAGE, "decisions")],
)  # fmt: skip
def test_a_file_that_is_no_record_is_refused(
    file: Path, content: bytes | None, code: Exit, said: str
) -> None:
    file.unlink() if content is None else file.write_bytes(content)
    shown = call(file)
    assert shown.exit_code == code
    assert said in shown.output


def test_only_the_newest_records_are_kept(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 2)
    for now in (NOW, NOW + 1, NOW + 2):
        recording = a_recording(now)
        recorder.store(recording, recording.replay())
    kept = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert kept == [str(NOW + 1), str(NOW + 2)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{}", "the field format is missing"),
        (b'{"format": 99}', "field format: 99 stands there; expected 1"),
        (b'{"format": 1,', "line 1, column 14"),
        (b"[]", "expected was an object"),
        (b"\xff\xff", "no text in UTF-8"),
        (b'{"format":1,"shared":[],"snapshot":7,"policy":{},"now":1,"seed":1}', "field snapshot"),
        (b'{"format":1,"shared":[],"snapshot":{},"policy":{},"now":1,"seed":1}', "field snapshot"),
    ],
)
def test_wrong_json_is_refused_in_one_sentence_that_names_the_place(
    file: Path, content: bytes, said: str
) -> None:
    file.write_bytes(content)
    shown = call(file)
    assert shown.exit_code == Exit.USAGE
    assert said in " ".join(shown.output.split())
    assert "Error" not in shown.output


@pytest.mark.parametrize("command", ["decide", "queueing", "placement"])
@pytest.mark.parametrize("is_cut", [True, False], ids=["cut off", "damaged"])
def test_a_packed_file_that_is_cut_off_or_damaged_is_said_to_be(
    tmp_path: Path, command: str, is_cut: bool
) -> None:
    file = tmp_path / "packed.gz"
    packed = gzip.compress(b"sn,cpu_milli,memory_mib,gpu,model\n", mtime=0)
    # The second byte of the content is 3: a block of a kind that there is not.
    file.write_bytes(packed[:-12] if is_cut else packed[:10] + b"\x07" + packed[11:])
    options: dict[str, list[object]] = {
        "decide": [file],
        "queueing": ["--jobs", file, "--nodes", 1],
        "placement": ["--nodes", file, "--pods", file],
    }
    words = ["simulate", command, *map(str, options[command])]
    shown = CliRunner().invoke(build(), words)
    assert shown.exit_code == Exit.USAGE
    assert "cut off or damaged; expected a whole file." in " ".join(shown.output.split())
