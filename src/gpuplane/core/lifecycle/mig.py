"""The life of a MIG partition: the seven states of the specification and every allowed edge.

Owns the table; never applies an edge. The first two states are the GPU's own, the other five
those of one instance on it. Only an Available partition is ever destroyed: what a workload was
promised or uses stays until it is given back.

Source: topology scheduler specification, figure "MIG Lifecycle".
"""

from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.lifecycle.jobs import Stay


class MigState(StrEnum):
    """The seven states, spelt as the specification spells them."""

    GPU_DISCOVERED = "GPUDiscovered"
    MIG_ENABLED = "MIGEnabled"
    PARTITION_CREATED = "PartitionCreated"
    AVAILABLE = "Available"
    ALLOCATED = "Allocated"
    IN_USE = "InUse"
    PARTITION_DESTROYED = "PartitionDestroyed"


HELD = frozenset({MigState.ALLOCATED, MigState.IN_USE})
"""A partition in one of these belongs to a workload and may not be destroyed."""


@dataclass(frozen=True, slots=True)
class MigEdge:
    """One allowed transition: what brings it about, and when, said to a person.

    Attributes:
        trigger: The specification's word on the arrow.
    """

    source: MigState
    target: MigState
    trigger: str
    sentence: str


_S = MigState
FIRST = _S.GPU_DISCOVERED
"""Where every GPU begins."""

MIG_EDGES: tuple[MigEdge, ...] = (
    MigEdge(_S.GPU_DISCOVERED, _S.MIG_ENABLED, "Enable MIG Mode",
            "The GPU was put into MIG mode while nothing ran on it."),
    MigEdge(_S.MIG_ENABLED, _S.PARTITION_CREATED, "Create Partition",
            "A partition was asked for on slices that nothing occupies."),
    MigEdge(_S.PARTITION_CREATED, _S.AVAILABLE, "Ready",
            "The partition was seen on the GPU and can be given out."),
    MigEdge(_S.AVAILABLE, _S.ALLOCATED, "Workload Scheduled",
            "The scheduler gave the partition to a workload."),
    MigEdge(_S.ALLOCATED, _S.IN_USE, "Pod Running",
            "The workload was seen running on the partition."),
    MigEdge(_S.IN_USE, _S.AVAILABLE, "Pod Completed",
            "The workload is over and gave the partition back."),
    MigEdge(_S.ALLOCATED, _S.AVAILABLE, "Pod Withdrawn",
            "The workload ended before it ran and gave the partition back."),
    MigEdge(_S.AVAILABLE, _S.PARTITION_DESTROYED, "Rebalance",
            "The free partition gives way to another cut of the GPU."),
    MigEdge(_S.PARTITION_DESTROYED, _S.PARTITION_CREATED, "Create New Partition",
            "Its slices are cut into the partition that was asked for."),
    MigEdge(_S.PARTITION_DESTROYED, _S.MIG_ENABLED, "Cleanup",
            "Nothing was asked for in its place: the slices are free."),
    MigEdge(_S.MIG_ENABLED, _S.GPU_DISCOVERED, "Disable MIG Mode",
            "The last partition is gone and the GPU was put back to whole use."),
)  # fmt: skip
"""The specification's eleven arrows but the one from nowhere, and one that it leaves out: a
workload that is cancelled between scheduling and running must give its partition back."""

MIG_STAYS: dict[MigState, Stay] = {
    _S.GPU_DISCOVERED: Stay("inventory", "none: a whole GPU is of use", "MIG mode is enabled by an "
                            "operator"),
    _S.MIG_ENABLED: Stay("scheduler", "none: free slices are cut when somebody asks", "a partition "
                         "is created, or MIG mode is disabled by an operator"),
    _S.PARTITION_CREATED: Stay("repartitioner", "repartition time-out", "seen on the GPU, else the "
                               "order is given up and told"),
    _S.AVAILABLE: Stay("scheduler", "none: it waits for work", "given to a workload, or destroyed "
                       "by a rebalance"),
    _S.ALLOCATED: Stay("dispatcher", "the workload's start time-out", "the workload runs, or its "
                       "attempt ends"),
    _S.IN_USE: Stay("observer", "the workload's maximum duration", "the workload's end"),
    _S.PARTITION_DESTROYED: Stay("repartitioner", "repartition time-out", "cut anew, or its slices "
                                 "are free"),
}  # fmt: skip

_ALLOWED: dict[tuple[MigState, MigState], MigEdge] = {(e.source, e.target): e for e in MIG_EDGES}


def find_mig_edge(source: MigState, target: MigState) -> MigEdge | None:
    """Return the edge between two states, or None if there is none."""
    return _ALLOWED.get((source, target))


def allowed_mig_targets(source: MigState) -> tuple[MigState, ...]:
    """Return every state that may follow, in the table's order."""
    return tuple(edge.target for edge in MIG_EDGES if edge.source is source)
