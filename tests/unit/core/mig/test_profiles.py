"""The MIG tables: equal to the published ones, honest about what is only assumed."""

import csv
import json
import os
from pathlib import Path

import pytest

from gpuplane.core.hardware import KNOWN_MODELS
from gpuplane.core.mig.profiles import (
    KNOWN_TABLES,
    MigProfile,
    MigTable,
    PlacementSource,
    decode_table,
    encode_table,
    find_models_with_profile,
    find_profile,
    find_table,
    nearest_profiles,
)

A100 = KNOWN_TABLES["nvidia-a100-80gb"]


def _published() -> list[dict[str, str]]:
    default = Path(__file__).resolve().parents[5] / "shared" / "data"
    file = Path(os.environ.get("GPUPLANE_DATA", default)) / "mig_profiles.csv"
    if not file.is_file():
        pytest.skip("no published MIG table here (set GPUPLANE_DATA)")
    with file.open(newline="") as rows:
        return list(csv.DictReader(rows))


def test_every_published_row_is_in_our_tables() -> None:
    rows = _published()
    assert len(rows) == 52
    for row in rows:
        table = find_table(row["gpu_model"])
        assert table is not None, row["gpu_model"]
        profile = table.find_profile(row["profile"])
        assert profile is not None, row
        assert profile.compute_slices == int(row["gpu_instance_slices"])
        assert profile.memory_slices == int(row["memory_slices"])
        assert profile.memory_gb == int(row["memory_gb"])
        assert profile.max_instances == int(row["max_instances"])
        if row["placements_start_indices"]:
            starts = tuple(map(int, row["placements_start_indices"].split("|")))
            assert profile.starts == starts
            assert profile.memory_slices == int(row["placement_size"])
            assert table.placements is not PlacementSource.ASSUMED
        else:
            assert table.placements is PlacementSource.ASSUMED


def test_a_model_with_mig_has_a_table_of_its_slices() -> None:
    for name, table in KNOWN_TABLES.items():
        assert KNOWN_MODELS[name].mig_slices == table.compute_slices
    without = {name for name, model in KNOWN_MODELS.items() if model.supports_mig}
    # The H20's profiles are not published: its table can only come from the device.
    assert without - set(KNOWN_TABLES) == {"nvidia-h20-96gb"}


def test_a_model_without_mig_has_no_table() -> None:
    assert find_table("T4") is None
    assert find_table("no such model") is None
    assert find_profile("T4", "1g.10gb") is None
    assert nearest_profiles("T4", "1g.10gb") == []


@pytest.mark.parametrize(
    "spelling", ["1g.10gb", " 1G.10GB ", "mig-1g.10gb", "nvidia.com/mig-1g.10gb", "MIG 1g.10gb"]
)
def test_a_profile_is_found_in_every_spelling(spelling: str) -> None:
    profile = find_profile("A100-80GB", spelling)
    assert profile is not None
    assert profile.name == "1g.10gb"
    assert profile.memory_slices == 1


def test_the_resource_name_of_a_media_profile_is_understood() -> None:
    profile = find_profile("H100", "nvidia.com/mig-1g.10gb.me")
    assert profile is not None
    assert profile.name == "1g.10gb+me"
    assert profile.has_media
    other = find_profile("RTX PRO 6000 Blackwell", "1g.24gb.me.all")
    assert other is not None
    assert other.has_all_media


def test_the_same_name_is_another_size_on_another_model() -> None:
    small, large = find_profile("A100-80GB", "1g.10gb"), find_profile("A100-40GB", "1g.10gb")
    assert small is not None
    assert large is not None
    assert (small.memory_slices, large.memory_slices) == (1, 2)


def test_the_nearest_profiles_are_offered() -> None:
    assert nearest_profiles("A100-80GB", "1g.12gb")[0] == "1g.10gb"
    assert nearest_profiles("A100-80GB", "3g.20gb", limit=1) == ["3g.40gb"]
    assert nearest_profiles("A100-80GB", "seven", limit=2) != []


def test_the_models_of_a_profile_are_listed() -> None:
    assert find_models_with_profile("3g.40gb", "A100") == (
        "nvidia-a100-80gb",
        "nvidia-a100-80gb-pcie",
    )
    assert find_models_with_profile("9g.1gb") == ()


@pytest.mark.parametrize(
    ("starts", "text"),
    [((), "must ascend"), ((2, 0), "must ascend"), ((7,), "leaves the GPU"), ((-1,), "leaves")],
)
def test_a_table_with_an_impossible_placement_is_refused(
    starts: tuple[int, ...], text: str
) -> None:
    profile = MigProfile("2g.20gb", 2, 2, 20, 3, starts)
    with pytest.raises(ValueError, match=text):
        MigTable("x", 8, 7, (profile,), PlacementSource.DEVICE)


def test_a_table_with_a_profile_twice_is_refused() -> None:
    profile = MigProfile("1g.10gb", 1, 1, 10, 7, (0,))
    with pytest.raises(ValueError, match="twice"):
        MigTable("x", 8, 7, (profile, profile), PlacementSource.DEVICE)


@pytest.mark.parametrize("model", KNOWN_TABLES)
def test_a_table_is_read_back_as_it_was_written(model: str) -> None:
    table = KNOWN_TABLES[model]
    read = decode_table(model, json.loads(json.dumps(encode_table(table))))
    assert read.profiles == table.profiles
    assert (read.memory_slices, read.compute_slices) == (table.memory_slices, table.compute_slices)
    assert read.placements is PlacementSource.DEVICE


@pytest.mark.parametrize("rows", [[], [["1g.10gb", 1, 1, 10, 7, []]], [["1g.10gb", None]]])
def test_what_is_no_table_is_refused(rows: list[list[object]]) -> None:
    with pytest.raises(ValueError, match=r"MIG|placement|unpack"):
        decode_table("x", rows)
