"""What the quotas answered, kept while the usage they answered at holds.

Owns the memory of first answers by queue and kind. The arithmetic is `core.quota`'s, the question
`admission`'s; an answer from here is the very answer that asking again would give.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from gpuplane.core.quota.nodes import Node
from gpuplane.core.quota.tree import Declared
from gpuplane.core.scheduling.admission import Admission, Grant, QuotaRefusal
from gpuplane.core.scheduling.ordering import Entry
from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.policy import Flavor
from gpuplane.core.scheduling.workload import Workload

STATES_KEPT = 4
"""Usages of a queue whose answers are kept: a cycle begins and ends at two of them."""

Answer = Grant | QuotaRefusal
_Table = dict[Hashable, Answer]


@dataclass(slots=True)
class _QueueMemory:
    """Answers of one queue by usage, latest last."""

    states: dict[Hashable, _Table] = field(default_factory=dict)


class AnswerMemory:
    """Answers of earlier cycles; empty again when a quota, a flavor or a model has changed."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._basis: tuple[Declared, Mapping[str, Flavor], frozenset[str]] | None = None
        self._forget()

    def _forget(self) -> None:
        self.queues: dict[str, _QueueMemory] = {}
        self.asks: dict[tuple[Hashable, int], Hashable] = {}
        """By place and replicas, what is asked of the queue: all else does not matter to it."""
        self.fixed: dict[tuple[str, str], Grant | None] = {}

    def rebase(
        self, declared: Declared, flavors: Mapping[str, Flavor], models: frozenset[str]
    ) -> None:
        """Forget everything unless the answers still follow from the same declarations."""
        basis = (declared, flavors, models)
        if self._basis is None or basis != self._basis:
            self._forget()
        self._basis = (declared, dict(flavors), models)


class Answers:
    """First answers within one trial; only to be asked while nothing is counted on trial."""

    def __init__(self, admission: Admission, memory: AnswerMemory) -> None:
        self._admission = admission
        self._memory = memory
        self._tables: dict[str, tuple[int, _Table]] = {}
        self._paths: dict[str, tuple[Node, ...]] = {}

    def first(self, entry: Entry, changes: int) -> Answer | None:
        """Return the first answer for all replicas of a workload.

        Args:
            entry: The workload with its kind.
            changes: A number that grows whenever usage has changed for good.
        """
        return self._ask(entry, entry.workload.replicas.count, changes)

    def first_needed(self, entry: Entry, changes: int) -> Answer | None:
        """Return the first answer for the replicas without which it does not start."""
        return self._ask(entry, needed_replicas(entry.workload.replicas), changes)

    def _ask(self, entry: Entry, replicas: int, changes: int) -> Answer | None:
        workload = entry.workload
        if entry.kind is None:
            return self._fresh(workload, replicas)
        known = self._tables.get(workload.queue)
        if known is None or known[0] != changes:
            known = self._tables[workload.queue] = (changes, self._table(workload.queue))
        asks = self._memory.asks
        ask = asks.get((entry.place, replicas))
        if ask is None:
            ask = asks[entry.place, replicas] = self._find_ask(entry, replicas)
        answer = known[1].get(ask)
        if answer is None:
            found = self._fresh(workload, replicas)
            if found is None or self._admission.is_capped(workload.local_queue):
                return found
            answer = known[1][ask] = found
        return answer

    def _find_ask(self, entry: Entry, replicas: int) -> Hashable:
        """Return what the answer depends on: usage alone where there is one choice of flavors."""
        fixed = self._admission.find_fixed(entry.workload)
        if fixed is None:
            return entry.kind, replicas
        if self._admission.is_capped(entry.workload.local_queue):
            return entry.place, replicas
        return tuple(sorted(fixed.replica_usage.items())), fixed.flavors, replicas

    def _fresh(self, workload: Workload, replicas: int) -> Answer | None:
        return next(iter(self._admission.grants(workload, replicas)), None)

    def _table(self, queue: str) -> _Table:
        """Return the answers at the usage that the queue and everything above it has now."""
        path = self._paths.get(queue)
        if path is None:
            node = self._admission.tree.queue_node(queue)
            path = self._paths[queue] = (node, *node.ancestors())
        state = tuple(
            tuple(sorted((pair, cell.usage) for pair, cell in node.cells.items() if cell.usage))
            for node in path
        )
        states = self._memory.queues.setdefault(queue, _QueueMemory()).states
        table = states.pop(state, None)
        if table is None:
            table = {}
            if len(states) >= STATES_KEPT:
                del states[next(iter(states))]
        states[state] = table
        return table
