"""What a worker remembers of runs under way, so that a step of a chain reads nothing again.

Everything here can be forgotten at any time: it is a copy of rows that do not change, outputs of
steps that are over and the plan around them.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from gpuplane.core.runs.boards import Step
from gpuplane.domains.runs.service import RunHead

KEPT_RUNS = 2_000
KEPT_BYTES = 64 << 20
"""Outputs that are kept in memory, of all runs together; the run that was used last may be more."""


@dataclass(slots=True)
class RunMemory:
    """What is known of one run.

    Attributes:
        parents: `seq` of the step that expanded into a step, or that a compensation undoes.
        before: Steps that must be over before a step, directly or not, as bits by `seq`.
        outputs: Output as JSON text by `seq`, of the steps in `known`.
        known: Steps of which the output is known, as bits.
    """

    head: RunHead
    needs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    undone: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, str | None] = field(default_factory=dict)
    known: int = 0
    size: int = 0

    def learn_step(
        self, seq: int, parent: int, undo_of: int, needs: tuple[int, ...], key: str
    ) -> None:
        """Remember where a step stands."""
        self.needs[seq], self.keys[seq], self.numbers[key] = needs, key, seq
        if parent:
            self.parents[seq] = parent
        if undo_of:
            self.undone[seq] = undo_of

    def visible(self, seq: int) -> int:
        """Return the steps whose outputs a step sees, as bits.

        Those it needs, directly or not, and those that its parents need; a compensation sees what
        the step it undoes saw, and that step itself.
        """
        if seq in self.undone:
            undone = self.undone[seq]
            return self._before(undone) | 1 << undone | self._around(undone)
        return self._before(seq) | self._around(seq)

    def _around(self, seq: int) -> int:
        bits = 0
        while seq in self.parents:
            seq = self.parents[seq]
            bits |= self._before(seq)
        return bits

    def _before(self, seq: int) -> int:
        """Return what a step needs; without recursion, for chains are long."""
        ahead = [seq]
        while ahead:
            here = ahead[-1]
            if here in self.before:
                ahead.pop()
                continue
            needs = self.needs.get(here, ())
            unknown = [need for need in needs if need not in self.before]
            if unknown:
                ahead += unknown
                continue
            bits = 0
            for need in needs:
                bits |= self.before[need] | 1 << need
            self.before[here] = bits
            ahead.pop()
        return self.before[seq]

    def learn_output(self, seq: int, output: str | None) -> None:
        """Remember a step's output."""
        if not self.known >> seq & 1:
            self.known |= 1 << seq
            self.outputs[seq] = output
            self.size += len(output or "")


class Outputs(Mapping[str, Any]):
    """Outputs of the steps that a step sees, by key; each is decoded when it is looked at."""

    def __init__(self, memory: RunMemory, bits: int) -> None:
        """Show those steps of a run whose bits are set."""
        self._memory = memory
        self._bits = bits

    def __getitem__(self, key: str) -> Any:
        seq = self._memory.numbers.get(key)
        if seq is None or not self._bits >> seq & 1:
            raise KeyError(key)
        text = self._memory.outputs[seq]
        return None if text is None else msgspec.json.decode(text)

    def __iter__(self) -> Iterator[str]:
        return (self._memory.keys[seq] for seq in numbers_of(self._bits))

    def __len__(self) -> int:
        return self._bits.bit_count()


def numbers_of(bits: int) -> Iterator[int]:
    """Yield the positions of the bits that are set, from the lowest."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


class Memories:
    """The runs that a worker remembers, the least lately used forgotten first."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._runs: OrderedDict[UUID, RunMemory] = OrderedDict()
        self._size = 0

    def find(self, run_id: UUID) -> RunMemory | None:
        """Return what is known of a run, or None."""
        memory = self._runs.get(run_id)
        if memory is not None:
            self._runs.move_to_end(run_id)
        return memory

    def learn(self, heads: Mapping[UUID, RunHead]) -> None:
        """Remember what calls of runs are told."""
        for run_id, head in heads.items():
            self._runs[run_id] = RunMemory(head)

    def unknown(self, run_ids: Iterable[UUID]) -> list[UUID]:
        """Return the runs of which nothing is known."""
        return [each for each in dict.fromkeys(run_ids) if each not in self._runs]

    def forget(self, run_ids: Iterable[UUID]) -> None:
        """Forget runs that are over or were changed by hand."""
        for run_id in run_ids:
            self._runs.pop(run_id, None)

    def trim(self) -> None:
        """Forget the least lately used until it is little enough."""
        size = sum(memory.size for memory in self._runs.values())
        while len(self._runs) > KEPT_RUNS or (size > KEPT_BYTES and len(self._runs) > 1):
            _, memory = self._runs.popitem(last=False)
            size -= memory.size


def learn_graph(
    memory: RunMemory, rows: Sequence[tuple[int, int, int, tuple[int, ...], str]]
) -> None:
    """Remember the steps of a run as they stand now."""
    memory.before.clear()
    for seq, parent, undo_of, needs, key in rows:
        memory.learn_step(seq, parent, undo_of, needs, key)


def is_known(memory: RunMemory, step: Step) -> bool:
    """Return whether a step's place in its run is remembered."""
    return step.seq in memory.needs
