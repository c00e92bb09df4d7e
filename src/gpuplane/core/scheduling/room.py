"""Makes room on nodes: the cheapest minimal set of what is taken whose release lets work fit.

Owns the search over pieces of taken devices and what is left over of them afterwards. Does not
know who may be stopped, nor quotas.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from gpuplane.core.fleet.columns import Bools, Fleet, Take
from gpuplane.core.ids import ClusterId
from gpuplane.core.scheduling.admission import Grant, QuotaRefusal
from gpuplane.core.scheduling.backfill import find_first
from gpuplane.core.scheduling.bench import NOT_FIT, Row
from gpuplane.core.scheduling.pieces import (
    MAX_EXACT,
    Piece,
    SetSearch,
    compute_cost,
    thin_out,
    unite,
)
from gpuplane.core.scheduling.placement import compute_capacity, needed_replicas
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import Spreading

MAX_NODES = 32
"""Nodes for which a set is worked out for one workload, of those on which all pieces together
make room: those with the cheapest pieces first. A set beyond them is missed, cheaper or not."""

MAX_GANG_NODES = 256
"""The same for a gang, which needs many at once; there what counts is room for a replica more."""
FIRST_LOOK = 64
"""Nodes that are looked at together at first, to find those of which anything is gained; then
twice as many each time."""
MAX_TRIED = 128
"""Nodes tried for one workload: on some all pieces make room, and no set that may be stopped."""
MAX_SEARCHED = 16
"""Pieces of a node, cheapest first, among which the best set is searched."""
MAX_SINGLES = 64
"""Pieces of a node that are tried each alone."""
MAX_THINNED = 128
"""Largest set that is thinned out piece by piece: each try places the whole gang again."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A node with the pieces that could be given back there."""

    bench_index: int
    node: int
    row: Row
    pieces: list[Piece]


def probe_place(trial: Trial, workload: Workload) -> Found | None:
    """Return the place the workload would get now, with nothing counted."""
    with trial.undone():
        found = trial.find_place(workload)
    return None if isinstance(found, QuotaRefusal) else found


def release_parts(trial: Trial, pieces: Iterable[Piece]) -> None:
    """Give back what the pieces hold on nodes."""
    for piece in pieces:
        for index, take in piece.parts:
            trial.benches[index].fleet.release(take)


def find_cheapest_set(
    trial: Trial,
    workload: Workload,
    grant: Grant,
    pieces: Sequence[Piece],
    most: Mapping[ClusterId, int] | None = None,
) -> list[Piece] | None:
    """Return the cheapest minimal set whose release makes room, or None.

    For one replica the sets of single nodes are compared: the highest class in them, whether
    anyone is nearly done, what all lose together, how many they are. For a gang the nodes that
    give most room for least loss are emptied, as few as suffice, and the set is thinned out.

    The set is the cheapest of all where on no node more than `MAX_EXACT` pieces make room, for a
    gang where on all nodes together no more do, and where there are no more nodes than the limits
    above. Beyond that it is minimal (none of it can be spared) and may not be the cheapest.

    Args:
        trial: Fleets to look in; left as they are.
        workload: What needs room, with quota.
        grant: The flavors whose nodes it may use.
        pieces: Cheapest first.
        most: How many may be taken in each cluster at most, None for any number.
    """
    if workload.replicas.count == 1:
        return _cheapest_on_one_node(trial, workload, grant, pieces, most)
    return _cheapest_for_gang(trial, workload, grant, pieces, most)


def _cheapest_on_one_node(
    trial: Trial,
    workload: Workload,
    grant: Grant,
    pieces: Sequence[Piece],
    most: Mapping[ClusterId, int] | None,
) -> list[Piece] | None:
    best: list[Piece] | None = None
    worked_out = tried = 0
    for _, place in _list_gaining(trial, workload, grant, pieces):
        limit = len(place.pieces)
        if most is not None:
            limit = min(limit, most.get(trial.benches[place.bench_index].fleet.cluster_id, 0))
        if best is not None and compute_cost(place.pieces[:1]) >= compute_cost(best):
            break  # they come by their cheapest piece: none after this costs less
        search = NodeSearch(trial, place, limit, best)
        if not search.may_suffice():
            continue
        found = search.find_cheapest()
        tried += 1
        if found is not None:
            worked_out += 1
            best = found
        if worked_out >= MAX_NODES or tried >= MAX_TRIED:
            break
    return best


