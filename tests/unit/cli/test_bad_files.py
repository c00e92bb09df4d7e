"""Wrong files for the offline commands: refused at a line and column, never with a traceback."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplane.cli.main import build
from tests.unit.core.topology.matrices import MIXED_5

JOBS = "job_id,arrival_s,duration_s,gpu_count\na,0,100,6\nb,1,50,8\nc,2,40,2\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,4,T4\nn1,64000,262144,4,A10\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\nwhole,4000,1024,1,1000,\n"
    "share,4000,1024,1,500,T4|A10\nidle,1000,1024,0,0,\n"
)
GOOD = {"jobs": JOBS, "nodes": NODES, "pods": PODS, "matrix": MIXED_5}
PLACE = re.compile(r"line \d+[,:]")


def call(folder: Path, wrong: str, content: bytes) -> Result:
    """Call the command that reads such a file, with this content in it and good ones beside it."""
    for name, text in GOOD.items():
        (folder / name).write_bytes(content if name == wrong else text.encode())
    commands = {
        "jobs": ["simulate", "queueing", "--jobs", "jobs", "--nodes", "1"],
        "nodes": ["simulate", "placement", "--nodes", "nodes", "--pods", "pods"],
        "pods": ["simulate", "placement", "--nodes", "nodes", "--pods", "pods", "--policy", "fgd"],
        "matrix": ["topology", "best", "--matrix", "matrix", "--count", "2"],
    }
    words = [str(folder / word) if word in GOOD else word for word in commands[wrong]]
    return CliRunner().invoke(build(), [*words, "-o", "json"])


def check_refusal(result: Result, said: str = "") -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2, result.output
    assert PLACE.search(result.stderr), result.stderr
    assert "xpected" in result.stderr
    assert said in result.stderr
    assert len(result.stderr) < 2_000


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.rstrip("\n").encode(),
        lambda text: (text + "\n\n").encode(),
    ],
    ids=["CRLF", "BOM", "no last line end", "blank lines"],
)
def test_what_editors_do_to_a_file_changes_nothing(
    tmp_path: Path, kind: str, change: object
) -> None:
    assert callable(change)
    plain, changed = (
        call(tmp_path, kind, GOOD[kind].encode()),
        call(tmp_path, kind, change(GOOD[kind])),
    )
    assert changed.exit_code == plain.exit_code == 0, changed.output
    assert without_time(changed.stdout) == without_time(plain.stdout)


def without_time(text: str) -> str:
    return re.sub(r'"wall_s": [0-9.e-]+', "", text)


BROKEN = {
    "nothing": b"",
    "blank lines": b"\n\n\n",
    "zeros": b"\0" * 100,
    "every byte": bytes(range(256)),
    "UTF-16": JOBS.encode("utf-16"),
    "JSON": b'{"jobs": []}',
    "an open quote": b'"',
    "one long word": b"a" * 100_000,
    "a BOM alone": b"\xef\xbb\xbf",
    "an archive": b"PK\x03\x04",
}


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_what_is_no_such_file_is_refused_at_a_line(
    tmp_path: Path, kind: str, content: bytes
) -> None:
    check_refusal(call(tmp_path, kind, content))


@pytest.mark.parametrize(
    ("kind", "old", "new", "said"),
    [
        ("jobs", "job_id,arrival_s", "job_id,start", "line 1, column arrival_s: it is missing"),
        ("jobs", "b,1,50,8", "a,1,50,8", "line 3, column job_id: 'a' stands there again"),
        ("jobs", "b,1,50,8", "b,nan,50,8", "line 3, column arrival_s: 'nan'"),
        ("jobs", "b,1,50,8", "b,1,-50,8", "line 3, column duration_s: '-50'"),
        ("jobs", "b,1,50,8", "b,1,1e400,8", "line 3, column duration_s: '1e400'"),
        ("jobs", "b,1,50,8", "b,1,50," + "9" * 5000, "line 3, column gpu_count: '999"),
        ("jobs", "b,1,50,8", "b,1,50", "line 3: 3 values where the header has 4 names"),
        ("jobs", JOBS.partition("\n")[2], "", "line 2: no job stands there; expected at least one"),
        ("nodes", "sn,cpu_milli", "sn,cpu", "line 1, column cpu_milli"),
        ("nodes", "n1,", "n0,", "line 3, column sn: found 'n0' again"),
        ("nodes", "n1,64000", "n1,NaN", "line 3, column cpu_milli: found 'NaN'"),
        ("nodes", "n1,64000", "n1,-1", "line 3, column cpu_milli: found '-1'"),
        ("nodes", "n1,64000", f"n1,{1 << 60}", "line 3, column cpu_milli: found '1152921"),
        ("nodes", ",4,A10", ",400,A10", "line 3, column gpu: found '400'"),
        ("nodes", NODES.partition("\n")[2], "", "line 2: found no node, expected at least one"),
        ("pods", "share,", "whole,", "line 3, column name: found 'whole' again"),
        ("pods", "num_gpu,", "gpus,", "line 1, column num_gpu"),
        ("pods", "1,500,", "1,nan,", "line 3, column gpu_milli: found 'nan'"),
        ("pods", "1,500,", "2,500,", "line 3, column gpu_milli: found '500', expected 1000"),
        ("pods", "T4|A10", "T4|", "line 3, column gpu_spec"),
        ("pods", "share,4000", "\xe9,4000", "line 3: found a byte that is not UTF-8"),
        ("matrix", "GPU4    SYS", "GPU3    SYS", "line 6, column 1: GPU3"),
        ("matrix", "PHB      X      NODE", "PHB      X      NV99", "line 4, column 5 (GPU3): 'NV9"),
        ("matrix", "24-31      1 ", f"24-31   {'9' * 5000} ", "line 2, NUMA Affinity: '999"),
        ("matrix", "24-31      1 ", "24-31      \u00b2 ", "line 2, NUMA Affinity"),
    ],
)  # fmt: skip
def test_a_wrong_cell_is_told_by_line_and_column(
    tmp_path: Path, kind: str, old: str, new: str, said: str
) -> None:
    assert old in GOOD[kind]
    encoding = "latin-1" if "\xe9" in new else "utf-8"
    check_refusal(call(tmp_path, kind, GOOD[kind].replace(old, new, 1).encode(encoding)), said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "queueing", "--jobs", "jobs", "--nodes", "nan"], "--nodes"),
        (["simulate", "queueing", "--jobs", "jobs", "--nodes", "9" * 30], "--nodes"),
        (
            ["simulate", "queueing", "--jobs", "jobs", "--nodes", "1", "--gpus-per-node", "9" * 12],
            "--gpus-per-node",
        ),
        (
            ["simulate", "placement", "--nodes", "nodes", "--pods", "pods", "--arrivals", "nan"],
            "--arrivals: nan is no number.",
        ),
        (
            ["topology", "best", "--matrix", "matrix", "--count", "1", "--free", "9" * 5000],
            "is no GPU and no range",
        ),
        (["topology", "best", "--matrix", "matrix", "--count", "nan"], "--count"),
    ],
)
def test_a_wrong_number_on_the_command_line_is_refused(
    tmp_path: Path, words: Sequence[str], said: str
) -> None:
    for name, text in GOOD.items():
        (tmp_path / name).write_text(text)
    spelt = [str(tmp_path / word) if word in GOOD else word for word in words]
    result = CliRunner().invoke(build(), spelt)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize("name", ["nan", "", "x" * 10_000, "\u00b2", "T4"])
def test_a_model_that_is_none_has_no_layouts_and_is_told_the_nearest(name: str) -> None:
    result = CliRunner().invoke(build(), ["mig", "layouts", "--model", name])
    assert result.exit_code == 3
    assert "--model" in result.stderr
    assert "nvidia-" in result.stderr


changes = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "delete", "repeat"]),
        st.integers(0, 400),
        st.sampled_from([*b',\n\r"0123456789.-eENnaiSX \t\xff\x00']),
        st.integers(1, 12),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(GOOD)), changes)
def test_a_damaged_file_is_read_or_refused_at_a_line(
    tmp_path: Path, kind: str, damage: list[tuple[str, int, int, int]]
) -> None:
    content = bytearray(GOOD[kind].encode())
    for what, at, byte, length in damage:
        at = min(at, max(0, len(content) - 1))
        if what == "replace" and content:
            content[at] = byte
        elif what == "insert":
            content[at:at] = bytes([byte])
        elif what == "delete":
            del content[at : at + length]
        else:
            content[at:at] = content[at : at + 4 * length]
    result = call(tmp_path, kind, bytes(content))
    if result.exit_code == 4:
        assert "2 GPUs are asked for" in result.stderr
    elif result.exit_code:
        check_refusal(result)
    assert result.exception is None or isinstance(result.exception, SystemExit)
