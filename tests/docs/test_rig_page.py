"""The page of the rig says which nodes there are where nobody says otherwise."""

from __future__ import annotations

import re

from rig.nodes import parse_nodes
from rig.rigs import DEFAULT_NODES, DEFAULT_PROCESS_NODES
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "operations" / "rig.md").read_text(encoding="utf-8")


def test_the_nodes_of_a_rig_that_is_told_nothing_are_on_the_page() -> None:
    found = dict(re.findall(r"^\| `(--[a-z-]*nodes) .*unless said `([^`]+)`", TEXT, re.M))
    assert {name: tuple(parse_nodes(text)) for name, text in found.items()} == {
        "--nodes": DEFAULT_NODES,
        "--process-nodes": DEFAULT_PROCESS_NODES,
    }
    assert parse_nodes("") == []
