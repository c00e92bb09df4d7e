"""Node and pod lists: what is read, and where a wrong one is wrong."""

from __future__ import annotations

import pytest

from gpuplane.core.simulation.placement.files import (
    ListError,
    TraceNode,
    TracePod,
    parse_nodes,
    parse_pods,
)

NODES = "sn,cpu_milli,memory_mib,gpu,model"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"


def lines(*rows: str) -> list[str]:
    return [f"{row}\n" for row in rows]


def test_columns_are_found_by_name_whatever_their_order() -> None:
    read = parse_pods(lines("qos,num_gpu,gpu_milli,name,memory_mib,cpu_milli", "LS,1,460,a,2,3"))
    assert read == (TracePod("a", 3, 2, 1, 460),)


def test_models_are_read_where_the_list_has_them() -> None:
    read = parse_pods(lines(f"{PODS},gpu_spec", "a,1,1,2,1000,T4|A10", "b,1,1,0,0,T4"))
    assert [pod.models for pod in read] == ["T4|A10", ""]


def test_a_share_of_more_than_a_gpu_is_a_whole_one() -> None:
    assert parse_pods(lines(PODS, "a,1,1,1,1200"))[0].gpu_milli == 1000


def test_a_node_without_gpus_has_no_model() -> None:
    assert parse_nodes(lines(NODES, "n,1,1,0,")) == (TraceNode("n", 1, 1, 0, ""),)


@pytest.mark.parametrize(
    ("rows", "line", "column", "expected"),
    [
        ([], 1, "name", "a header"),
        (["name,cpu_milli"], 1, "memory_mib", "a header"),
        ([f"{PODS},name"], 1, "name", "each column once"),
        ([PODS], 2, "", "at least one"),
        ([PODS, "a,1,1,1"], 2, "", "5, as the header has"),
        ([PODS, "a,1,1,0,0", "", "b,x,1,1,1000"], 4, "cpu_milli", "a whole number from 0"),
        ([PODS, "a,1,-1,1,1000"], 2, "memory_mib", "a whole number"),
        ([PODS, "a,1,1,17,1000"], 2, "num_gpu", "from 0 to 16"),
        ([PODS, "a,1,1,1,0"], 2, "gpu_milli", "from 1"),
        ([PODS, "a,1,1,2,500"], 2, "gpu_milli", "1000, because 2 GPUs"),
        ([PODS, " ,1,1,1,500"], 2, "name", "a name"),
        ([PODS, "a,1,1,1,"], 2, "gpu_milli", "a whole number"),
        ([PODS, f"a,{'9' * 30},1,1,500"], 2, "cpu_milli", "a whole number"),
        ([f"{PODS},gpu_spec", "a,1,1,1,500,T4||A10"], 2, "gpu_spec", "models joined by |"),
        ([PODS, 'a,1,1,"1,500'], 2, "", "a row of a CSV file"),
    ],
)
def test_a_wrong_pod_list_names_line_column_and_what_was_expected(
    rows: list[str], line: int, column: str, expected: str
) -> None:
    with pytest.raises(ListError) as caught:
        parse_pods(lines(*rows))
    assert (caught.value.line, caught.value.column) == (line, column)
    assert expected in str(caught.value)
    assert f"line {line}" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("n,0,1,1,T4", "cpu_milli"),
        ("n,1,1,1,", "model"),
        (",1,1,1,T4", "sn"),
        ("n,1,1,99,T", "gpu"),
    ],
)
def test_a_wrong_node_list_names_its_column(row: str, column: str) -> None:
    with pytest.raises(ListError) as caught:
        parse_nodes(lines(NODES, row))
    assert (caught.value.line, caught.value.column) == (2, column)


def test_a_node_given_twice_is_refused() -> None:
    with pytest.raises(ListError, match="line 3, column sn: found 'n' again"):
        parse_nodes(lines(NODES, "n,1,1,1,T4", "n,1,1,1,T4"))
