"""One fleet on the workbench of a cycle: per workload class, a rank for every node.

Owns the per-class caches and keeps them true by looking again only at nodes that were touched.
Never decides for a workload: placement asks it for the best node.
"""

import numpy as np

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import NEVER, Bools, Fleet, Ints
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling import filters
from gpuplane.core.scheduling.filters import EVERYWHERE, Where
from gpuplane.core.scheduling.fragmentation import TypicalMix, bind_mix
from gpuplane.core.scheduling.needs import Need, bind_need
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy
from gpuplane.core.scheduling.scores import (
    Ranks,
    ScoreContext,
    compute_chance,
    compute_price_steps,
    compute_ranks,
)
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.tables import SubsetTable

NOT_FIT = -1
"""The rank of a node that does not fit the class now."""


class Row:
    """One class against one fleet: which nodes fit now, and how good each is.

    Attributes:
        ranks: Rank per node, `NOT_FIT` where a filter refuses it, shape (node,).
        subset_rows: Best GPU sets by topology, filled in at their first use.
    """

    def __init__(self, context: ScoreContext) -> None:
        self.context = context
        self.need: Need = context.need
        self.fleet: Fleet = context.fleet
        self.subset_rows: dict[int, SubsetTable] = {}
        static = filters.list_active(self.need, filters.STATIC_FILTERS)
        self._active = filters.list_active(self.need, filters.DYNAMIC_FILTERS)
        self._suits: Bools = filters.compute_passing(self.need, self.fleet, EVERYWHERE, static)
        self.ranks: Ranks = np.full(len(self.fleet), NOT_FIT, dtype=np.int64)
        self._seen = len(self.fleet.touched)
        self._look(np.flatnonzero(self._suits))

    def suits(self, node: int) -> bool:
        """Tell whether a node passes every filter that does not depend on what is free."""
        return bool(self._suits[node])

    @property
    def suits_any(self) -> bool:
        return bool(self._suits.any())

    def refresh(self) -> None:
        """Look again at the nodes touched since the last look."""
        touched = self.fleet.touched
        end = len(touched)
        if end == self._seen:
            return
        changed = np.array(sorted(set(touched[self._seen : end])), dtype=np.int64)
        self._seen = end
        suits = changed[self._suits[changed]]
        if len(suits):
            self._look(suits)

    def _look(self, where: Where) -> None:
        passing = filters.compute_passing(self.need, self.fleet, where, self._active)
        ranks = compute_ranks(self.context, where)
        self.ranks[where] = np.where(passing, ranks, NOT_FIT)


class Bench:
    """A fleet with its rows, and the nodes that are held back for someone.

    Attributes:
        held_until: Nodes kept for a blocked head or a preemptor: work that ends by then may use
            them; 0 for nodes that are not held, shape (node,).
    """

    def __init__(self, fleet: Fleet, policy: Policy, mix: TypicalMix, now: int, seed: int) -> None:
        self.fleet = fleet
        self.policy = policy
        self.now = now
        self.held_until: Ints = np.zeros(len(fleet), dtype=np.int64)
        self.is_holding = False
        self._mix = bind_mix(mix, fleet)
        nothing: Ranks = np.zeros(len(fleet), dtype=np.int64)
        is_random = policy.placement is PlacementPolicy.RANDOM
        self._chance = compute_chance(fleet, seed) if is_random else nothing
        self._price_step = compute_price_steps(fleet)
        self._maintenance = np.unique(fleet.maintenance_at[fleet.maintenance_at != NEVER])
        self._rows: dict[tuple[str, int], Row] = {}

    def row(self, workload: Workload) -> Row:
        """Return the up-to-date row of the workload's class."""
        ends_at = self.now + expected_s(workload, self.policy) * MS_PER_S
        # Work of one class differs in length; what matters is which maintenance it runs into.
        step = int(np.searchsorted(self._maintenance, ends_at)) if len(self._maintenance) else 0
        key = (workload.class_key, step)
        row = self._rows.get(key)
        if row is None:
            need = bind_need(workload, self.fleet, self.now, ends_at)
            context = ScoreContext(
                need, self.fleet, self.policy, self._mix, self._chance, self._price_step
            )
            row = self._rows[key] = Row(context)
        else:
            row.refresh()
        return row

    def hold(self, node: int, until: int) -> None:
        """Keep a node for someone: only work that ends by then may start there."""
        self.held_until[node] = max(int(self.held_until[node]), until)
        self.is_holding = True

    def open_nodes(self, ends_at: int) -> Bools:
        """Return the nodes that work ending at this instant may use."""
        return np.asarray((self.held_until == 0) | (self.held_until >= ends_at))

    def count_refused(self, row: Row) -> list[tuple[Word, int]]:
        """Return the nodes refused per filter, in the order of the filters."""
        return filters.count_refused(row.need, self.fleet)[0]


def expected_s(workload: Workload, policy: Policy) -> int:
    """Return how long the workload is taken to run, in seconds."""
    if workload.estimated_duration_s is not None:
        return workload.estimated_duration_s
    if workload.max_duration_s is not None:
        return workload.max_duration_s
    return policy.default_duration_s


def latest_end(workload: Workload, now: int) -> int:
    """Return when the workload, started now, is over at the latest; `NEVER` when nothing says."""
    known = workload.max_duration_s or workload.estimated_duration_s
    return NEVER if known is None else now + known * MS_PER_S
