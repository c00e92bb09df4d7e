"""What is read off annotations that anybody may have written."""

from __future__ import annotations

import json

import pytest

from gpuplane.backends.kubernetes.annotations import (
    Place,
    find_object,
    read_instances,
    read_number,
    read_object,
    read_places,
)
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import GpuId
from gpuplane.kit.depths import MAX_JSON_DEPTH


@pytest.mark.parametrize(
    "text", [None, "", "²", "٣", "-1", "+1", " 1", "1_0", "1" * 19, "1" * 5_000]
)
def test_a_text_that_is_no_plain_number_is_none(text: str | None) -> None:
    assert read_number(text) is None


def test_a_plain_number_is_read_however_it_is_padded() -> None:
    assert (read_number("0"), read_number("007"), read_number("9" * 18)) == (0, 7, 10**18 - 1)


@pytest.mark.parametrize(
    "text", ["{", "[1]", "1", '{"a":' * 5_000, '{"a": "\\ud800"}', "1" * 5_000]
)
def test_a_text_that_is_no_object_or_cannot_be_kept_is_none(text: str) -> None:
    assert find_object(text) is None
    assert read_object(text) == {}


def test_an_object_may_be_nested_up_to_a_limit_that_leaves_room_to_write_it() -> None:
    def nested(depth: int) -> str:
        return '{"a":' * depth + "1" + "}" * depth

    assert find_object(nested(MAX_JSON_DEPTH)) is not None
    assert find_object(nested(MAX_JSON_DEPTH + 1)) is None


def test_places_that_are_whole_are_read_beside_those_that_are_not() -> None:
    whole = {"node": "n", "annotations": {"g": "1"}}
    text = json.dumps(
        {
            "0": whole,
            "1": {"node": "m"},
            "²": whole,
            "02": whole,
            "3": None,
            "4": {"node": 4},
            "5": {"annotations": {}},
            "6": {**whole, "annotations": {"g": 1}},
            "7": {**whole, "annotations": ["g"]},
        }
    )
    assert read_places(text) == {0: Place("n", {"g": "1"}), 1: Place("m", {})}


def test_the_instances_of_a_manifest_are_those_that_can_be_read() -> None:
    devices = ["GPU-1/1g.5gb@0", "GPU-2/1g.5gb@x", "GPU-3", 4, None]
    text = json.dumps({"replicas": [{"mig_device": each} for each in devices] + [5]})
    assert read_instances(text) == {MigPlacement(GpuId("GPU-1"), "1g.5gb", 0)}
    assert read_instances('{"replicas": 1}') == read_instances("[") == set()
