"""What a real Kueue did, read from its own log: every scheduling cycle, and dumps of its memory.

Owns the way from log lines to cycles and dumps. Kueue has to write its log with `VERBOSITY`; the
dumps it writes at SIGUSR2 come at any. Reads nothing of the API server, and decides nothing.

Source: kubernetes-sigs/kueue v0.15.0, pkg/scheduler/logging.go (logAdmissionAttemptIfVerbose,
logSnapshotIfVerbose), pkg/cache/scheduler/snapshot.go (Log), pkg/cache/queue/dumper.go (LogDump),
pkg/debugger/debugger.go (DumpAll), pkg/scheduler/preemption/preemption.go (IssuePreemptions).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpuplane.core.quota import GPU

VERBOSITY = 6
"""From here on Kueue writes the snapshot that each cycle decides from."""
CHUNK = 1 << 22
_MARK = b'"msg":"'
_ISSUED = ("Pending the preemption of", "workload(s) failed, will retry")
"""What Kueue says of a head that evicts: done, or refused by the API server because the victim
changed meanwhile; then the same is decided again in the next cycle."""


class _Named(msgspec.Struct):
    name: str


class _Flavor(msgspec.Struct, rename="pascal"):
    name: str
    mode: int


class _Attempt(msgspec.Struct, rename="pascal"):
    flavor: str


class _PodSet(msgspec.Struct, rename="pascal"):
    flavors: dict[str, _Flavor] | None = None
    flavor_assignment_attempts: list[_Attempt] | None = None


class _Assignment(msgspec.Struct, rename="pascal"):
    pod_sets: list[_PodSet] | None = None
    borrowing: int = 0


class _Line(msgspec.Struct, rename="camel"):
    msg: str
    scheduling_cycle: int = 0
    workload: Any = None
    cluster_queue: Any = None
    count: int = 0
    status: str = ""
    reason: str = ""
    nominated_assignment: _Assignment | None = None
    preempted: list[_Named] | None = None
    target_workload: _Named | None = None
    workloads: list[str] | None = None
    pending: list[str] | None = None
    inadmissible: list[str] | None = None


@dataclass(frozen=True)
class Entry:
    """What a cycle decided of the head of one queue.

    Attributes:
        status: `assumed`, `skipped`, or empty for one that waits or has victims evicted.
        mode: 0 where no flavor fits, 1 where somebody has to be evicted, 2 where it fits.
        attempts: The flavors that were tried in this cycle, in order.
        targets: Whom it would evict. `is_issued`: it decided to, and told the API server.
    """

    workload: str
    queue: str
    status: str
    mode: int
    flavor: str
    borrowing: int
    attempts: tuple[str, ...]
    targets: frozenset[str]
    is_issued: bool

    @property
    def acts(self) -> bool:
        """Return whether it changes who holds what."""
        return self.is_issued or self.status == "assumed"


@dataclass
class Cycle:
    """One scheduling cycle.

    Attributes:
        holders: By ClusterQueue who holds quota in the snapshot that it decides from.
        evicted: Those of them that are being evicted already, as far as Kueue's cache knows.
        heads: How many workloads it looks at; as many entries make it whole.
        reasons: By (victim, preemptor) why it is evicted, where that was decided in this cycle.
    """

    number: int
    heads: int = 0
    holders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    evicted: frozenset[str] = frozenset()
    entries: list[Entry] = field(default_factory=list)
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return len(self.entries) >= self.heads


@dataclass
class Dump:
    """What Kueue has in memory: by ClusterQueue who holds, who is in the heap, who is parked."""

    holders: dict[str, frozenset[str]] = field(default_factory=dict)
    active: dict[str, frozenset[str]] = field(default_factory=dict)
    parked: dict[str, frozenset[str]] = field(default_factory=dict)


class Trace:
    """A log that is read as it grows.

    Attributes:
        cycles: Those since `forget`, the last one perhaps not whole.
        evictions: (victim, reason), in the order in which Kueue issued them, since `forget`.
        dumps: How many were read whole. `dump`: the last of them.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._rest = b""
        self._decoder = msgspec.json.Decoder(_Line)
        self._issued: dict[str, int] = {}
        self._seen_evicted: set[str] = set()
        self._updated: dict[str, int] = {}
        self._cycle = Cycle(0)
        self._dumping = Dump()
        self.cycles: list[Cycle] = []
        self.evictions: list[tuple[str, str]] = []
        self.dump = Dump()
        self.dumps = 0

    def close(self) -> None:
        """Read no more."""
        self._file.close()

    def forget(self) -> None:
        """Let go of the cycles and evictions that were read."""
        self.cycles.clear()
        self.evictions.clear()

    @property
    def last_number(self) -> int:
        """Return the number of the newest cycle that was read."""
        return self._cycle.number

    def read(self) -> None:
        """Read what was written since."""
        while data := self._file.read(CHUNK):
            lines = (self._rest + data).split(b"\n")
            self._rest = lines.pop()
            for line in lines:
                at = line.find(_MARK)
                if at < 0:
                    continue
                word = line[at + len(_MARK) : line.find(b'"', at + len(_MARK))]
                take = _TAKE.get(word)
                if take is not None:
                    take(self, self._decoder.decode(line))

    # Lines.

    def _take_heads(self, line: _Line) -> None:
        if line.count:
            self._cycle = Cycle(line.scheduling_cycle, line.count)
            self.cycles.append(self._cycle)

    def _take_queue(self, line: _Line) -> None:
        names = tuple(map(_plain, line.workloads or ()))
        if not line.scheduling_cycle:
            self._dumping.holders[line.cluster_queue["name"]] = frozenset(names)
            return
        cycle = self._cycle
        if not cycle.holders:
            cycle.evicted = frozenset(self._seen_evicted)
        cycle.holders[line.cluster_queue["name"]] = names

    def _take_entry(self, line: _Line) -> None:
        sets = (line.nominated_assignment or _Assignment()).pod_sets or []
        first = sets[0] if sets else _PodSet()
        flavor = (first.flavors or {}).get(GPU)
        attempts = tuple(each.flavor for each in first.flavor_assignment_attempts or ())
        entry = Entry(
            line.workload["name"],
            line.cluster_queue["name"],
            line.status,
            0 if flavor is None else flavor.mode,
            "" if flavor is None else flavor.name,
            (line.nominated_assignment or _Assignment()).borrowing,
            attempts,
            frozenset(each.name for each in line.preempted or ()),
            any(said in line.reason for said in _ISSUED),
        )
        self._cycle.entries.append(entry)
        if entry.status == "assumed":
            self._forget_eviction(entry.workload)

    def _take_counted(self, line: _Line) -> None:
        """Note a head that holds quota already and is not looked at."""
        self._cycle.heads -= 1

    def _take_preempted(self, line: _Line) -> None:
        assert line.target_workload is not None
        victim = line.target_workload.name
        self.evictions.append((victim, line.reason))
        self._cycle.reasons[victim, line.workload["name"]] = line.reason
        self._issued[victim] = line.scheduling_cycle
        # The update may have been seen before this line was written.
        if self._updated.get(victim) == line.scheduling_cycle:
            self._seen_evicted.add(victim)

    def _take_update(self, line: _Line) -> None:
        name = line.workload["name"]
        if line.status == "pending":
            self._forget_eviction(name)
            return
        self._updated[name] = self._cycle.number
        if name in self._issued:
            self._seen_evicted.add(name)

    def _take_delete(self, line: _Line) -> None:
        self._forget_eviction(line.workload["name"])

    def _forget_eviction(self, name: str) -> None:
        self._issued.pop(name, None)
        self._seen_evicted.discard(name)
        self._updated.pop(name, None)

    def _begin_dump(self, line: _Line) -> None:
        self._dumping = Dump()

    def _take_waiting(self, line: _Line) -> None:
        name = line.cluster_queue["name"]
        self._dumping.active[name] = frozenset(map(_plain, line.pending or ()))
        self._dumping.parked[name] = frozenset(map(_plain, line.inadmissible or ()))

    def _end_dump(self, line: _Line) -> None:
        self.dump = self._dumping
        self.dumps += 1


_TAKE = {
    b"Obtained ClusterQueue heads": Trace._take_heads,
    b"Found ClusterQueue": Trace._take_queue,
    b"Workload evaluated for admission": Trace._take_entry,
    b"Workload skipped from admission because it's already accounted in cache, "
    b"and it does not need second pass": Trace._take_counted,
    b"Preempted": Trace._take_preempted,
    b"Workload update event": Trace._take_update,
    b"Workload delete event": Trace._take_delete,
    b"Started dump": Trace._begin_dump,
    b"Found pending and inadmissible workloads in ClusterQueue": Trace._take_waiting,
    b"Ended dump": Trace._end_dump,
}


def _plain(reference: str) -> str:
    """Return the name of a workload that is told with its namespace."""
    return reference.rpartition("/")[2]
