"""A pool of equal nodes: where a job's GPUs come from, and what is left.

Owns the placement rule `consolidate`; never knows what a job is or when it ends. Nodes are kept in
one set a number of free GPUs, each set an integer with bit `n` for node `n`: the lowest node of a
set is its lowest bit, so a choice costs one look at each of G + 1 integers, however many nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

Placement = tuple[tuple[int, int], ...]
"""Pairs of a node's index and how many of its GPUs."""


@dataclass(frozen=True, slots=True)
class PoolShape:
    """How large a pool is.

    Args:
        nodes: How many nodes.
        gpus_per_node: How many GPUs each of them has.

    Raises:
        ValueError: If either is below 1.
    """

    nodes: int
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise ValueError("a pool has at least one node and each node at least one GPU")

    @property
    def gpus(self) -> int:
        """Return how many GPUs there are in all."""
        return self.nodes * self.gpus_per_node


class Pool:
    """The free GPUs of each node.

    Attributes:
        size: GPUs of a node.
        free: Free GPUs by node.
        sets: By number of free GPUs, the nodes with just so many: bit `n` stands for node `n`.
    """

    __slots__ = ("free", "sets", "size")

    def __init__(self, shape: PoolShape) -> None:
        """Make a pool that is all free."""
        self.size = shape.gpus_per_node
        self.free = [self.size] * shape.nodes
        self.sets = [0] * (self.size + 1)
        self.sets[self.size] = (1 << shape.nodes) - 1

    def copy(self) -> Self:
        """Return a pool of its own with the same free GPUs."""
        made = object.__new__(type(self))
        made.size, made.free, made.sets = self.size, list(self.free), list(self.sets)
        return made

    @property
    def has_free(self) -> bool:
        """Return whether any GPU is free."""
        return self.sets[0].bit_count() < len(self.free)

    def find(self, gpus: int) -> Placement | None:
        """Return where a job goes, or None where it does not fit.

        Up to one node's worth goes to the node with the fewest free GPUs that suffice; a multiple
        of it to fully free nodes; anything else to fully free nodes for the whole part and one
        more for the rest: a further fully free node, else the freest. Ties: the lowest index.
        (The placement "consolidate" of the simulators of Helios, SC'21, and Lucid, ASPLOS'23.)
        """
        return _find_in(self.sets, gpus)

    def find_capped(self, gpus: int, caps: Mapping[int, int]) -> Placement | None:
        """Return where a job goes if some nodes offer at most so many GPUs, by index of node."""
        sets = list(self.sets)
        for node, cap in caps.items():
            if cap < self.free[node]:
                sets[self.free[node]] ^= 1 << node
                sets[max(0, cap)] |= 1 << node
        return _find_in(sets, gpus)

    def take(self, placement: Placement) -> None:
        """Take GPUs that are free."""
        for node, gpus in placement:
            self.set_free(node, self.free[node] - gpus)

    def give(self, placement: Placement) -> None:
        """Give GPUs back."""
        for node, gpus in placement:
            self.set_free(node, self.free[node] + gpus)

    def set_free(self, node: int, free: int) -> None:
        """Say how many GPUs of a node are free.

        Raises:
            ValueError: If that is fewer than none or more than the node has.
        """
        if not 0 <= free <= self.size:
            raise ValueError(f"node {node} cannot have {free} of {self.size} GPUs free")
        bit = 1 << node
        self.sets[self.free[node]] ^= bit
        self.sets[free] |= bit
        self.free[node] = free


def _find_in(sets: Sequence[int], gpus: int) -> Placement | None:
    size = len(sets) - 1
    if gpus > size:
        return _find_several(sets, *divmod(gpus, size))
    for free in range(gpus, size + 1):
        nodes = sets[free]
        if nodes:
            return (((nodes & -nodes).bit_length() - 1, gpus),)
    return None


def _find_several(sets: Sequence[int], whole: int, rest: int) -> Placement | None:
    free = len(sets) - 1
    nodes = sets[free]
    if nodes.bit_count() < whole:
        return None
    found = []
    for _ in range(whole):
        found.append(((nodes & -nodes).bit_length() - 1, free))
        nodes &= nodes - 1
    if rest:
        while not nodes:
            free -= 1
            if free < rest:
                return None
            nodes = sets[free]
        found.append(((nodes & -nodes).bit_length() - 1, rest))
    return tuple(found)
