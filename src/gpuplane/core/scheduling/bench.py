"""One fleet on the workbench: per workload class, which nodes fit and a rank for each.

Owns the per-class rows and keeps them true by looking again only at nodes that changed. Never
decides for a workload: placement asks it for the best node.

A bench outlives a cycle. `open_bench(fleet, policy, mix, now, seed)` returns the one kept with the
fleet, made ready for the new cycle, and `close` gives it back. What survives: rows, with which
nodes fit, for as long as the fleet's facts do (that is, the `Fleet` object), refreshed by the nodes
that changed; their ranks and device choices too while mix and seed stay equal. What a cycle begins
without: held nodes. Nobody has to tell the bench what changed: the fleet's log does.
"""

from collections.abc import Sequence

import numpy as np

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import NEVER, Bools, Fleet, Ints, Masks
from gpuplane.core.fleet.states import Change
from gpuplane.core.prediction import durations
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling import filters, fragments
from gpuplane.core.scheduling.filters import EVERYWHERE
from gpuplane.core.scheduling.fragments import BoundMix, TypicalMix, bind_mix
from gpuplane.core.scheduling.needs import Need, bind_need
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy
from gpuplane.core.scheduling.refusals import RefusalCounts, RefusalTable
from gpuplane.core.scheduling.reservations import Upcoming, latest_hold
from gpuplane.core.scheduling.scores import (
    Ranks,
    ScoreContext,
    compute_chance,
    compute_price_steps,
    compute_ranks,
    follows_from_gpus,
    follows_from_state,
)
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.tables import SubsetTable

_RowKey = tuple[str, int, int]
"""Class, the first maintenance it may run into, the upcoming reservations that bind it as bits."""

StateKey = tuple[int, int, int]
"""Kind of node, pattern of free shares, score of the links of the best free GPUs."""

NOT_FIT = -1
"""The rank of a node that does not fit the class now."""

MAX_SINGLY = 64
"""Changed nodes looked up one by one; more are cheaper looked at together."""
MAX_SINGLY_BY_GPUS = 256
"""The same where nearly every state is known by its free GPUs: few are left to be ranked."""
MIN_SPARSE = 4
"""Part of the nodes, as one in so many, below which only those that fit are ranked."""
MAX_REMEMBERED = 4_096
"""States of which a row remembers the rank, and where a placement leads."""
MIN_ROWS = 256
"""Rows that a bench may keep however large the fleet is."""
MAX_ROW_CELLS = 2_000_000
"""Nodes times rows of a bench beyond that: what is older than the caches of a core is slow to come
back anyway, and fresh memory is slow to get. The oldest rows go first."""


