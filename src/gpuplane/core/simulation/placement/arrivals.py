"""In which order the pods of a trace arrive, and how many of them.

Owns the two orders (`file` and `shuffle`) and the tuning of the demand. Chance comes from a stable
hash of the seed and what is drawn, so that a seed gives the same pods everywhere.

Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, and the workload tuning of its
public simulator; Go's generator is not matched, so means over seeds are compared, not seeds.
"""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

from gpuplane.core.simulation.placement.files import TraceNode, TracePod

PER_MILLE = 1000
MAX_ARRIVALS = 2_000_000
"""Pods of one replay: bounds its memory when pods ask for next to nothing."""


class TooManyArrivalsError(ValueError):
    """More pods would have to arrive than a replay takes."""

    def __init__(self) -> None:
        super().__init__(f"more than {MAX_ARRIVALS} pods would have to arrive")


class Chance:
    """Numbers that look random and depend on nothing but the seed, a label and their place."""

    def __init__(self, seed: int, label: str) -> None:
        self._start = f"{seed}/{label}/"
        self._drawn = 0

    def draw_below(self, count: int) -> int:
        """Return the next number in [0, count)."""
        self._drawn += 1
        return self.number_of(str(self._drawn)) % count

    def number_of(self, name: str) -> int:
        """Return the 64-bit number that always stands for this name."""
        digest = blake2b((self._start + name).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def shuffled(self, count: int) -> list[int]:
        """Return 0 … count-1 in an order of its own."""
        return sorted(range(count), key=lambda i: (self.number_of(str(i)), i))


def list_file_arrivals(
    pods: Sequence[TracePod], capacity_milli: int, arrivals_per_mille: int
) -> list[TracePod]:
    """Return the pods in the order of the list, again and again, up to a share of the capacity.

    It ends before the pod with which arrivals would pass the share. A list that asks for no GPU
    arrives once.

    Args:
        pods: The list, at least one.
        capacity_milli: GPU share of all nodes.
        arrivals_per_mille: Demand to reach, in thousandths of the capacity.

    Raises:
        TooManyArrivalsError: If the pods ask for too little to reach it.
    """
    target = capacity_milli * arrivals_per_mille
    if not any(pod.total_milli for pod in pods):
        return list(pods)
    arrived = 0
    arrivals: list[TracePod] = []
    while True:
        for pod in pods:
            arrived += pod.total_milli
            if arrived * PER_MILLE > target:
                return arrivals
            if len(arrivals) == MAX_ARRIVALS:
                raise TooManyArrivalsError
            arrivals.append(pod)


def list_shuffled_arrivals(
    pods: Sequence[TracePod], capacity_milli: int, arrivals_per_mille: int, seed: int
) -> list[TracePod]:
    """Return the pods sorted by name and shuffled, tuned to a share of the capacity.

    What is too much is taken out at random; what is missing is added as clones of pods drawn at
    random, after all others, up to the first whose share of one GPU would pass the target (the
    published tuning leaves the number of GPUs out of this test, and so does this one).

    Raises:
        TooManyArrivalsError: If the pods ask for too little to reach it.
    """
    by_name = sorted(pods, key=lambda pod: pod.name)
    order = Chance(seed, "order").shuffled(len(by_name))
    arrivals = [by_name[i] for i in order]
    target = capacity_milli * arrivals_per_mille // PER_MILLE
    demand = sum(pod.total_milli for pod in arrivals)
    if not demand:
        return arrivals
    if demand > target:
        dropped = set()
        for i in Chance(seed, "drop").shuffled(len(arrivals)):
            if demand <= target:
                break
            dropped.add(i)
            demand -= arrivals[i].total_milli
        return [pod for i, pod in enumerate(arrivals) if i not in dropped]
    clones = Chance(seed, "clone")
    while True:
        pod = by_name[clones.draw_below(len(by_name))]
        if demand + pod.gpu_milli > target:
            return arrivals
        if len(arrivals) >= MAX_ARRIVALS:
            raise TooManyArrivalsError
        demand += pod.total_milli
        arrivals.append(pod)


def name_nodes_in_order(nodes: Sequence[TraceNode]) -> list[TraceNode]:
    """Return the nodes by name: the order in which ties go."""
    return sorted(nodes, key=lambda node: node.name)


def name_nodes_by_chance(nodes: Sequence[TraceNode], seed: int) -> list[TraceNode]:
    """Return the nodes renamed so that their order by name is one of chance."""
    by_name = name_nodes_in_order(nodes)
    places = Chance(seed, "nodes").shuffled(len(by_name))
    return [
        replace(by_name[i], name=f"{place:07}-{by_name[i].name}") for place, i in enumerate(places)
    ]