def _list_places(
    trial: Trial, workload: Workload, grant: Grant, pieces: Sequence[Piece]
) -> Iterator[_Place]:
    """Yield the nodes that the workload may use and that hold pieces, cheapest piece first."""
    by_node: dict[tuple[int, int], list[Piece]] = {}
    for piece in pieces:
        for key in dict.fromkeys((index, take.node) for index, take in piece.parts):
            by_node.setdefault(key, []).append(piece)
    rows: dict[int, tuple[Row, Bools | None]] = {}
    for (index, node), there in by_node.items():
        bench = trial.benches[index]
        if not trial.may_use(workload, bench.fleet):
            continue
        if index not in rows:
            rows[index] = bench.row(workload), trial.allowed_nodes(workload, index, grant)
        row, allowed = rows[index]
        if row.suits(node) and (allowed is None or allowed[node]):
            yield _Place(index, node, row, there)


def _list_gaining(
    trial: Trial, workload: Workload, grant: Grant, pieces: Sequence[Piece]
) -> Iterator[tuple[int, _Place]]:
    """Yield the nodes that take more replicas without their pieces, and how many more.

    However many nodes there are on which nothing is gained, those after them are found.
    """
    places = _list_places(trial, workload, grant, pieces)
    size = FIRST_LOOK
    while some := list(islice(places, size)):
        size *= 2
        for gain, place in zip(_compute_gains(trial, workload, some), some, strict=True):
            if gain > 0:
                yield gain, place


def _compute_gains(trial: Trial, workload: Workload, places: Sequence[_Place]) -> list[int]:
    """Return how many more replicas each node takes once all its pieces are given back.

    All are given back at once: what a node takes depends on nothing beyond it.
    """
    most = 1 if workload.placement.spreading is Spreading.SPREAD else workload.replicas.count
    rows = {place.bench_index: place.row for place in places}

    def count() -> list[int]:
        capacity = {}
        for index, row in rows.items():
            row.refresh()
            capacity[index] = compute_capacity(row, None)
        return [min(most, int(capacity[each.bench_index][each.node])) for each in places]

    before = count()
    with trial.undone():
        release_parts(trial, unite([place.pieces for place in places]))
        after = count()
    for row in rows.values():
        row.refresh()
    return [more - less for more, less in zip(after, before, strict=True)]


class NodeSearch:
    """Looks for the cheapest set of pieces on one node that lets the class fit there."""

    def __init__(self, trial: Trial, place: _Place, limit: int, best: list[Piece] | None) -> None:
        self._trial = trial
        self._place = place
        self._limit = limit
        self._given = {piece: _amounts_of(piece, place) for piece in place.pieces}
        self._missing = self._compute_missing()
        self._sets = SetSearch(self._covers, self._fits_without, self._is_within, best)
        self._has_any = False

    def may_suffice(self) -> bool:
        """Tell whether as many of the largest pieces as may be taken could make room."""
        return self._limit > 0 and self._covers((), self._place.pieces)

    def find_cheapest(self) -> list[Piece] | None:
        """Return the best of the sets found and the one known before; None if none is found.

        The cheapest pieces first, thinned out, are a first answer; then come each piece alone and
        the sets of the cheapest ones that cost less than the best so far.
        """
        there, known = self._place.pieces, self._sets.best
        self._try_in_order(there)
        if not self._has_any:
            self._try_in_order(sorted(there, key=lambda piece: (-self._given[piece][0], piece.key)))
        if len(there) > MAX_EXACT:
            self._try_singles(there[:MAX_SINGLES])
        self._sets.run(there[:MAX_SEARCHED])
        return self._sets.best if self._has_any or self._sets.best is not known else None

    def _fits_without(self, pieces: Sequence[Piece]) -> bool:
        row = self._place.row
        with self._trial.undone():
            release_parts(self._trial, pieces)
            row.refresh()
            return bool(row.ranks[self._place.node] != NOT_FIT)

    def _is_within(self, pieces: Sequence[Piece]) -> bool:
        return len(pieces) <= self._limit

    def _try_in_order(self, there: Sequence[Piece]) -> None:
        """Take as many in this order as suffice, and thin out the dearest first."""
        found = find_first(there, lambda some: self._fits_without(some) or None)
        if found is not None:
            taken = sorted(there[: found[0]], key=lambda piece: piece.key)
            self._note(thin_out(taken, self._fits_without))

    def _try_singles(self, there: Sequence[Piece]) -> None:
        """Take the cheapest piece that suffices alone; those after it cost more."""
        for piece in there:
            if not self._sets.is_better([piece]):
                return
            if self._covers([piece], ()) and self._fits_without([piece]):
                self._note([piece])
                return

    def _note(self, pieces: list[Piece]) -> None:
        if self._is_within(pieces):
            self._has_any = True
            if self._sets.is_better(pieces):
                self._sets.best = pieces

    # What is surely too little.

    def _compute_missing(self) -> tuple[int, ...]:
        """Return at least how much of each is to be given back; instances are not counted."""
        need, node = self._place.row.need, self._place.node
        resources = need.resources
        room = _Room.of([self._place.row.fleet], (0, node))
        gpu_milli = resources.gpu_count * resources.gpu_milli if need.wants_gpus else 0
        wanted = (resources.cpu_milli, resources.memory_mib, resources.ephemeral_mib)
        return (
            gpu_milli - sum(room.gpus) if gpu_milli else 0,
            *(more - free if more else 0 for more, free in zip(wanted, room.node, strict=True)),
        )

    def _covers(self, taken: Sequence[Piece], rest: Sequence[Piece]) -> bool:
        """Tell whether a set with as many of the rest as may be taken could be enough."""
        left = self._limit - len(taken)
        for which, missing in enumerate(self._missing):
            if missing <= 0:
                continue
            given = sum(self._given[piece][which] for piece in taken)
            if given < missing and rest:
                amounts = sorted((self._given[piece][which] for piece in rest), reverse=True)
                given += sum(amounts[:left])
            if given < missing:
                return False
        return True


