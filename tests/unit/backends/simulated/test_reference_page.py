"""The reference page shows a fleet that can be read and names what the code knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuplane.backends.simulated import FleetError, parse_fleet
from gpuplane.core.topology.named import TOPOLOGY_NAMES

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "fleet.md").read_text(encoding="utf-8")
EXAMPLE = "".join(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))


def test_its_example_is_a_fleet() -> None:
    fleet = parse_fleet(EXAMPLE, "lab.yaml")
    assert [node.name for node in fleet.nodes] == ["h100-01", "h100-02", "h100-03", "h100-04"]
    assert len(fleet.failures) == 2


def test_its_example_of_a_mistake_is_answered_so() -> None:
    shown = re.search(r"```\nlab\.yaml: (.*), …\n```", PAGE)
    assert shown is not None
    with pytest.raises(FleetError) as refused:
        parse_fleet(EXAMPLE.replace("model: H100-80GB,", "model: H1000,"), "lab.yaml")
    assert f"lab.yaml: {shown.group(1)}" in str(refused.value)


def test_it_names_every_topology() -> None:
    assert [name for name in TOPOLOGY_NAMES if f"`{name}`" not in PAGE] == []
