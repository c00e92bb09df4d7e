"""Manifests: what is read, and how mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.cli.errors import CliError
from gpuplane.cli.kinds.changes import Difference, differences_of, is_same, narrowed, texts_of
from gpuplane.cli.kinds.jobs import key_of
from gpuplane.cli.manifests import Document, read_documents

KINDS = ("Job", "Tenant")
HEAD = "apiVersion: gpuplane.io/v1\n"


def read(text: str) -> list[Document]:
    return read_documents(text, "jobs.yaml", Path(), KINDS)


def test_one_file_may_hold_several_documents_and_empty_ones() -> None:
    text = f"---\n{HEAD}kind: Tenant\nmetadata: {{name: a}}\n---\n---\n{HEAD}kind: Job\n"
    found = read(text + "metadata: {name: b, labels: {x: y}}\nspec: {gpu_count: 1}\n")
    assert [(each.kind, each.name, each.spec) for each in found] == [
        ("Tenant", "a", {}), ("Job", "b", {"gpu_count": 1}),
    ]  # fmt: skip
    assert found[1].metadata == {"labels": {"x": "y"}}
    assert found[1].place == "jobs.yaml, line 7"


def test_an_instant_stays_the_text_it_is() -> None:
    (found,) = read(f"{HEAD}kind: Job\nmetadata: {{name: a}}\nspec: {{at: 2026-05-01T09:00:00Z}}\n")
    assert found.spec["at"] == "2026-05-01T09:00:00Z"


@pytest.mark.parametrize(
    ("text", "field", "told"),
    [
        ("a: [1\n", "line 2", "no valid YAML"),
        ("- 1\n", "line 1", "mapping"),
        ("apiVersion: v1\nkind: Job\n", "line 1", "apiVersion is 'v1'."),
        ("kind: Job\n", "line 1", "apiVersion is missing."),
        (f"{HEAD}kind: Jbo\n", "line 1", "no kind 'Jbo'"),
        (f"{HEAD}kind: Job\nmetadata: {{}}\n", "Job", "metadata.name"),
        (f"{HEAD}kind: Job\nmetadata: {{name: a}}\nsepc: {{}}\n", "line 1", "'sepc'"),
        (f"{HEAD}kind: Job\nmetadata: {{name: a}}\nspec: 3\n", "Job a", "no mapping"),
        (f"{HEAD}kind: Job\nkind: Job\n", "line 3", "stands twice"),
        (f"{HEAD}kind: Job\nmetadata: {{name: a}}\nspec: !!python/name:os.system\n", "", "YAML"),
        ("[" * 5000, "", ""),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, field: str, told: str) -> None:
    with pytest.raises(CliError) as refused:
        read(text)
    assert field in refused.value.field
    assert told in refused.value.message
    assert refused.value.exit_code == 2


def test_a_mistyped_kind_is_offered_the_nearest() -> None:
    with pytest.raises(CliError) as refused:
        read(f"{HEAD}kind: Tennant\nmetadata: {{name: a}}\n")
    assert refused.value.fix == "Did you mean Tenant?"


def test_one_thing_described_twice_is_refused() -> None:
    one = f"{HEAD}kind: Job\nmetadata: {{name: a}}\n"
    with pytest.raises(CliError, match="twice"):
        read(f"{one}---\n{one}")


def test_metadata_of_another_kind_are_refused() -> None:
    (found,) = read(f"{HEAD}kind: Job\nmetadata: {{name: a, namespace: b}}\n")
    with pytest.raises(CliError, match="namespace"):
        found.check_metadata("labels")


def test_only_fields_that_differ_are_differences() -> None:
    wanted = {"a": 1, "b": {"c": [1, 2], "d": "x"}, "e": None}
    found = {"a": 1.0, "b": {"c": [1, 2], "d": "y", "more": 1}, "other": 2}
    assert differences_of(wanted, found) == [Difference("b.d", "y", "x")]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("10.00", 10, True),
        ("2026-05-01T09:00:00.000Z", "2026-05-01T11:00:00+02:00", True),
        ("nvidia-h100-80gb", "H100", True),
        ("nvidia-h100-80gb", "H100-80GB", True),
        ("nvidia-h100-80gb", "A100", False),
        ([{"a": 1, "b": 2}], [{"a": 1}], True),
        ([1], [1, 2], False),
        (True, 1, True),
        (False, "0", False),
        (None, "", True),
        ("x", "y", False),
    ],
)
def test_values_mean_the_same_however_they_are_written(
    old: object, new: object, same: bool
) -> None:
    assert is_same(old, new) is same


def test_the_key_of_a_job_follows_its_name_and_content_not_its_order() -> None:
    one = key_of({"name": "a", "gpu_count": 1, "spec": {"x": 1, "y": 2}})
    assert one == key_of({"spec": {"y": 2, "x": 1}, "gpu_count": 1, "name": "a"})
    assert one != key_of({"name": "a", "gpu_count": 2, "spec": {"x": 1, "y": 2}})
    assert one != key_of({"name": "b", "gpu_count": 1, "spec": {"x": 1, "y": 2}})


def test_a_long_value_is_narrowed_to_the_part_that_differs() -> None:
    def groups(nominal: int) -> list[dict[str, object]]:
        resources = [{"name": "nvidia.com/gpu", "nominalQuota": nominal}]
        flavors = [{"name": "nvidia-a100-80gb", "resources": resources}]
        return [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]

    assert narrowed(Difference("resourceGroups", groups(2), groups(4))) == [
        Difference("resourceGroups[0].flavors[0].resources[0].nominalQuota", 2, 4)
    ]
    longer = Difference("command", ["a"], ["a", "b"])
    assert narrowed(longer) == [longer]


def test_long_texts_are_cut_around_the_place_at_which_they_differ() -> None:
    common = "x" * 200
    old, new = texts_of(Difference("f", common + "old" + common, common + "new" + common))
    assert old.startswith("…x")
    assert "old" in old
    assert "new" in new
    assert len(old) <= 61
    grown = texts_of(Difference("f", common, common + "tail"))
    assert grown[0] != grown[1]
    assert grown[1].endswith("tail")
    assert texts_of(Difference("f", None, 4)) == ("(none)", "4")