def _amounts_of(piece: Piece, place: _Place) -> tuple[int, ...]:
    """Return what a piece gives back on a node: milli of GPUs, CPU, memory, ephemeral."""
    here = (place.bench_index, place.node)
    takes = [take for index, take in piece.parts if (index, take.node) == here]
    return (
        sum(take.gpu_mask.bit_count() * take.gpu_milli for take in takes),
        sum(take.cpu_milli for take in takes),
        sum(take.memory_mib for take in takes),
        sum(take.ephemeral_mib for take in takes),
    )


def _cheapest_for_gang(
    trial: Trial,
    workload: Workload,
    grant: Grant,
    pieces: Sequence[Piece],
    most: Mapping[ClusterId, int] | None,
) -> list[Piece] | None:
    """Return pieces of the nodes that give most room for least loss, thinned out.

    Where these are too many, of the nodes that give most room for the fewest pieces. Where few
    pieces give any room, the cheapest of their sets.
    """

    def fits_without(some: Sequence[Piece]) -> bool:
        with trial.undone():
            release_parts(trial, some)
            return probe_place(trial, workload) is not None

    def is_within(some: Sequence[Piece]) -> bool:
        counts = Counter(piece.owner.cluster_id for piece in some)
        return most is None or all(count <= most.get(each, 0) for each, count in counts.items())

    tries = min(MAX_GANG_NODES, max(MAX_NODES, 2 * needed_replicas(workload.replicas)))
    useful = list(islice(_list_gaining(trial, workload, grant, pieces), tries))
    useful.sort(key=lambda each: _cost_of_gain(*each))
    chosen = _empty_in_order(useful, fits_without)
    if chosen is None:
        return None  # all of them together do not suffice
    if not is_within(chosen):
        useful.sort(key=lambda each: (len(each[1].pieces) / each[0], *_cost_of_gain(*each)))
        chosen = _empty_in_order(useful, fits_without)
        if chosen is not None and not is_within(chosen):
            chosen = None
    few = sorted(unite(place.pieces for _, place in useful), key=lambda piece: piece.key)
    if len(few) > MAX_EXACT:
        return chosen
    bound = _GangBound(trial, workload, [place for _, place in useful])
    search = SetSearch(bound.could_suffice, fits_without, is_within, chosen)
    search.run(few)
    return search.best


class _GangBound:
    """How many replicas fit at most once some pieces are given back, by plain sums."""

    def __init__(self, trial: Trial, workload: Workload, places: Sequence[_Place]) -> None:
        self._needed = needed_replicas(workload.replicas)
        self._elsewhere = 0
        known = {(place.bench_index, place.node) for place in places}
        for index, bench in enumerate(trial.benches):
            if trial.may_use(workload, bench.fleet):
                row = bench.row(workload)
                row.refresh()
                capacity = compute_capacity(row, None)
                self._elsewhere += int(capacity.sum()) - sum(
                    int(capacity[node]) for fleet, node in known if fleet == index
                )
        self._nodes = [_NodeBound(trial, place) for place in places]

    def could_suffice(self, taken: Sequence[Piece], rest: Sequence[Piece]) -> bool:
        """Tell whether enough replicas could fit without the taken and all of the rest."""
        given = {*taken, *rest}
        room = self._elsewhere
        for node in self._nodes:
            if room >= self._needed:
                break
            room += node.count(given)
        return room >= self._needed


