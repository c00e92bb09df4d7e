"""Fleets made from a trace's node list."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.backends.simulated import FleetError, fleet_from_trace

HEADER = "sn,cpu_milli,memory_mib,gpu,model\n"


def a_list(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "nodes.csv"
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    return path


def test_each_row_is_a_node(tmp_path: Path) -> None:
    path = a_list(
        tmp_path, "n-0,64000,262144,2,P100", "n-1,96000,786432,8,V100M32", "n-2,8000,1,0,"
    )
    fleet = fleet_from_trace(path, name="trace")
    assert [(n.name, n.cpu_milli, n.memory_mib, len(n.gpus)) for n in fleet.nodes] == [
        ("n-0", 64_000, 262_144, 2),
        ("n-1", 96_000, 786_432, 8),
        ("n-2", 8000, 1, 0),
    ]
    assert {gpu.model for gpu in fleet.nodes[1].gpus} == {"nvidia-v100-32gb"}
    assert fleet.prices.gpu_hour_micro == {}


def test_columns_may_stand_in_any_order(tmp_path: Path) -> None:
    path = a_list(tmp_path, "T4,1,n-0,5,1000", header="model,gpu,sn,memory_mib,cpu_milli\n")
    assert fleet_from_trace(path, name="trace").nodes[0].gpus[0].model == "nvidia-t4"


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ("n-0,-1,5,0,", "row 2.cpu_milli", "'-1' stands here"),
        ("n-0,1000,x,0,", "row 2.memory_mib", "'x' stands here"),
        ("n-0,1000,5,99,T4", "row 2.gpu", "'99' stands here"),
        ("n-0,1000,5,1,X9", "row 2.model", "'X9' is not known"),
        (",1000,5,0,", "row 2.sn", "it is empty"),
        ("n-0,1000", "row 2.gpu", "'' stands here"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_with_its_column(
    tmp_path: Path, row: str, field: str, reason: str
) -> None:
    with pytest.raises(FleetError) as refused:
        fleet_from_trace(a_list(tmp_path, row), name="trace")
    (mistake,) = [each for each in refused.value.errors if each.field == field]
    assert reason in mistake.reason
    assert mistake.fix


def test_a_node_listed_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"row 3.sn: the node 'n' exists already"):
        fleet_from_trace(a_list(tmp_path, "n,1,1,0,", "n,1,1,0,"), name="trace")


def test_a_list_without_nodes_or_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="it holds 0 nodes"):
        fleet_from_trace(a_list(tmp_path), name="trace")
    with pytest.raises(FleetError, match="no column gpu"):
        fleet_from_trace(a_list(tmp_path, header="sn,cpu_milli,memory_mib,model\n"), name="trace")
    with pytest.raises(FleetError, match="readable CSV"):
        fleet_from_trace(tmp_path / "absent.csv", name="trace")
