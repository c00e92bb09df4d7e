"""Which cluster's nodes are meant, how they are shown, and what a mark on one has done."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from gpuplane.cli.commands.nodes import (
    _free,
    _places,
    _state,
    describe_cordon,
    describe_drain,
    describe_uncordon,
    nodes,
)
from gpuplane.cli.errors import Exit


def test_two_clusters_are_not_listed_as_one() -> None:
    result = CliRunner().invoke(nodes, ["ls", "east", "--cluster", "west"])
    assert result.exit_code == Exit.USAGE
    assert "east and west" in result.output


def test_a_node_without_gpus_shows_no_count_of_them() -> None:
    bare = {"gpus": [], "used_workers": 0, "total_workers": 1, "available_workers": 1}
    full = {"gpus": [{}, {}], "used_workers": 1, "total_workers": 2, "available_workers": 1}
    assert [(_places(row), _free(row)) for row in (bare, full)] == [("-", "-"), ("1/2", "1")]


SINCE = "2026-05-01T12:00:00.000Z"
LAB = {"name": "lab", "kind": "kubernetes"}


def a_node(**facts: Any) -> dict[str, Any]:
    row = {"name": "l4-1", "present": True, "ready": True, "draining": False, "cordoned": False,
           "unschedulable": False, "not_seen_since": None, "drain_wait_s": 300}  # fmt: skip
    return {**row, **facts}


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, "ready"),
        ({"not_seen_since": SINCE}, "unknown"),
        ({"not_seen_since": SINCE, "ready": False}, "unknown"),
        ({"not_seen_since": SINCE, "present": False}, "gone"),
    ],
)
def test_the_state_of_a_node_whose_cluster_is_silent_is_not_known(
    facts: dict[str, Any], state: str
) -> None:
    assert _state(a_node(**facts)) == state


def test_a_cordon_says_when_the_node_itself_will_have_it() -> None:
    silent = describe_cordon(a_node(not_seen_since=SINCE), LAB)
    assert silent == (
        "l4-1 gets no new jobs of gpuplane; the Node itself is cordoned once lab answers, "
        f"which it has not since {SINCE}"
    )
    assert describe_cordon(a_node(), LAB).endswith("is cordoned at the next look at lab")


def test_a_cordon_that_nothing_has_to_carry_out_is_made() -> None:
    assert describe_cordon(a_node(unschedulable=True), LAB) == "l4-1 is cordoned"
    simulated = {"name": "demo", "kind": "simulated"}
    assert describe_cordon(a_node(), simulated) == "l4-1 is cordoned"


def test_an_uncordon_says_when_the_cordon_is_taken_off_the_node() -> None:
    assert describe_uncordon(a_node(), LAB) == "l4-1 takes work again"
    closed = describe_uncordon(a_node(unschedulable=True, not_seen_since=SINCE), LAB)
    assert "once lab answers" in closed


def test_a_drain_of_a_node_that_is_not_seen_begins_once_its_cluster_answers() -> None:
    assert describe_drain(a_node(), LAB) == "l4-1 drains; its work is moved within 300 s"
    silent = describe_drain(a_node(not_seen_since=SINCE), LAB)
    assert silent.startswith("l4-1 is to be drained: it begins once lab answers")
