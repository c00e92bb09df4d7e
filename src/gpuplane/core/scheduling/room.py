"""Makes room on nodes: the cheapest minimal set of what is taken whose release lets work fit.

Owns the search over pieces of taken devices and what is left over of them afterwards. Does not
know who may be stopped, nor quotas.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from gpuplane.core.fleet.columns import Bools, Fleet, Take
from gpuplane.core.ids import ClusterId
from gpuplane.core.scheduling.admission import Grant, QuotaRefusal
from gpuplane.core.scheduling.backfill import find_first
from gpuplane.core.scheduling.bench import NOT_FIT, Row
from gpuplane.core.scheduling.placement import compute_capacity, needed_replicas
from gpuplane.core.scheduling.preemption import LossKey
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
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
MAX_STEPS = 128
"""Sets of one node that the search looks at."""
MAX_THINNED = 128
"""Largest set that is thinned out piece by piece: each try places the whole gang again."""

Parts = tuple[tuple[int, Take], ...]
"""(fleet, take) of everything one piece holds."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Something taken that can be given back as a whole, and what that costs.

    Attributes:
        owner: The running workload that holds it, or held it before its place was promised away.
    """

    key: LossKey
    parts: Parts
    owner: RunningWorkload


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
        if best is not None and _total(place.pieces[:1]) >= _total(best):
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
        release_parts(trial, _union([place.pieces for place in places]))
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
        self._given = {piece: self._amounts_of(piece) for piece in place.pieces}
        self._missing = self._compute_missing()
        self._best = best
        self._has_any = False
        self._steps_left = MAX_STEPS

    def may_suffice(self) -> bool:
        """Tell whether as many of the largest pieces as may be taken could make room."""
        return self._limit > 0 and self._covers((), self._place.pieces)

    def find_cheapest(self) -> list[Piece] | None:
        """Return the best of the sets found and the one known before; None if none is found.

        The cheapest pieces first, thinned out, are a first answer; then come each piece alone and
        the sets of the cheapest ones that cost less than the best so far.
        """
        there = self._place.pieces
        self._try_in_order(there)
        if not self._has_any:
            self._try_in_order(sorted(there, key=lambda piece: (-self._given[piece][0], piece.key)))
        for piece in there[:MAX_SINGLES]:
            if not self._is_better([piece]) or self._try([piece]):
                break  # those after it cost more
        self._extend([], there[:MAX_SEARCHED])
        return self._best if self._has_any else None

    def _fits_without(self, pieces: Sequence[Piece]) -> bool:
        row = self._place.row
        with self._trial.undone():
            release_parts(self._trial, pieces)
            row.refresh()
            return bool(row.ranks[self._place.node] != NOT_FIT)

    def _try_in_order(self, there: Sequence[Piece]) -> None:
        """Take as many in this order as suffice, and thin out the dearest first."""
        found = find_first(there, lambda some: self._fits_without(some) or None)
        if found is not None:
            taken = sorted(there[: found[0]], key=lambda piece: piece.key)
            self._note(_thin_out(taken, self._fits_without))

    def _note(self, pieces: list[Piece]) -> None:
        if len(pieces) <= self._limit:
            self._has_any = True
            if self._is_better(pieces):
                self._best = pieces

    def _is_better(self, pieces: Sequence[Piece]) -> bool:
        return self._best is None or _total(pieces) < _total(self._best)

    def _try(self, pieces: list[Piece]) -> bool:
        """Tell whether a set makes room, and keep it if it is the best."""
        if self._covers(pieces, ()) and self._fits_without(pieces):
            self._note(pieces)
            return True
        return False

    def _extend(self, taken: list[Piece], rest: Sequence[Piece]) -> None:
        """Try the set with each of the rest, then with more: a larger set never costs less."""
        for place, piece in enumerate(rest):
            more = [*taken, piece]
            if self._steps_left <= 0 or not self._covers(taken, rest[place:]):
                return
            self._steps_left -= 1
            if not self._is_better(more) or self._try(more):
                continue
            if len(more) < self._limit:
                self._extend(more, rest[place + 1 :])

    # What is surely too little.

    def _amounts_of(self, piece: Piece) -> tuple[int, ...]:
        """Return what a piece gives back on the node: milli of GPUs, CPU, memory, ephemeral."""
        takes = [
            take
            for index, take in piece.parts
            if (index, take.node) == (self._place.bench_index, self._place.node)
        ]
        return (
            sum(take.gpu_mask.bit_count() * take.gpu_milli for take in takes),
            sum(take.cpu_milli for take in takes),
            sum(take.memory_mib for take in takes),
            sum(take.ephemeral_mib for take in takes),
        )

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


def _cheapest_for_gang(
    trial: Trial,
    workload: Workload,
    grant: Grant,
    pieces: Sequence[Piece],
    most: Mapping[ClusterId, int] | None,
) -> list[Piece] | None:
    """Return pieces of the nodes that give most room for least loss, thinned out.

    Where these are too many, of the nodes that give most room for the fewest pieces.
    """

    def fits_without(some: Sequence[Piece]) -> bool:
        with trial.undone():
            release_parts(trial, some)
            return probe_place(trial, workload) is not None

    tries = min(MAX_GANG_NODES, max(MAX_NODES, 2 * needed_replicas(workload.replicas)))
    useful = list(islice(_list_gaining(trial, workload, grant, pieces), tries))
    useful.sort(key=lambda each: _cost_of_gain(*each))
    chosen = _empty_in_order(useful, fits_without)
    if chosen is None or _is_within(chosen, most):
        return chosen
    useful.sort(key=lambda each: (len(each[1].pieces) / each[0], *_cost_of_gain(*each)))
    chosen = _empty_in_order(useful, fits_without)
    return chosen if chosen is not None and _is_within(chosen, most) else None


def _empty_in_order(
    useful: Sequence[tuple[int, _Place]], fits_without: Callable[[Sequence[Piece]], bool]
) -> list[Piece] | None:
    """Return what is left to take of as many nodes, in this order, as suffice."""
    groups = [place.pieces for _, place in useful]
    found = find_first(groups, lambda some: fits_without(_union(some)) or None)
    if found is None:
        return None
    taken = sorted(_union(groups[: found[0]]), key=lambda piece: piece.key)
    if len(taken) > MAX_THINNED:
        return taken
    return _thin_out(taken, fits_without)


def _is_within(pieces: Sequence[Piece], most: Mapping[ClusterId, int] | None) -> bool:
    counts = Counter(piece.owner.cluster_id for piece in pieces)
    return most is None or all(count <= most.get(each, 0) for each, count in counts.items())


def _cost_of_gain(gain: int, place: _Place) -> tuple[int, bool, float, int, int]:
    value, is_nearly_done, lost, _, _ = _total(place.pieces)
    return value, is_nearly_done, lost / gain, place.bench_index, place.node


def _union(groups: Sequence[Sequence[Piece]]) -> list[Piece]:
    return list(dict.fromkeys(piece for group in groups for piece in group))


def _thin_out(taken: list[Piece], fits_without: Callable[[Sequence[Piece]], bool]) -> list[Piece]:
    """Return the set without what it can spare, the dearest spared first."""
    for piece in list(reversed(taken)):
        rest = [other for other in taken if other is not piece]
        if rest and fits_without(rest):
            taken = rest
    return taken


def _total(pieces: Sequence[Piece]) -> tuple[int, bool, int, int, str]:
    """Return the cost of a set: the highest class in it, then what is lost, then how many."""
    keys = [piece.key for piece in pieces]
    return (
        max(key[0] for key in keys),
        any(key[1] for key in keys),
        sum(key[2] for key in keys),
        len(keys),
        min(key[4] for key in keys),
    )


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
