"""The search for moves: which of the work on a fleet to put elsewhere so that a request fits.

Owns who is where on one bench and the search itself. Whatever it finds was carried out on the
fleet's columns, move by move, each into room that was free at that moment; the caller keeps it or
rolls back. Knows no quota, no policy of who may be moved for whom, no time.

A request is given room on one node: by moving one of those there, by moving one into room that is
first made elsewhere in the same way (a chain), or by moving several from the same node. The first
that works is taken; those that lose least are tried first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Bools, Take
from gpuplane.core.scheduling.bench import NOT_FIT, Bench, Row
from gpuplane.core.scheduling.devices import choose_devices
from gpuplane.core.scheduling.needs import Need
from gpuplane.core.scheduling.workload import Workload

Ints = NDArray[np.int64]
Allowed = Callable[[Workload], Bools | None]
"""The nodes that a workload may go to besides what the filters say, shape (node,); None for all."""

MAX_BREADTH = 6
"""Kinds of work tried as the next link of a chain: the search grows with its power."""
MAX_CHAIN = 2
"""Most links of a chain."""
MAX_NODES = 8
"""Nodes tried for moving several at once: emptying one costs as many moves as it has work."""
_FIRST_ROOM = 256

_NODE, _MASK, _MILLI, _CPU, _MEMORY, _EPHEMERAL, _LOSS, _VALUE, _KIND, _MOVABLE = range(10)


@dataclass(frozen=True, slots=True)
class Relocation:
    """One piece of work that was moved.

    Args:
        tenant: Its number in `Tenants`.
        source: What it held. `target`: what it holds now.
    """

    tenant: int
    source: Take
    target: Take


@dataclass(frozen=True, slots=True)
class Quest:
    """For whom room is made, and at what price at most.

    Args:
        value: Priority of the request: work of a higher one is not moved for it.
        max_moves: Most moves.
        max_lost_gpu_s: Most GPU-seconds of work thrown away.
    """

    value: int
    max_moves: int
    max_lost_gpu_s: int


class Tenants:
    """Everything that holds room on one fleet, by number from 0."""

    def __init__(self) -> None:
        self.workloads: list[Workload] = []
        self.takes: list[Take] = []
        self._kinds: dict[tuple[str, str], int] = {}
        self._columns: Ints = np.zeros((10, _FIRST_ROOM), dtype=np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def columns(self) -> Ints:
        """Return the numbers of all, shape (column, tenant); not to be written to."""
        return self._columns[:, : self._count]

    def add(
        self,
        workload: Workload,
        take: Take,
        *,
        loss_gpu_s: int = 0,
        value: int = 0,
        group: str = "",
    ) -> int:
        """Add what was allocated on the fleet; return its number.

        Args:
            workload: Of one replica.
            take: What it holds.
            loss_gpu_s: GPU-seconds of work that moving it throws away.
            value: Its priority.
            group: Equal for all of one class that may go to the same nodes.
        """
        number = self._count
        if number == self._columns.shape[1]:
            self._columns = np.concatenate((self._columns, np.zeros_like(self._columns)), axis=1)
        self._count += 1
        self.workloads.append(workload)
        self.takes.append(take)
        kind = self._kinds.setdefault((workload.class_key, group), len(self._kinds))
        self._columns[_LOSS:, number] = (loss_gpu_s, value, kind, 1)
        self._write(number, take)
        return number

    def place(self, number: int, take: Take) -> None:
        """Note that one is somewhere else now."""
        self.takes[number] = take
        self._write(number, take)

    def keep(self, number: int) -> None:
        """Let one stay where it is from now on."""
        self._columns[_MOVABLE, number] = 0

    def free(self, number: int) -> None:
        """Let one move again."""
        self._columns[_MOVABLE, number] = 1

    def _write(self, number: int, take: Take) -> None:
        self._columns[: _EPHEMERAL + 1, number] = (
            take.node,
            take.gpu_mask,
            take.gpu_milli,
            take.cpu_milli,
            take.memory_mib,
            take.ephemeral_mib,
        )


class RelocationSearch:
    """Makes room on one bench by moving tenants."""

    def __init__(self, bench: Bench, tenants: Tenants, allowed: Allowed) -> None:
        self._bench = bench
        self._fleet = bench.fleet
        self._tenants = tenants
        self._allowed = allowed
        self._in_vain: set[tuple[str, str, int, Quest]] = set()
        self._mark = 0
        self._spare: Bools | None = None
        self.moves: list[Relocation] = []

    def forget_failures(self) -> None:
        """Try again what was in vain: something gave room back."""
        self._in_vain.clear()

    def make_room(self, workload: Workload, quest: Quest, group: str = "") -> bool:
        """Make room for one replica on some node; tell whether it worked.

        What was moved is in `moves`. What did not work is not tried again until something was
        moved: placing more work only takes room away.

        Args:
            workload: Whose replica it is; it fits nowhere now.
            quest: For whom, and at what price at most.
            group: Equal for all of one class that may go to the same nodes.
        """
        self._mark = len(self.moves)
        row = self._bench.row(workload)
        spare = ~row.suiting
        self._spare = spare if spare.any() else None
        order: Ints | None = None
        for depth in range(1, min(quest.max_moves, MAX_CHAIN) + 1):
            key = (workload.class_key, group, depth, quest)
            if key not in self._in_vain:
                if order is None:
                    order = self._list_candidates(row, workload, quest, frozenset())
                if self._move_up_to(depth, row, order, quest, frozenset()):
                    self.forget_failures()
                    return True
                self._in_vain.add(key)
        key = (workload.class_key, group, 0, quest)
        if quest.max_moves > 1 and key not in self._in_vain:
            if self._empty_node(row, workload, quest):
                self.forget_failures()
                return True
            self._in_vain.add(key)
        return False

    def rollback(self, mark: int, fleet_mark: int) -> None:
        """Undo every move since `moves` had this length and the fleet this checkpoint."""
        while len(self.moves) > mark:
            move = self.moves.pop()
            self._tenants.place(move.tenant, move.source)
        self._fleet.rollback(fleet_mark)

    def _move_up_to(
        self, depth: int, row: Row, order: Ints, quest: Quest, closed: frozenset[int]
    ) -> bool:
        """Move the last link of a chain of exactly this length."""
        if depth == 1:
            return self._move_one(row, order, closed)
        return self._move_chain(row, order, quest, depth, closed)

    def _list_candidates(
        self, row: Row, workload: Workload, quest: Quest, closed: frozenset[int]
    ) -> Ints:
        """Return the tenants of which one alone is in the way, those that lose least first."""
        columns = self._tenants.columns
        node = columns[_NODE]
        open_nodes = row.suiting & ~_mask_of(closed, len(self._fleet))
        allowed = self._allowed(workload)
        if allowed is not None:
            open_nodes &= allowed
        found = np.flatnonzero(self._may_move(columns, quest) & open_nodes[node])
        found = found[_fits_without(row.need, self._bench, columns[:, found])]
        chosen = columns[:, found]
        gpus = np.bitwise_count(chosen[_MASK].astype(np.uint16)) * chosen[_MILLI]
        return found[np.lexsort((chosen[_CPU], gpus, chosen[_LOSS]))]

    def _may_move(self, columns: Ints, quest: Quest) -> Bools:
        may = (columns[_MOVABLE] != 0) & (columns[_VALUE] <= quest.value)
        return np.asarray(may & (columns[_LOSS] <= self._left_to_lose(quest)))

    def _left_to_lose(self, quest: Quest) -> int:
        columns = self._tenants.columns
        return quest.max_lost_gpu_s - sum(
            int(columns[_LOSS, move.tenant]) for move in self.moves[self._mark :]
        )

    def _move_one(self, row: Row, order: Ints, closed: frozenset[int]) -> bool:
        stuck: set[int] = set()
        kinds = self._tenants.columns[_KIND]
        for number in order.tolist():
            kind = int(kinds[number])
            if kind in stuck:
                continue
            target = self._find_target(number, closed)
            if target is None:
                if self._find_target(number, closed, but_own=False) is None:
                    stuck.add(kind)
                continue
            if self._shift_for(row, number, target):
                return True
        return False

    def _move_chain(
        self, row: Row, order: Ints, quest: Quest, depth: int, closed: frozenset[int]
    ) -> bool:
        """Move one into room that is made for it first."""
        tried: set[int] = set()
        kinds = self._tenants.columns[_KIND]
        own = row.need.resources
        for number in order.tolist():
            kind = int(kinds[number])
            workload = self._tenants.workloads[number]
            if kind in tried or workload.resources == own:
                continue
            if len(tried) == MAX_BREADTH:
                return False
            tried.add(kind)
            mark, fleet_mark = len(self.moves), self._fleet.checkpoint()
            node = self._tenants.takes[number].node
            inner = self._bench.row(workload)
            # This one moves last: what it loses is not left for the links before it.
            own_loss = int(self._tenants.columns[_LOSS, number])
            rest = replace(quest, max_lost_gpu_s=quest.max_lost_gpu_s - own_loss)
            links = self._list_candidates(inner, workload, rest, closed | {node})
            if self._move_up_to(depth - 1, inner, links, rest, closed | {node}):
                target = self._find_target(number, closed)
                if target is not None and self._shift_for(row, number, target):
                    return True
            self.rollback(mark, fleet_mark)
        return False

    def _empty_node(self, row: Row, workload: Workload, quest: Quest) -> bool:
        """Move several from one node, where the least has to go."""
        columns = self._tenants.columns
        usable = np.flatnonzero(self._may_move(columns, quest))
        by_node: dict[int, list[int]] = {}
        for number, node in zip(usable.tolist(), columns[_NODE, usable].tolist(), strict=True):
            by_node.setdefault(node, []).append(number)
        allowed = self._allowed(workload)
        load = self._fleet.gpu_idle_milli
        nodes = [node for node in by_node if row.suits(node) and (allowed is None or allowed[node])]
        nodes.sort(key=lambda node: (-int(load[node]), node))
        tried = 0
        for node in nodes:
            if tried == MAX_NODES:
                return False
            numbers = by_node[node]
            if not self._could_fit(row, node, numbers):
                continue
            tried += 1
            mark, fleet_mark = len(self.moves), self._fleet.checkpoint()
            numbers.sort(key=lambda number: (int(columns[_LOSS, number]), number))
            for number in numbers:
                if len(self.moves) - mark == quest.max_moves:
                    break
                if columns[_LOSS, number] > self._left_to_lose(quest):
                    break  # the others lose no less
                target = self._find_target(number, frozenset())
                if target is None:
                    continue
                self._shift(number, target)
                if self._fits(row, node):
                    return True
            self.rollback(mark, fleet_mark)
        return False

    def _could_fit(self, row: Row, node: int, numbers: Sequence[int]) -> bool:
        """Tell whether the request would fit if all of these were gone."""
        mark = self._fleet.checkpoint()
        for number in numbers:
            self._fleet.release(self._tenants.takes[number])
        fits = self._fits(row, node)
        self._fleet.rollback(mark)
        row.refresh()
        return fits

    def _find_target(
        self, number: int, closed: frozenset[int], *, but_own: bool = True
    ) -> Take | None:
        """Return where a tenant could go now, the best node by its own rank.

        Nodes come first on which the request could never go: they are no loss to its replicas.
        """
        workload = self._tenants.workloads[number]
        row = self._bench.row(workload)
        shut = set(closed)
        if but_own:
            shut.add(self._tenants.takes[number].node)
        mask = self._allowed(workload)
        if shut:
            mask = ~_mask_of(shut, len(self._fleet)) if mask is None else mask.copy()
            mask[sorted(shut)] = False
        found = None
        if self._spare is not None:
            found = row.find_best(self._spare if mask is None else self._spare & mask)
        if found is None:
            found = row.find_best(mask)
        return None if found is None else choose_devices(row, found[0])

    def _shift_for(self, row: Row, number: int, target: Take) -> bool:
        """Move a tenant and tell whether the request now fits where it was; undo it if not."""
        mark, fleet_mark = len(self.moves), self._fleet.checkpoint()
        node = self._tenants.takes[number].node
        self._shift(number, target)
        if self._fits(row, node):
            return True
        self.rollback(mark, fleet_mark)
        return False

    def _shift(self, number: int, target: Take) -> None:
        source = self._tenants.takes[number]
        self._fleet.allocate(target)  # into free room, before its own is given back
        self._fleet.release(source)
        self._tenants.place(number, target)
        self.moves.append(Relocation(number, source, target))

    def _fits(self, row: Row, node: int) -> bool:
        row.refresh()
        return row.rank_on(node) != NOT_FIT


def _mask_of(nodes: frozenset[int] | set[int], count: int) -> Bools:
    mask = np.zeros(count, dtype=np.bool_)
    mask[sorted(nodes)] = True
    return mask


def _fits_without(need: Need, bench: Bench, tenants: Ints) -> Bools:
    """Return of which tenants the node would have room for the request if they were gone.

    MIG instances are not looked at: the request is tried where they are.
    """
    fleet, resources = bench.fleet, need.resources
    node = tenants[_NODE]
    fits = fleet.cpu_free[node] + tenants[_CPU] >= resources.cpu_milli
    fits &= fleet.memory_free[node] + tenants[_MEMORY] >= resources.memory_mib
    fits &= fleet.ephemeral_free[node] + tenants[_EPHEMERAL] >= resources.ephemeral_mib
    if not need.wants_gpus:
        return np.asarray(fits)
    places = np.flatnonzero(fits)
    node = node[places]
    bits = np.arange(fleet.gpu_count_max)[:, None]
    freed = (tenants[_MASK, places] >> bits & 1) * tenants[_MILLI, places]
    free = fleet.gpu_free_milli[:, node] + freed
    granted = (need.granted_mask[node].astype(np.int64) >> bits & 1) != 0
    wanted = resources.gpu_milli if need.is_share else WHOLE_GPU_MILLI
    enough = ((free >= wanted) & granted).sum(axis=0)
    fits[places] = enough >= resources.gpu_count
    return np.asarray(fits)
