"""The life of a MIG partition is the specification's figure, and every state has a way on."""

from __future__ import annotations

import pytest

from gpuplane.core.lifecycle.mig import (
    FIRST,
    HELD,
    MIG_EDGES,
    MIG_STAYS,
    MigState,
    allowed_mig_targets,
    find_mig_edge,
)

FIGURE = {
    ("GPUDiscovered", "MIGEnabled", "Enable MIG Mode"),
    ("MIGEnabled", "PartitionCreated", "Create Partition"),
    ("PartitionCreated", "Available", "Ready"),
    ("Available", "Allocated", "Workload Scheduled"),
    ("Allocated", "InUse", "Pod Running"),
    ("InUse", "Available", "Pod Completed"),
    ("Available", "PartitionDestroyed", "Rebalance"),
    ("PartitionDestroyed", "PartitionCreated", "Create New Partition"),
    ("PartitionDestroyed", "MIGEnabled", "Cleanup"),
    ("MIGEnabled", "GPUDiscovered", "Disable MIG Mode"),
}
OURS = {("Allocated", "Available", "Pod Withdrawn")}
"""A workload that is cancelled before it runs; the figure leaves it out."""


def test_the_edges_are_those_of_the_figure_and_one_that_it_leaves_out() -> None:
    told = {(edge.source.value, edge.target.value, edge.trigger) for edge in MIG_EDGES}
    assert told == FIGURE | OURS


def test_there_are_seven_states_spelt_as_in_the_figure() -> None:
    assert {state.value for state in MigState} == {name for edge in FIGURE for name in edge[:2]}
    assert len(MigState) == 7


def test_only_an_available_partition_is_destroyed() -> None:
    sources = [e.source for e in MIG_EDGES if e.target is MigState.PARTITION_DESTROYED]
    assert sources == [MigState.AVAILABLE]
    assert MigState.AVAILABLE not in HELD


@pytest.mark.parametrize("state", MigState)
def test_every_state_can_be_reached_and_left_and_has_an_owner(state: MigState) -> None:
    reached, frontier = {FIRST}, [FIRST]
    while frontier:
        for target in allowed_mig_targets(frontier.pop()):
            if target not in reached:
                reached.add(target)
                frontier.append(target)
    assert state in reached
    assert allowed_mig_targets(state)
    stay = MIG_STAYS[state]
    assert stay.owner
    assert stay.deadline
    assert stay.exit


def test_every_edge_says_its_sentence_once() -> None:
    sentences = [edge.sentence for edge in MIG_EDGES]
    assert len(set(sentences)) == len(MIG_EDGES)
    assert all(sentence.endswith(".") for sentence in sentences)


def test_an_edge_is_found_and_one_that_is_not_there_is_not() -> None:
    edge = find_mig_edge(MigState.AVAILABLE, MigState.PARTITION_DESTROYED)
    assert edge is not None
    assert edge.trigger == "Rebalance"
    assert find_mig_edge(MigState.IN_USE, MigState.PARTITION_DESTROYED) is None
    assert find_mig_edge(MigState.ALLOCATED, MigState.PARTITION_DESTROYED) is None
