"""What the quotas answered, kept while the usage they answered at holds.

Owns the memory of first answers by queue and kind. The arithmetic is `core.quota`'s, the question
`admission`'s; an answer from here is the very answer that asking again would give.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.fleet.columns import Bools
from gpuplane.core.quota.nodes import Node
from gpuplane.core.quota.tree import Declared
from gpuplane.core.scheduling.admission import Admission, Grant, QuotaRefusal, Usage
from gpuplane.core.scheduling.ordering import Entry
from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.policy import Flavor
from gpuplane.core.scheduling.workload import Workload

STATES_KEPT = 4
"""Usages of a queue whose answers are kept: a cycle begins and ends at two of them."""

Ints = NDArray[np.int64]
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
        self.numbers: dict[Hashable, int] = {}
        """By queue and what is asked of it, the number of the question."""
        self.askers: list[Entry] = []
        """By that number, somebody who asks it."""
        self.number_of_place: NDArray[np.int64] = np.full(64, -1, dtype=np.int64)

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

    def ask_for(self, places: Ints, entry_at: Callable[[int], Entry]) -> "Questions":
        """Return what all of these ask first, for all of their replicas.

        Args:
            places: The place of each as in `Entry`, -1 for None, shape (entry,).
            entry_at: Gives each by its index.
        """
        return Questions(self, self._memory, places, entry_at)

    def find_fixed(self, entry: Entry) -> Grant | None:
        """Return the flavors that one replica gets whatever the usage, None if it depends on it."""
        return self._admission.find_fixed(entry.workload)

    def is_capped(self, entry: Entry) -> bool:
        """Tell whether a LocalQueue limits the workload on top of its queue's quota."""
        return self._admission.is_capped(entry.workload.local_queue)

    def find_level(self, queue: str, usage: Usage) -> int:
        """Return from how far up the quota for a usage would come, -1 if there is too little."""
        return self._admission.tree.find_level(queue, usage)

    def path_of(self, queue: str) -> tuple[Node, ...]:
        """Return a queue and every cohort above it."""
        path = self._paths.get(queue)
        if path is None:
            node = self._admission.tree.queue_node(queue)
            path = self._paths[queue] = (node, *node.ancestors())
        return path

    def find_ask(self, entry: Entry, replicas: int) -> Hashable:
        """Return what the answer depends on: usage alone where there is one choice of flavors."""
        asks = self._memory.asks
        ask = asks.get((entry.place, replicas))
        if ask is None:
            ask = asks[entry.place, replicas] = self._find_ask(entry, replicas)
        return ask

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
        ask = self.find_ask(entry, replicas)
        answer = known[1].get(ask)
        if answer is None:
            found = self._fresh(workload, replicas)
            if found is None or self._admission.is_capped(workload.local_queue):
                return found
            answer = known[1][ask] = found
        return answer

    def _find_ask(self, entry: Entry, replicas: int) -> Hashable:
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
        state = tuple(
            tuple(sorted((pair, cell.usage) for pair, cell in node.cells.items() if cell.usage))
            for node in self.path_of(queue)
        )
        states = self._memory.queues.setdefault(queue, _QueueMemory()).states
        table = states.pop(state, None)
        if table is None:
            table = {}
            if len(states) >= STATES_KEPT:
                del states[next(iter(states))]
        states[state] = table
        return table


class Flags:
    """Truths by number, cheap to read one by one and as a column of the same memory.

    Attributes:
        each: By number, 0 or 1. `column`: the same, shape (number,).
    """

    def __init__(self, count: int) -> None:
        """Begin with none of them true."""
        self.each = bytearray(count)
        self.column: Bools = np.frombuffer(self.each, dtype=np.bool_)


