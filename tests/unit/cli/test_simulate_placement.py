"""`gpuplane simulate placement` as people and programs call it: files, figures, refusals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuplane.cli.main import build
from gpuplane.core.simulation.placement.replays import POLICIES

NODES = """sn,cpu_milli,memory_mib,gpu,model
n0,64000,262144,4,T4
n1,64000,262144,4,A10
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
whole,4000,1024,1,1000,
share,4000,1024,1,500,T4|A10
wide,8000,1024,4,1000,
idle,1000,1024,0,0,
huge,8000,1024,8,1000,
"""
FIGURES = [
    "arrived", "placed", "allocated_gpu_milli", "allocation_ratio", "cpu_milli_left",
    "refused_by_gpu_count", "wall_s",
]  # fmt: skip


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.csv"
    path.write_text(NODES, encoding="utf-8")
    return path


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    path = tmp_path / "pods.csv"
    path.write_text(PODS, encoding="utf-8")
    return path


def call(nodes: Path, pods: Path, *words: object) -> Result:
    files = ["--nodes", str(nodes), "--pods", str(pods)]
    return CliRunner().invoke(build(), ["simulate", "placement", *files, *map(str, words)])


def figures(nodes: Path, pods: Path, *words: object) -> dict[str, Any]:
    result = call(nodes, pods, *words, "-o", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def without_time(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if name != "wall_s"}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_prints_every_figure(nodes: Path, pods: Path, policy: str) -> None:
    shown = figures(nodes, pods, "--policy", policy, "--arrivals", 2)
    assert [name for name in FIGURES if name not in shown] == []
    assert (shown["policy"], shown["order"]) == (policy, "file")
    assert shown["refused_by_gpu_count"]["8"] == 1
    assert shown["arrived"] == shown["placed"] + sum(shown["refused_by_gpu_count"].values())


def test_figures_are_those_of_a_run_by_hand(nodes: Path, pods: Path) -> None:
    # 13,500 milli a round, 16,000 to arrive: the second round ends before its pod of 4 GPUs.
    shown = figures(nodes, pods, "--policy", "bestfit", "--arrivals", 2)
    assert shown["arrived"] == 7
    assert shown["allocated_gpu_milli"] == 1000 + 500 + 4000 + 1000 + 500
    assert shown["allocation_ratio"] == 0.875
    assert shown["cpu_milli_left"] == 128_000 - 4000 - 4000 - 8000 - 1000 - 8000


def test_a_packed_list_is_read_like_a_plain_one(nodes: Path, pods: Path, tmp_path: Path) -> None:
    packed = tmp_path / "pods.csv.gz"
    packed.write_bytes(gzip.compress(PODS.encode()))
    plain, again = figures(nodes, pods), figures(nodes, packed)
    assert without_time(again) == without_time(plain)


def test_a_seed_is_repeated_to_the_digit(nodes: Path, pods: Path) -> None:
    words = ("--order", "shuffle", "--seed", 7, "--arrivals", 1.5)
    first = without_time(figures(nodes, pods, *words))
    assert without_time(figures(nodes, pods, *words)) == first


def test_looking_ahead_and_moves_are_told_with_their_price(nodes: Path, pods: Path) -> None:
    shown = figures(nodes, pods, "--look-ahead", 3, "--moves", 5)
    assert shown["look_ahead"] == 3
    assert 0 <= shown["moves"] <= 5
    assert 0 <= shown["longest_wait"] <= 25


def test_people_read_a_line_for_each_figure(nodes: Path, pods: Path) -> None:
    result = call(nodes, pods, "--arrivals", 1)
    assert "allocation ratio:" in result.output
    assert "at 40 %:" in result.output


@pytest.mark.parametrize("option", ["--look-ahead", "--moves"])
def test_published_policies_neither_look_ahead_nor_move(
    nodes: Path, pods: Path, option: str
) -> None:
    result = call(nodes, pods, "--policy", "fgd", option, 3)
    assert result.exit_code == 2
    assert option in result.output
    assert "a policy of ours" in result.output


def test_a_wrong_value_is_named_by_file_line_and_column(nodes: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(PODS.replace("share,4000", "share,many"), encoding="utf-8")
    result = call(nodes, wrong)
    assert result.exit_code == 2
    expected = "line 3, column cpu_milli: found 'many', expected a whole number from 0 to"
    assert f"{wrong}: {expected}" in result.output


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe\x00", "line 1: found a byte that is not UTF-8"),
        (gzip.compress(PODS.encode())[:40], "cut off or damaged"),
        (b"", "line 1, column name: found nothing"),
    ],
    ids=["no file", "no text", "half a packed file", "nothing"],
)
def test_a_file_that_is_no_list_is_refused_with_a_sentence(
    nodes: Path, tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    wrong = tmp_path / "wrong.csv"
    if content is not None:
        wrong.write_bytes(content)
    result = call(nodes, wrong)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_pods_that_ask_for_next_to_nothing_are_not_repeated_for_ever(
    tmp_path: Path, pods: Path
) -> None:
    wide = tmp_path / "wide.csv"
    rows = [f"n{i},64000,262144,16,T4" for i in range(200)]
    wide.write_text("\n".join([NODES.splitlines()[0], *rows]), encoding="utf-8")
    tiny = tmp_path / "tiny.csv"
    tiny.write_text(PODS.splitlines()[0] + "\na,0,0,1,1,\n", encoding="utf-8")
    result = call(wide, tiny, "--arrivals", 1)
    assert result.exit_code == 2
    assert "--arrivals: The pods ask for so few GPUs" in result.output
