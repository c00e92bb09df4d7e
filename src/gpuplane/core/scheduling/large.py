"""Room for large requests: on which nodes the largest classes of the mix could still start.

Owns which classes count as large and the value of a node to them, kept per node and looked at again
where nodes changed. Scores use it to leave such nodes alone; whoever asks for a large request finds
them like any other.

Large requests are rare, so a mix that covers most replicas leaves them out, and nothing would stop
single GPUs from being taken where only they fit. Measured on the openb trace (Weng et al., "Beware
of Fragmentation", USENIX ATC 2023): without this, pods of eight GPUs that need the widest nodes are
refused before 90 % of arrivals in two of ten seeds; with it in none.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.scheduling.filters import EVERYWHERE, Where
from gpuplane.core.scheduling.needs import OR

Counts = NDArray[np.int32]

MAX_LARGE = 16
"""Classes looked at: bounds the work per changed node."""
WHOLE = 1024
"""The value of a node that every large class could start on."""
_MAX_SINGLY = 3
"""Nodes looked at one by one; more are cheaper together."""


class LargeClass(NamedTuple):
    """One kind of request for two GPUs or more, all of one node."""

    gpu_count: int
    cpu_milli: int
    memory_mib: int
    gpu_model: str


def choose_large(counted: Mapping[LargeClass, int]) -> tuple[tuple[LargeClass, int], ...]:
    """Return the classes with the most GPUs, and of equals the most frequent, with their counts."""
    ranked = sorted(counted.items(), key=lambda item: (item[0].gpu_count, item[1], item[0]))
    return tuple(ranked[: -MAX_LARGE - 1 : -1])


class LargeRoom:
    """The large classes against one fleet.

    A class counts where its whole request fits at once; what keeps it off a node for good (taints,
    labels) is not looked at, because the value is for choosing among nodes, never for refusing one.
    """

    def __init__(self, large: tuple[tuple[LargeClass, int], ...], fleet: Fleet) -> None:
        """Bind the classes to a fleet; those that no empty node could hold are left out."""
        self._fleet = fleet
        known = [(each, count, _matching(each, fleet)) for each, count in large]
        known = [each for each in known if each[2].any()]
        most = max((each.gpu_count for each, _, _ in known), default=0)
        self._classes = [each for each, _, _ in known]
        self._matches = [matches for _, _, matches in known]
        self._shares = _in_parts([each.gpu_count * count for each, count, _ in known])
        self._largest = _in_parts([count * (each.gpu_count == most) for each, count, _ in known])
        self._columns: tuple[Counts, Counts] | None = None
        self._seen = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing large is asked for."""
        return not self._classes

    @property
    def is_of_gpus_alone(self) -> bool:
        """Whether no large class asks for CPU or memory."""
        return not any(each.cpu_milli or each.memory_mib for each in self._classes)

    def largest(self, where: Where) -> Counts:
        """Return 0–1024 per node: the share of the very largest requests that could start there."""
        return self._refresh()[0][where]

    def shares(self, where: Where) -> Counts:
        """Return 0–1024 per node: the share of all large requests, by their GPUs."""
        return self._refresh()[1][where]

    def _refresh(self) -> tuple[Counts, Counts]:
        fleet = self._fleet
        clock = fleet.clock
        if self._columns is None:
            self._columns = self._compute(EVERYWHERE)
        elif clock != self._seen:
            changed = fleet.list_changed(self._seen)
            largest, shares = self._columns
            if len(changed) <= _MAX_SINGLY:
                for node in changed:
                    largest[node], shares[node] = self._compute_one(node)
            else:
                where = np.unique(np.array(changed, dtype=np.int64))
                largest[where], shares[where] = self._compute(where)
        self._seen = clock
        return self._columns

    def _compute(self, where: Where) -> tuple[Counts, Counts]:
        fleet = self._fleet
        gpus, cpu = fleet.gpu_free_count[where], fleet.cpu_free[where]
        memory = fleet.memory_free[where]
        largest = np.zeros(len(cpu), dtype=np.int32)
        shares = np.zeros(len(cpu), dtype=np.int32)
        for number, each in enumerate(self._classes):
            starts = self._matches[number][where] & (gpus >= each.gpu_count)
            starts &= (cpu >= each.cpu_milli) & (memory >= each.memory_mib)
            largest[starts] += self._largest[number]
            shares[starts] += self._shares[number]
        return largest, shares

    def _compute_one(self, node: int) -> tuple[int, int]:
        fleet = self._fleet
        gpus, cpu = int(fleet.gpu_free_count[node]), int(fleet.cpu_free[node])
        memory = int(fleet.memory_free[node])
        largest = shares = 0
        for number, each in enumerate(self._classes):
            if (
                gpus >= each.gpu_count
                and cpu >= each.cpu_milli
                and memory >= each.memory_mib
                and self._matches[number][node]
            ):
                largest += self._largest[number]
                shares += self._shares[number]
        return largest, shares


def bind_large(large: tuple[tuple[LargeClass, int], ...], fleet: Fleet) -> LargeRoom:
    """Return the large classes bound to a fleet, the same as before when they are the same."""
    room: LargeRoom = fleet.keep(("large", large), lambda: LargeRoom(large, fleet))
    return room


def _matching(each: LargeClass, fleet: Fleet) -> NDArray[np.bool_]:
    """Return the nodes that could hold the request if they were empty."""
    usable = np.bitwise_count(fleet.usable_mask) >= each.gpu_count
    fits = usable & (fleet.cpu_total >= each.cpu_milli) & (fleet.memory_total >= each.memory_mib)
    if each.gpu_model:
        names = each.gpu_model.split(OR)
        wanted = [i for i, name in enumerate(fleet.models) if name in names]
        fits &= np.isin(fleet.gpu_model, wanted).any(axis=0)
    return np.asarray(fits)


def _in_parts(weights: list[int]) -> list[int]:
    """Return the weights scaled so that their sum is at most `WHOLE`."""
    total = max(1, sum(weights))
    return [weight * WHOLE // total for weight in weights]