class Row:
    """One class against one fleet: which nodes fit now, and how good each is.

    Attributes:
        steps: By the state of a node, what a replica takes there and the state that it leaves,
            filled in by placement.
        subset_rows: Best GPU sets by topology, filled in at their first use.
        version: Of the bench's mix and chances that the ranks were made with.
    """

    def __init__(self, context: ScoreContext, version: int, table: RefusalTable) -> None:
        self.context = context
        self._table = table
        self._place: int | None = None
        self.need: Need = context.need
        self.fleet: Fleet = context.fleet
        self.version = version
        self.subset_rows: dict[int, SubsetTable] = {}
        self.steps: dict[int, tuple[Change, int]] = {}
        self._active = filters.list_active(self.need, filters.DYNAMIC_FILTERS)
        self._lasting = filters.compute_lasting(self.need, self.fleet)
        self._suits: Bools | None = None
        self._suits_any: bool | None = None
        self._by_state = follows_from_state(context)
        self._by_gpus = follows_from_gpus(context)
        need = self.need
        # What asks for single GPUs of a node looks at them as a table.
        self._is_plain = not (
            need.is_mig
            or need.is_partly_eligible
            or need.partly_granted is not None
            or context.hint is not None
        )
        self._rank_of: dict[int, int] = {}
        self._rank_with: dict[StateKey, int] = {}
        self._epoch = self.fleet.epoch
        self._seen = self.fleet.clock
        self._fits: Bools | None = self._lasting & filters.compute_passing(
            self.need, self.fleet, EVERYWHERE, self._active
        )
        self._ranks: Ranks | None = None
        self._refusals: RefusalCounts | None = None

    def suits(self, node: int) -> bool:
        """Tell whether a node passes every filter that does not depend on what is free."""
        return bool(self.suiting[node])

    @property
    def suits_any(self) -> bool:
        if self._suits_any is None:
            self._suits_any = bool(self.suiting.any())
        return self._suits_any

    @property
    def fits(self) -> Bools:
        """Which nodes fit now, shape (node,); cheaper than the ranks where those are not needed."""
        if self._fits is not None:
            return self._fits
        if self._place is not None:
            return self._table.fits(self._place)
        return np.asarray(self.ranks != NOT_FIT)

    @property
    def fits_any(self) -> bool:
        """Whether there is any such node."""
        return bool(self.fits.any()) if self._place is None else self._table.fits_any(self._place)

    @property
    def ranks(self) -> Ranks:
        """Rank per node, `NOT_FIT` where a filter refuses it, shape (node,)."""
        if self._ranks is None:
            fits = self.fits
            is_wide = self.context.policy.placement is PlacementPolicy.COST_OPTIMIZED
            dtype = np.int64 if is_wide else np.int32
            fitting = int(np.count_nonzero(fits))
            if fitting * MIN_SPARSE > len(fits):
                # Where most fit, ranking all costs less than picking out those that do.
                ranks = compute_ranks(self.context, EVERYWHERE)
                self._ranks = _keep_where(fits, ranks.astype(dtype, copy=False))
            else:
                self._ranks = np.full(len(fits), NOT_FIT, dtype=dtype)
                if fitting:
                    where = np.flatnonzero(fits)
                    self._ranks[where] = compute_ranks(self.context, where)
            self._fits = None
        return self._ranks

    def find_best(self, allowed: Bools | None = None) -> tuple[int, int] | None:
        """Return the best node with its rank, the first of equals by name; None when none fits."""
        if self._ranks is None:
            if not self.fits_any:
                return None
            if allowed is not None and not (self.fits & allowed).any():
                return None
        ranks = self.ranks if allowed is None else _keep_where(allowed, self.ranks)
        node = int(ranks.argmax())
        rank = int(ranks[node])
        return None if rank == NOT_FIT else (node, rank)

    def rank_on(self, node: int) -> int:
        """Return the rank that a node has now, changed or not since the last refresh."""
        rank = self._rank_of.get(self.fleet.state_of[node]) if self._by_state else None
        if rank is None:
            self._look([node])
            rank = int(self.ranks[node])
        return rank

    def refresh(self) -> None:
        """Look again at the nodes that changed since the last look."""
        fleet = self.fleet
        clock = fleet.clock
        if clock == self._seen:
            return
        changed = fleet.list_changed(self._seen)
        self._seen = clock
        if self._epoch != fleet.epoch:
            self._epoch = fleet.epoch
            self._forget()
        ranks = self._ranks
        if ranks is None and self._place is not None:
            return  # the table looks for itself
        most = MAX_SINGLY_BY_GPUS if self._by_gpus else MAX_SINGLY
        if ranks is None or not self._by_state or len(changed) > most:
            self._look(changed)
            return
        unknown = []
        for node in changed:
            if self._lasting[node]:
                state = fleet.state_of[node]
                rank = self._rank_of.get(state)
                if rank is None and self._by_gpus:
                    rank = self._rank_in(node, state)
                if rank is None:
                    unknown.append(node)
                else:
                    ranks[node] = rank
        if unknown:
            self._look(unknown)

    def renew(self, context: ScoreContext, version: int) -> None:
        """Take over a new mix or new chances: who fits stays, ranks are made anew."""
        self.context = context
        self.version = version
        self._fits = self.fits if self._place is None else None
        self._by_gpus = follows_from_gpus(context)
        self._ranks = None
        self._forget()

    def _forget(self) -> None:
        """Begin without what was found by state: states are numbered anew, or rank otherwise."""
        self._rank_of.clear()
        self._rank_with.clear()
        self.steps.clear()

    def _rank_in(self, node: int, state: int) -> int | None:
        """Return the rank of a node in a state not seen before, None where none like it was.

        Free CPU and memory, and which of equal GPUs are free, make many states of few patterns.
        """
        key = self._find_key(node, state)
        rank = NOT_FIT if key is None else self._rank_with.get(key)
        if rank is not None:
            self._remember(state, rank)
        return rank

    def find_key(self, node: int) -> StateKey | None:
        """Return all that rank and refusal of a node follow from, None where that is more.

        That is: CPU, memory or storage are missing, or the class looks at more than free GPUs.
        """
        return self._find_key(node, self.fleet.state_of[node]) if self._by_gpus else None

    def _find_key(self, node: int, state: int) -> StateKey | None:
        """Return all that the rank of a state follows from, None where there is no room in it."""
        fleet, need = self.fleet, self.need
        states, resources = fleet.states, need.resources
        value = states.values[state]
        if (
            value.cpu < resources.cpu_milli
            or value.memory < resources.memory_mib
            or value.ephemeral < resources.ephemeral_mib
        ):
            return None
        links = 0
        if need.link_scores is not None:
            free = states.gpus[state].mask & int(need.granted_mask[node])
            links = int(need.link_scores[fleet.topology_index[node], free])
        return value.kind, states.pattern[state], links

    def _remember(self, state: int, rank: int) -> None:
        if len(self._rank_of) >= MAX_REMEMBERED:
            self._rank_of.clear()
        self._rank_of[state] = rank

    def _learn(self, node: int, rank: int) -> None:
        """Remember the rank that a node was found to have."""
        state = self.fleet.state_of[node]
        self._remember(state, rank)
        if self._by_gpus:
            key = self._find_key(node, state)
            if key is not None:
                if len(self._rank_with) >= MAX_REMEMBERED:
                    self._rank_with.clear()
                self._rank_with[key] = rank

    def leave(self) -> None:
        """Let go of the place in the table; the row itself can still be used."""
        if self._place is not None:
            if self._ranks is None:
                self._fits = self._table.fits(self._place)
            self._table.remove(self._place)
            self._place = None

    def count_refused(self) -> list[tuple[Word, int]]:
        """Return the nodes refused per filter, in the order of the filters."""
        if self._place is None and self._refusals is None and RefusalTable.covers(self.need):
            # Whoever is told why it waits will mostly wait in the next cycle too.
            self._place = self._table.add(self.need)
            self._fits = None
        if self._place is not None:
            return self._table.list_counts(self._place)
        if self._refusals is None:
            self._refusals = RefusalCounts(self.need, self.fleet)
        return self._refusals.list_counts()

    @property
    def suiting(self) -> Bools:
        """Which nodes pass every filter that does not depend on what is free, shape (node,)."""
        if self._suits is None:
            self._suits = filters.compute_suiting(self.need, self.fleet)
        return self._suits

    def _look(self, nodes: Sequence[int]) -> None:
        """Ask the filters that look at what is free again, and rank who fits."""
        if len(nodes) <= fragments.MAX_SINGLY and self._is_plain and self._ranks is not None:
            for node in nodes:
                self._look_at(node)
            return
        where = np.array(sorted(set(nodes)), dtype=np.int64)
        where = where[self._lasting[where]]
        if not len(where):
            return
        passing = filters.compute_passing(self.need, self.fleet, where, self._active)
        if self._ranks is None:
            if self._fits is not None:
                self._fits[where] = passing
            return
        ranks = np.full(len(where), NOT_FIT, dtype=self._ranks.dtype)
        if passing.any():
            ranks[passing] = compute_ranks(self.context, where[passing])
        self._ranks[where] = ranks
        if len(where) <= MAX_SINGLY and self._by_state:
            for node, rank in zip(where.tolist(), ranks.tolist(), strict=True):
                self._learn(node, rank)

    def _look_at(self, node: int) -> None:
        """Do the same for one node."""
        if not self._lasting[node]:
            return
        rank = NOT_FIT
        if filters.passes_all(self.need, self.fleet, node, self._active):
            rank = int(compute_ranks(self.context, node))
        self.ranks[node] = rank
        if self._by_state:
            self._learn(node, rank)