@dataclass(slots=True)
class _QueueQuestions:
    """The questions to one queue, and the usage at which they were answered."""

    path: tuple[Node, ...]
    open: list[int] = field(default_factory=list)
    """Those that are not refused; quota only shrinks within a cycle, so the others stay so."""
    versions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _TreeQuestions:
    """Queues with a common root, every node on their ways there, and the usage of all these."""

    queues: list[_QueueQuestions] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class Questions:
    """What the entries of a cycle ask of their queues, each question answered once a usage.

    Attributes:
        of: The number of each entry's question, shape (entry,).
        refused: Whether a question is refused at the usage of the last `refresh`, by number.
        levels: From how far up the quota for it comes; 0 where it is refused.
        level_changes: Grows whenever some level has changed.
        flavors: The number of the flavors that answer it whatever the usage, -1 if that depends.
    """

    def __init__(
        self,
        answers: Answers,
        memory: AnswerMemory,
        places: Ints,
        entry_at: Callable[[int], Entry],
    ) -> None:
        self._answers = answers
        self._memory = memory
        self.of = self._number(places, entry_at)
        count = len(self._askers)
        self.refused = Flags(count)
        self.levels: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        self.flavors: NDArray[np.int64] = np.full(count, -1, dtype=np.int64)
        self.flavor_count = 0
        self.level_changes = 0
        self._usages: dict[int, Usage | None] = {}
        self._changes = -1
        self._trees = self._list_trees()

    def refresh(self, changes: int) -> None:
        """Ask again where usage has changed for good, which `changes` counts."""
        if changes == self._changes:
            return
        self._changes = changes
        for tree in self._trees:
            versions = [node.usage_version for node in tree.nodes]
            if versions == tree.versions:
                continue
            tree.versions = versions
            for each in tree.queues:
                versions = [node.usage_version for node in each.path]
                if versions != each.versions:
                    each.versions = versions
                    each.open = [one for one in each.open if self._ask_again(one, changes)]

    def _ask_again(self, number: int, changes: int) -> bool:
        """Ask a question; tell whether it is not refused."""
        entry, before = self._askers[number], int(self.levels[number])
        usage = self._usages[number]
        if usage is None:
            answer = self._answers.first(entry, changes)
            level = -1 if isinstance(answer, QuotaRefusal) else 0
            if isinstance(answer, Grant):
                level = answer.borrow_level
        else:
            level = self._answers.find_level(entry.workload.queue, usage)
        if max(level, 0) != before:
            self.levels[number] = max(level, 0)
            self.level_changes += 1
        self.refused.each[number] = level < 0
        return level >= 0

    def _number(self, places: Ints, entry_at: Callable[[int], Entry]) -> Ints:
        """Return the numbers of the questions; who has no kind asks one of its own."""
        memory = self._memory
        room = int(places.max(initial=0)) + 1 - len(memory.number_of_place)
        if room > 0:
            more = np.full(room + len(memory.number_of_place), -1, dtype=np.int64)
            memory.number_of_place = np.concatenate((memory.number_of_place, more))
        known = memory.number_of_place
        found = np.where(places < 0, -1, known[places])
        alone = []
        for index in np.flatnonzero(found < 0).tolist():
            entry, place = entry_at(index), int(places[index])
            if place < 0:
                alone.append(index)
                continue
            if known[place] < 0:
                ask = self._answers.find_ask(entry, entry.workload.replicas.count)
                key = (entry.workload.queue, ask)
                number = memory.numbers.setdefault(key, len(memory.numbers))
                if number == len(memory.askers):
                    memory.askers.append(entry)
                known[place] = number
            found[index] = known[place]
        self._askers = [*memory.askers, *(entry_at(index) for index in alone)]
        found[alone] = np.arange(len(memory.askers), len(self._askers))
        return found

    def _list_trees(self) -> list[_TreeQuestions]:
        """Note what each question is about; return them by queue and the queues by root."""
        flavors: dict[tuple[str, ...], int] = {}
        queues: dict[str, _QueueQuestions] = {}
        trees: dict[Node, _TreeQuestions] = {}
        for number in np.flatnonzero(np.bincount(self.of, minlength=1)).tolist():
            entry = self._askers[number]
            queue = entry.workload.queue
            if queue not in queues:
                path = self._answers.path_of(queue)
                tree = trees.setdefault(path[-1], _TreeQuestions())
                there = queues[queue] = _QueueQuestions(path)
                tree.queues.append(there)
                tree.nodes += [node for node in path if node not in tree.nodes]
            queues[queue].open.append(number)
            fixed = self._answers.find_fixed(entry)
            self._usages[number] = None
            if fixed is not None:
                self.flavors[number] = flavors.setdefault(fixed.flavors, len(flavors))
                if not self._answers.is_capped(entry):
                    count = entry.workload.replicas.count
                    self._usages[number] = replace(fixed, replicas=count).usage
        self.flavor_count = len(flavors)
        return list(trees.values())
