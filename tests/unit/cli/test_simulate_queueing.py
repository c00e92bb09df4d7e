"""`gpuplane simulate queueing` as people and programs call it: files, figures, refusals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuplane.cli.commands.simulate import SIMULATIONS, simulate
from gpuplane.cli.main import build

JOBS = """job_id,arrival_s,duration_s,gpu_count
a,0,100,6
b,1,50,8
c,2,40,2
d,3,200,1
e,4,20,1
"""
FIGURES = [
    "mean_jct_s", "mean_queue_s", "p50_queue_s", "p90_queue_s", "p99_queue_s", "max_queue_s",
    "jobs", "events", "wall_s",
]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS, encoding="utf-8")
    return path


def call(*words: object) -> Result:
    return CliRunner().invoke(build(), ["simulate", "queueing", *map(str, words)])


def figures(*words: object) -> dict[str, float]:
    result = call(*words, "-o", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, float] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    ("skip", "mean_queue_s", "max_queue_s"),
    [("strict", 108.0, 148), ("greedy", 63.6, 241), ("backfill", 56.8, 147)],
)
def test_the_figures_are_printed_under_their_names(
    file: Path, skip: str, mean_queue_s: float, max_queue_s: float
) -> None:
    found = figures("--jobs", file, "--nodes", 1, "--skip", skip)
    assert list(found) == FIGURES
    assert found["mean_queue_s"] == pytest.approx(mean_queue_s)
    assert found["mean_jct_s"] == pytest.approx(mean_queue_s + 82)
    assert (found["max_queue_s"], found["jobs"], found["events"]) == (max_queue_s, 5, 10)
    assert found["wall_s"] >= 0


def test_a_packed_file_gives_the_same(file: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    plain, same = (figures("--jobs", each, "--nodes", 1) for each in (file, packed))
    plain.pop("wall_s"), same.pop("wall_s")
    assert plain == same


def test_standard_input_is_a_file_too(file: Path) -> None:
    words = ["simulate", "queueing", "--jobs", "-", "--nodes", "1", "-o", "json"]
    result = CliRunner().invoke(build(), words, input=file.read_bytes())
    assert json.loads(result.stdout)["jobs"] == 5


def test_lines_may_end_as_on_windows(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "crlf.csv"
    other.write_bytes(JOBS.replace("\n", "\r\n").encode())
    assert figures("--jobs", other, "--nodes", 1)["jobs"] == 5


def test_yaml_is_json_in_another_dress(file: Path) -> None:
    result = call("--jobs", file, "--nodes", 2, "-o", "yaml")
    assert list(yaml.safe_load(result.stdout)) == FIGURES


def test_people_see_larger_units_beside_long_times(file: Path) -> None:
    result = call("--jobs", file, "--nodes", 1)
    assert "max queue s:   148.0 (2m28s)" in result.stdout
    assert "order" not in result.stdout
    wide = call("--jobs", file, "--nodes", 1, "-o", "wide").stdout
    assert "order:          fifo" in wide
    assert "p999 queue s:" in wide


def test_a_window_and_clusters_choose_the_jobs(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(
        "timestamp,duration,num_gpus,cluster\n"
        "2017-10-01 00:00:00,60.0,8,a\n2017-10-02 00:00:00,60.0,8,b\n2017-10-03 00:00:00,9,8,a\n"
    )
    window = ("--from", "2017-10-01", "--until", "2017-10-03")
    assert figures("--jobs", path, "--nodes", 1)["jobs"] == 3
    assert figures("--jobs", path, "--nodes", 1, *window)["jobs"] == 2
    assert figures("--jobs", path, "--nodes", 1, *window, "--cluster", "a")["jobs"] == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"arrival_s,duration_s,gpu_count\n0,x,1\n", "line 2, column duration_s: 'x' stands"),
        (b"arrival_s,duration_s,gpu_count\n0,1,9\n", "line 2, column gpu_count: job '2' wants 9"),
        (b"arrival_s,duration_s,num_gpus\n\n0,1,9\n", "line 3, column num_gpus: job '3' wants 9"),
        (b"arrival_s,duration_s,gpu_count\n0,\xff,1\n", "line 2: a byte is not UTF-8"),
        (b"", "line 1: the file is empty"),
    ],
)
def test_a_wrong_file_is_refused_at_its_line_and_column(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(content)
    result = call("--jobs", path, "--nodes", 1)
    assert result.exit_code == 2
    assert f"{path}: {said}" in result.stderr
    assert "; expected " in result.stderr


def test_a_file_that_is_not_there_or_broken_is_named(tmp_path: Path) -> None:
    missing = call("--jobs", tmp_path / "none.csv", "--nodes", 1)
    assert (missing.exit_code, "There is no file" in missing.stderr) == (3, True)
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(JOBS.encode())[:-12])
    cut = call("--jobs", broken, "--nodes", 1)
    assert (cut.exit_code, str(broken) in cut.stderr) == (2, True)
    folder = call("--jobs", tmp_path, "--nodes", 1)
    assert (folder.exit_code, "Is a directory" in folder.stderr) == (2, True)


def test_a_bound_that_is_no_instant_of_the_file_is_refused(file: Path) -> None:
    result = call("--jobs", file, "--nodes", 1, "--until", "2017-10-01")
    assert result.exit_code == 2
    assert "--until: '2017-10-01' is no instant of this file; expected seconds" in result.stderr


def test_the_bounded_order_takes_a_target_and_its_own_way_to_skip(file: Path) -> None:
    found = figures("--jobs", file, "--nodes", 1, "--order", "bounded", "--wait-target", "1m")
    assert found["max_queue_s"] <= 148
    wide = call("--jobs", file, "--nodes", 1, "--order", "bounded", "-o", "wide").stdout
    assert "skip:           backfill" in wide
    refused = call("--jobs", file, "--nodes", 1, "--order", "bounded", "--skip", "strict")
    assert refused.exit_code == 2
    assert "goes with backfill alone" in refused.stderr


def test_estimates_that_are_not_there_are_asked_for(file: Path) -> None:
    result = call("--jobs", file, "--nodes", 1, "--durations", "estimated")
    assert result.exit_code == 2
    assert "there is no column estimate_s" in result.stderr


def test_the_group_lists_every_simulation_without_importing_one() -> None:
    result = CliRunner().invoke(build(), ["simulate", "--help"])
    assert result.exit_code == 0
    assert [name for name in SIMULATIONS if f"\n  {name} " not in result.stdout] == []
    assert simulate.get_command(None, "nothing") is None  # type: ignore[arg-type]  # not looked at
    wrong = CliRunner().invoke(build(), ["simulate", "queue"])
    assert "Did you mean queueing" in wrong.output