def _keep_where(kept: Bools, ranks: Ranks) -> Ranks:
    """Return the ranks where they are kept, `NOT_FIT` elsewhere.

    `NOT_FIT` has every bit set, so this is a `where` at a fraction of its cost.
    """
    return ranks | np.subtract(kept, 1, dtype=ranks.dtype)


class Bench:
    """A fleet with its rows, and the nodes that are held back for someone.

    Attributes:
        held_until: Nodes kept for blocked heads, until the first of them starts: work that ends
            by then may use them; 0 for nodes that are not held, shape (node,).
        upcoming: Reservations that have not begun, with the GPUs that are kept clear for them.
        is_open: A cycle works on it.
        max_rows: Rows kept at most; the oldest go first.
    """

    def __init__(self, fleet: Fleet, policy: Policy, mix: TypicalMix, now: int, seed: int) -> None:
        self.fleet = fleet
        self.policy = policy
        self.upcoming: Sequence[Upcoming] = ()
        self._rows: dict[_RowKey, Row] = {}
        self._table = RefusalTable(fleet)
        self.max_rows = max(MIN_ROWS, MAX_ROW_CELLS // max(1, len(fleet)))
        self._maintenance: Ints = np.unique(fleet.maintenance_at[fleet.maintenance_at != NEVER])
        self._price_step = compute_price_steps(fleet)
        self._chance: Ranks = np.zeros(len(fleet), dtype=np.int64)
        self._mix: BoundMix | None = None
        self._seed: int | None = None
        self._version = 0
        self.held_until: Ints = np.zeros(len(fleet), dtype=np.int64)
        self.is_holding = False
        self._open_until: dict[int, Bools] = {}
        self.is_open = False
        self.begin(mix, now, seed)

    def begin(self, mix: TypicalMix, now: int, seed: int) -> None:
        """Make ready for a cycle: nothing is held, ranks follow this mix and seed."""
        self.is_open = True
        self.now = now
        self.release_holds()
        self.upcoming = ()
        for key in [key for key in self._rows if key[2]]:
            self._rows.pop(key).leave()  # what was kept clear for whom is told anew
        bound = bind_mix(mix, self.fleet)
        is_random = self.policy.placement is PlacementPolicy.RANDOM
        if is_random and seed != self._seed:
            self._chance = compute_chance(self.fleet, seed)
            self._version += 1
        if bound is not self._mix:
            self._version += 1
        self._mix = bound
        self._seed = seed

    def close(self) -> None:
        """Let the next cycle have it."""
        self.is_open = False

    def row(self, workload: Workload) -> Row:
        """Return the up-to-date row of the workload's class."""
        step = 0
        if len(self._maintenance):
            # Work of one class differs in length; what matters is which maintenance it runs into.
            ends_at = self.now + expected_s(workload, self.policy) * MS_PER_S
            step = int(self._maintenance.searchsorted(ends_at))
        withheld = self._withheld_from(workload) if self.upcoming else 0
        key = (workload.class_key, step, withheld)
        row = self._rows.get(key)
        if row is None:
            return self._add_row(key, workload)
        if row.version != self._version:
            row.renew(self._context_of(row.need, workload), self._version)
        row.refresh()
        return row

    def _add_row(self, key: _RowKey, workload: Workload) -> Row:
        _, step, withheld = key
        before = int(self._maintenance[step]) if step < len(self._maintenance) else NEVER
        need = bind_need(workload, self.fleet, before, self._clear_mask(withheld))
        if len(self._rows) >= self.max_rows:
            self._rows.pop(next(iter(self._rows))).leave()
        context = self._context_of(need, workload)
        row = self._rows[key] = Row(context, self._version, self._table)
        return row

    def _context_of(self, need: Need, workload: Workload) -> ScoreContext:
        assert self._mix is not None, "a bench begins with a mix"
        return ScoreContext(
            need,
            self.fleet,
            self.policy,
            self._mix,
            self._chance,
            self._price_step,
            workload.hint,
        )

    def _withheld_from(self, workload: Workload) -> int:
        """Return the places in `upcoming` whose GPUs the workload must leave alone, as bits."""
        until = latest_hold(workload, self.now, expected_s(workload, self.policy))
        return sum(
            1 << place
            for place, each in enumerate(self.upcoming)
            if each.withholds_from(workload, until, self.now)
        )

    def _clear_mask(self, withheld: int) -> Masks | None:
        """Return the GPUs to be left alone, None for none."""
        found: Masks | None = None
        for place, each in enumerate(self.upcoming):
            if withheld >> place & 1:
                found = each.masks if found is None else found | each.masks
        return found

    def hold(self, node: int, until: int) -> None:
        """Keep a node for someone: only work that ends by then may start there.

        A node that is kept for several is kept for the earliest: who is in time for that one is
        in time for the others.
        """
        self._open_until.clear()
        known = int(self.held_until[node])
        self.held_until[node] = min(known, until) if known else until
        self.is_holding = True

    def release_holds(self) -> None:
        """Keep no node for anyone."""
        if self.is_holding:
            self.held_until[:] = 0
            self.is_holding = False
            self._open_until.clear()

    def open_nodes(self, ends_at: int) -> Bools:
        """Return the nodes that work ending at this instant may use."""
        found = self._open_until.get(ends_at)
        if found is None:
            found = np.asarray((self.held_until == 0) | (self.held_until >= ends_at))
            self._open_until[ends_at] = found
        return found

    def count_refused(self, row: Row) -> list[tuple[Word, int]]:
        """Return the nodes refused per filter, in the order of the filters."""
        return row.count_refused()


def open_bench(fleet: Fleet, policy: Policy, mix: TypicalMix, now: int, seed: int) -> Bench:
    """Return the bench kept with the fleet, ready for a cycle; a new one while that is in use."""
    bench: Bench | None = fleet.find_pinned("bench")
    if bench is not None and bench.is_open:
        return Bench(fleet, policy, mix, now, seed)
    if bench is None or bench.policy != policy:
        bench = Bench(fleet, policy, mix, now, seed)
        fleet.pin("bench", bench)
    else:
        bench.begin(mix, now, seed)
    return bench


def expected_s(workload: Workload, policy: Policy) -> int:
    """Return how long the workload is taken to run, in seconds."""
    known = durations.expected_s(
        workload.estimated_duration_s, workload.learned, workload.max_duration_s
    )
    return policy.default_duration_s if known is None else known


def latest_end(workload: Workload, now: int) -> int:
    """Return when the workload, started now, is over at the latest; `NEVER` when nothing says."""
    known = workload.max_duration_s or workload.estimated_duration_s
    return NEVER if known is None else now + known * MS_PER_S