class _NodeBound:
    """What is free on one node and what its pieces hold there, and what a replica needs."""

    def __init__(self, trial: Trial, place: _Place) -> None:
        need = place.row.need
        resources = need.resources
        room = _Room.of([bench.fleet for bench in trial.benches], (place.bench_index, place.node))
        self._wanted = (
            resources.gpu_count * resources.gpu_milli if need.wants_gpus else 0,
            resources.cpu_milli,
            resources.memory_mib,
            resources.ephemeral_mib,
        )
        self._free = (sum(room.gpus), *room.node)
        self._held = {piece: _amounts_of(piece, place) for piece in place.pieces}

    def count(self, given: Collection[Piece]) -> int:
        """Return how many replicas fit at most once these are given back."""
        held = [amounts for piece, amounts in self._held.items() if piece in given]
        return min(
            (
                max(0, free + sum(amounts[which] for amounts in held)) // wanted
                for which, (free, wanted) in enumerate(zip(self._free, self._wanted, strict=True))
                if wanted
            ),
            default=1 << 30,
        )


def _empty_in_order(
    useful: Sequence[tuple[int, _Place]], fits_without: Callable[[Sequence[Piece]], bool]
) -> list[Piece] | None:
    """Return what is left to take of as many nodes, in this order, as suffice."""
    groups = [place.pieces for _, place in useful]
    found = find_first(groups, lambda some: fits_without(unite(some)) or None)
    if found is None:
        return None
    taken = sorted(unite(groups[: found[0]]), key=lambda piece: piece.key)
    if len(taken) > MAX_THINNED:
        return taken
    return thin_out(taken, fits_without)


def _cost_of_gain(gain: int, place: _Place) -> tuple[int, bool, float, int, int]:
    value, is_nearly_done, lost, _, _ = compute_cost(place.pieces)
    return value, is_nearly_done, lost / gain, place.bench_index, place.node


def swap_parts(trial: Trial, freed: Sequence[Piece], found: Found) -> list[Piece]:
    """Give back the pieces, take the place, and take what is left of the pieces again.

    Returns:
        What is left, a piece a node: held by nobody yet, and for nobody else to start on.
    """
    fleets = [bench.fleet for bench in trial.benches]
    places = {(index, take.node): piece for piece in reversed(freed) for index, take in piece.parts}
    before = {place: _Room.of(fleets, place) for place in places}
    release_parts(trial, freed)
    after = {place: _Room.of(fleets, place) for place in places}
    for take in found.spots.takes:
        fleets[found.bench_index].allocate(take)
    left: list[Piece] = []
    for place, first in places.items():
        used = _Room.of(fleets, place)
        parts = [
            (place[0], take) for take in _left_over(place[1], before[place], after[place], used)
        ]
        parts += [
            (index, Take(take.node, 0, 0, 0, 0, 0, take.mig))
            for piece in freed
            for index, take in piece.parts
            if (index, take.node) == place and fleets[index].has_free_instance(take)
        ]
        for index, take in parts:
            fleets[index].allocate(take)
        if parts:
            left.append(Piece(first.key, tuple(parts), first.owner))
    return left


@dataclass(frozen=True, slots=True)
class _Room:
    """What is free on a node: (CPU, memory, ephemeral storage) and milli per GPU."""

    node: tuple[int, int, int]
    gpus: tuple[int, ...]

    @classmethod
    def of(cls, fleets: Sequence[Fleet], place: tuple[int, int]) -> "_Room":
        fleet, node = fleets[place[0]], place[1]
        free = (fleet.cpu_free, fleet.memory_free, fleet.ephemeral_free)
        cpu, memory, ephemeral = (int(column[node]) for column in free)
        return cls((cpu, memory, ephemeral), tuple(fleet.gpu_free_milli[:, node].tolist()))


def _left_over(node: int, before: _Room, after: _Room, used: _Room) -> Iterator[Take]:
    """Yield what was freed and not used again, of CPU and memory and of each GPU.

    What is used comes first out of what was free before, then out of what was freed.
    """
    cpu, memory, ephemeral = (
        _rest(*amounts) for amounts in zip(before.node, after.node, used.node, strict=True)
    )
    if cpu or memory or ephemeral:
        yield Take(node, 0, 0, cpu, memory, ephemeral)
    for gpu, amounts in enumerate(zip(before.gpus, after.gpus, used.gpus, strict=True)):
        milli = _rest(*amounts)
        if milli:
            yield Take(node, 1 << gpu, milli, 0, 0, 0)


def _rest(before: int, after: int, used: int) -> int:
    taken = after - used
    return max(0, (after - before) - max(0, taken - max(0, before)))
