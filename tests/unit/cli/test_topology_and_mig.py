"""The offline commands on link matrices and MIG layouts, on good files and on bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuplane.cli.commands.mig import mig
from gpuplane.cli.commands.topology import topology
from gpuplane.cli.errors import Exit
from tests.unit.core.topology.matrices import CUBE_MESH, MIXED_5, data_folder


@pytest.fixture
def cube(tmp_path: Path) -> Path:
    file = tmp_path / "cube.txt"
    file.write_text(CUBE_MESH)
    return file


def best(*arguments: object) -> Result:
    return CliRunner().invoke(topology, ["best", *map(str, arguments)])


def answer(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_best_gpus_are_told_beside_every_other_choice(cube: Path) -> None:
    found = answer(best("--matrix", cube, "--count", 3, "-o", "json"))
    assert found["gpus"] == [0, 2, 3]
    assert (found["links"], found["best_links"], found["is_optimal"]) == (5, 5, True)
    assert (found["best_sets"], found["sets"]) == (4, 56)
    assert (found["first_links"], found["worst_links"]) == (4, 1)
    assert round(found["mean_links"], 2) == 2.57
    assert {"gpus": [0, 3], "link": "NV2"} in found["pairs"]
    assert found["numa_nodes"] == [0]
    assert found["left_best_links"] == {"2": 2, "4": 9}


def test_a_preference_and_free_gpus_are_heeded(cube: Path) -> None:
    found = answer(
        best("--matrix", cube, "--count", 2, "--free", "0-1,4", "--preference", "nvlink",
             "--required", "-o", "json")
    )  # fmt: skip
    assert found["gpus"] == [0, 4]
    assert (found["preference"], found["score"]) == ("nvlink", 100)


def test_every_form_of_the_answer_says_the_same(cube: Path) -> None:
    data = answer(best("--matrix", cube, "--count", 4, "-o", "json"))
    assert yaml.safe_load(best("--matrix", cube, "--count", 4, "-o", "yaml").stdout) == data
    table = best("--matrix", cube, "--count", 4).stdout
    wide = best("--matrix", cube, "--count", 4, "-o", "wide").stdout
    assert "0, 1, 2, 3" in table
    assert "9 (best 9, mean 5.143, worst 2, lowest indices 9)" in table
    assert "0–3 NV2" in wide
    assert "0–3 NV2" not in table


def test_a_matrix_is_read_from_standard_input() -> None:
    result = CliRunner().invoke(
        topology, ["best", "--matrix", "-", "--count", "2", "-o", "json"], input=MIXED_5
    )
    assert answer(result)["gpus"] == [1, 2]


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        (
            MIXED_5.replace("PHB      X      NODE", "PHB      X      NDOE"),
            "line 4, column 5 (GPU3): 'NDOE'",
            "X, NV# or one of PIX, PXB, PHB, NODE, SYS",
        ),
        (MIXED_5.replace("GPU4    SYS", "GPU9    SYS"), "line 6, column 1: GPU9", "header"),
        ("hello\n", "line 1, column 1: 'hello'", "starts with GPU0"),
        ("", "line 1, column 1: no header", "starts with GPU0"),
    ],
)
def test_a_broken_file_is_told_by_line_column_and_expectation(
    tmp_path: Path, text: str, place: str, expected: str
) -> None:
    file = tmp_path / "broken.txt"
    file.write_text(text)
    result = best("--matrix", file, "--count", 2)
    assert result.exit_code == Exit.USAGE
    assert place in result.stderr
    assert expected in result.stderr


def test_bytes_that_are_no_text_are_told_by_their_place(tmp_path: Path) -> None:
    file = tmp_path / "binary.txt"
    file.write_bytes(b"GPU0\nab\xff")
    result = best("--matrix", file, "--count", 1)
    assert result.exit_code == Exit.USAGE
    assert "line 2, byte 3" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--count", "9"], Exit.REFUSED, "9 GPUs are asked for, 8 are free."),
        (["--count", "2", "--free", "3"], Exit.REFUSED, "2 GPUs are asked for, 1 is free."),
        (["--count", "2", "--free", "0,9"], Exit.USAGE, "9 is not on this node."),
        (["--count", "2", "--free", "a-b"], Exit.USAGE, "is no GPU and no range"),
        (["--count", "0"], Exit.USAGE, "0 is not in the range"),
        (["--count", "5", "--preference", "nvlink", "--required"], Exit.REFUSED, "requires"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused(
    cube: Path, arguments: list[str], code: int, text: str
) -> None:
    result = best("--matrix", cube, *arguments)
    assert result.exit_code == code
    assert text in result.stderr


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    result = best("--matrix", tmp_path / "none.txt", "--count", 1)
    assert result.exit_code == Exit.NOT_FOUND


def test_a_file_far_too_large_is_no_listing(tmp_path: Path) -> None:
    file = tmp_path / "large.txt"
    file.write_bytes(b"x" * (1 << 20 | 1))
    result = best("--matrix", file, "--count", 1)
    assert (result.exit_code, "listing of one node" in result.stderr) == (Exit.USAGE, True)


def test_every_real_listing_is_answered() -> None:
    folder = data_folder()
    if folder is None:
        pytest.skip("no real topology listings here (set GPUPLANE_DATA)")
    files = sorted((folder / "topology").glob("*.txt"))
    for file in files:
        for count in (1, 2, 4):
            assert answer(best("--matrix", file, "--count", count, "-o", "json"))["is_optimal"]
    assert len(files) == 14


def test_the_parts_of_a_node_are_shown(cube: Path) -> None:
    shown = CliRunner().invoke(topology, ["show", "--matrix", str(cube), "-o", "json"])
    found = answer(shown)
    assert found["nvlink"] == "nvlink"
    assert found["numa_nodes"] == {"0": [0, 1, 2, 3], "1": [4, 5, 6, 7]}
    assert found["pcie_switches"] == [[0, 1], [4, 5]]
    assert found["items"][3]["links"][0] == "NV2"
    table = CliRunner().invoke(topology, ["show", "--matrix", str(cube)]).stdout
    assert table.splitlines()[1].split()[:4] == ["0", "X", "NV1", "NV1"]


def run_mig(*arguments: str) -> Result:
    return CliRunner().invoke(mig, list(arguments))


def test_the_layouts_of_a_model_are_listed() -> None:
    found = answer(run_mig("layouts", "--model", "A30", "-o", "json"))
    assert (found["model"], found["memory_slices"], found["placements"]) == (
        "nvidia-a30",
        4,
        "mocked",
    )
    assert [each["counts"] for each in found["items"]] == [
        {"1g.6gb": 4},
        {"1g.6gb": 2, "2g.12gb": 1},
        {"2g.12gb": 1, "1g.6gb": 2},
        {"2g.12gb": 2},
        {"4g.24gb": 1},
    ]
    assert found["reachable_masks"] == list(range(16))


def test_the_layouts_of_an_a100_without_double_memory_are_its_nineteen() -> None:
    found = answer(run_mig("layouts", "--model", "A100-80GB", "-o", "json"))
    plain = [each for each in found["items"] if "1g.20gb" not in each["counts"]]
    assert len(plain) == 19
    assert all(each["compute_used"] <= 7 for each in found["items"])


def test_layouts_have_every_form() -> None:
    data = answer(run_mig("layouts", "--model", "H100", "-o", "json"))
    assert yaml.safe_load(run_mig("layouts", "--model", "H100", "-o", "yaml").stdout) == data
    table = run_mig("layouts", "--model", "H100")
    wide = run_mig("layouts", "--model", "H100", "-o", "wide").stdout
    assert len(table.stdout.splitlines()) == len(data["items"]) + 1
    assert "11111111" in wide
    assert "lgipp" in table.stderr


def test_the_profiles_of_a_model_say_what_is_only_assumed() -> None:
    result = run_mig("profiles", "--model", "H200")
    assert "assumed" in result.stderr
    found = answer(run_mig("profiles", "--model", "H200", "-o", "json"))
    assert found["placements"] == "assumed"
    (half,) = [each for each in found["items"] if each["profile"] == "3g.71gb"]
    assert (half["memory_slices"], half["starts"]) == (4, [0, 4])


def test_shares_are_planned_over_gpus() -> None:
    found = answer(
        run_mig(
            "plan", "--model", "A100-80GB", "--gpus", "2", "--share", "1g.10gb=70",
            "--share", "2g.20gb=20", "--share", "3g.40gb=10", "-o", "json",
        )
    )  # fmt: skip
    assert [(each["profile"], each["share"]) for each in found["shares"]] == [
        ("1g.10gb", 0.7),
        ("2g.20gb", 0.2),
        ("3g.40gb", 0.1),
    ]
    assert sum(each["gpus"] for each in found["items"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["layouts", "--model", "T4"], Exit.NOT_FOUND, "nvidia-t4 has no MIG"),
        (["layouts"], Exit.USAGE, "Either a model or a GPU"),
        (["layouts", "--model", "A30", "--gpu", "0"], Exit.USAGE, "Either a model or a GPU"),
        (["profiles", "--gpu", "63"], Exit.NOT_FOUND, "no GPU 63 with MIG"),
        (["layouts", "--model", "H20"], Exit.NOT_FOUND, "are not published"),
        (["layouts", "--model", "A1000"], Exit.NOT_FOUND, "Nearest names"),
        (["plan", "--model", "A30", "--gpus", "1", "--share", "x"], Exit.USAGE, "is no share"),
        (
            ["plan", "--model", "A30", "--gpus", "1", "--share", "3g.20gb=1"],
            Exit.USAGE,
            "nearest are",
        ),
        (
            ["plan", "--model", "A30", "--gpus", "1", "--share", "1g.6gb=0"],
            Exit.USAGE,
            "no profile has a share",
        ),
    ],
)
def test_a_wrong_question_about_mig_is_told_what_is_known(
    arguments: list[str], code: int, text: str
) -> None:
    result = run_mig(*arguments)
    assert result.exit_code == code
    assert text in result.stderr
