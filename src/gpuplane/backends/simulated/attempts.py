"""The attempts that are not forgotten: their next events, what they hold, what changed.

Owns the table in memory, rebuilt from the journal after a restart. It advances from event to
event, so attempts between two events cost nothing.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from gpuplane.backends.interface import (
    AttemptRef,
    BackendError,
    Phase,
    ReplicaObservation,
    ReplicaPlan,
)
from gpuplane.backends.simulated.fleet import Failure
from gpuplane.backends.simulated.timeline import (
    LABEL,
    AttemptRecord,
    Ending,
    Moment,
    ReplicaRecord,
    compute_moment,
    compute_progress,
    course_of,
    find_next_change,
    plan_endings,
)
from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.ids import AttemptId
from gpuplane.core.reasons import Word

OVER = (Phase.EXITED, Phase.LOST)


@dataclass(slots=True)
class Entry:
    """One attempt in memory: its record, how it ends, and its state at the last event.

    `seen` keeps the observation of each replica since then; `holds` whether it has its devices.
    """

    record: AttemptRecord
    ref: AttemptRef
    endings: tuple[Ending | None, ...]
    next_at: int | None = None
    moments: list[Moment] = field(default_factory=list)
    holds: list[bool] = field(default_factory=list)
    seen: list[ReplicaObservation] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Return whether every replica is over."""
        return all(moment.phase in OVER for moment in self.moments)


class AttemptTable:
    """All attempts of the fleet.

    Args:
        failures: The fleet's failures by node name.
        gpu_index: Index on its node of every GPU of the fleet.
        to_instant: Translates fleet time to milliseconds since the epoch.
    """

    def __init__(
        self,
        failures: dict[str, Sequence[Failure]],
        gpu_index: dict[str, int],
        to_instant: Callable[[int], int],
    ) -> None:
        self._failures = failures
        self._gpu_index = gpu_index
        self._to_instant = to_instant
        self._entries: dict[str, Entry] = {}
        self._events: list[tuple[int, str]] = []
        self._changes: dict[tuple[str, int], int] = {}
        self._held: dict[str, dict[tuple[str, int], tuple[int, str | None]]] = {}
        self.position = 0

    def find(self, attempt_id: str) -> Entry | None:
        """Return the attempt, or None if it is unknown or forgotten."""
        return self._entries.get(attempt_id)

    def put(self, record: AttemptRecord, at: int) -> None:
        """Add an attempt, or replace what is known of it."""
        old = self._entries.get(record.attempt_id)
        ref = AttemptRef(AttemptId(UUID(record.attempt_id)), record.epoch)
        entry = Entry(record, ref, plan_endings(record, self._failures, self._gpu_index))
        held = {} if old is None else _by_rank(old)
        entry.holds = [held.get(replica.rank, True) for replica in record.replicas]
        for replica in record.replicas:
            if replica.rank not in held:
                self._hold(record.attempt_id, replica)
        for rank in held.keys() - {replica.rank for replica in record.replicas}:
            self._changes.pop((record.attempt_id, rank), None)
        self._entries[record.attempt_id] = entry
        self._settle(entry, at, mark_all=True)

    def remove(self, attempt_id: str) -> None:
        """Drop an attempt that is over."""
        entry = self._entries.pop(attempt_id)
        for replica in entry.record.replicas:
            self._changes.pop((attempt_id, replica.rank), None)

    def advance(self, at: int) -> None:
        """Bring every attempt up to this fleet instant."""
        while self._events and self._events[0][0] <= at:
            due_at, attempt_id = heapq.heappop(self._events)
            entry = self._entries.get(attempt_id)
            if entry is not None and entry.next_at == due_at:
                self._settle(entry, at, mark_all=False)

    @property
    def next_event(self) -> int | None:
        """Return the fleet time of the next event, or None."""
        return self._events[0][0] if self._events else None

    def check_devices(self, plan: ReplicaPlan) -> None:
        """Refuse devices that another attempt still holds.

        Raises:
            BackendError: If a device would be held twice.
        """
        for gpu_id in plan.gpu_ids:
            holders = self._held.get(gpu_id, {})
            if plan.mig_device is not None:
                clash = [a for a, (_, mig) in holders.items() if mig in (None, plan.mig_device)]
            else:
                free_milli = WHOLE_GPU_MILLI - sum(milli for milli, _ in holders.values())
                whole = any(mig is not None for _, mig in holders.values())
                clash = list(holders) if whole or plan.gpu_milli > free_milli else []
            if clash:
                message = f"{LABEL} GPU {gpu_id} is still held by attempt {clash[0][0]}"
                raise BackendError(Word.START_FAILED, message)

    def find_mig_holder(self, gpu_id: str, devices: Collection[str]) -> str | None:
        """Return an attempt that holds one of these MIG devices of a GPU, or None."""
        for (attempt_id, _), (_, mig_device) in self._held.get(gpu_id, {}).items():
            if mig_device is None or mig_device in devices:
                return attempt_id
        return None

    def observe(self, at: int) -> Iterator[ReplicaObservation]:
        """Yield what is seen of every replica at this fleet instant."""
        for entry in self._entries.values():
            for position in range(len(entry.seen)):
                yield _refreshed(entry, position, at)

    def observe_since(self, position: int, at: int) -> list[ReplicaObservation]:
        """Return the replicas that changed after a position, in the order of the changes."""
        changed = []
        for key in reversed(self._changes):
            if self._changes[key] <= position:
                break
            changed.append(key)
        return [self._observe_key(attempt_id, rank, at) for attempt_id, rank in reversed(changed)]

    def _observe_key(self, attempt_id: str, rank: int, at: int) -> ReplicaObservation:
        entry = self._entries[attempt_id]
        ranks = [replica.rank for replica in entry.record.replicas]
        return _refreshed(entry, ranks.index(rank), at)

    def _settle(self, entry: Entry, at: int, *, mark_all: bool) -> None:
        """Compute the state at an instant, note what changed, plan the next event."""
        record = entry.record
        before = entry.moments
        entry.moments = [
            compute_moment(course_of(record, replica), ending, at)
            for replica, ending in zip(record.replicas, entry.endings, strict=True)
        ]
        entry.seen = [self._observe(entry, position) for position in range(len(entry.moments))]
        for position, moment in enumerate(entry.moments):
            replica = record.replicas[position]
            if mark_all or _differs(before[position], moment):
                self.position += 1
                key = (record.attempt_id, replica.rank)
                self._changes.pop(key, None)
                self._changes[key] = self.position
            if moment.phase in OVER and entry.holds[position]:
                entry.holds[position] = False
                for gpu_id in replica.gpu_ids:
                    self._release(gpu_id, record.attempt_id, replica.rank)
        entry.next_at = find_next_change(record, entry.endings, at)
        if entry.next_at is not None:
            heapq.heappush(self._events, (entry.next_at, record.attempt_id))

    def _hold(self, attempt_id: str, replica: ReplicaRecord) -> None:
        for gpu_id in replica.gpu_ids:
            held = self._held.setdefault(gpu_id, {})
            held[attempt_id, replica.rank] = (replica.gpu_milli, replica.mig_device)

    def _release(self, gpu_id: str, attempt_id: str, rank: int) -> None:
        held = self._held.get(gpu_id, {})
        held.pop((attempt_id, rank), None)
        if not held:
            self._held.pop(gpu_id, None)

    def _observe(self, entry: Entry, position: int) -> ReplicaObservation:
        record, moment = entry.record, entry.moments[position]
        ending, told = moment.ending, self._to_instant
        rank = record.replicas[position].rank
        succeeded = ending is not None and ending.exit_code == 0
        memory_mib, busy_permille = _measured(record, position, moment)
        port = record.port or None if moment.phase is Phase.RUNNING else None
        return ReplicaObservation(
            ref=entry.ref,
            rank=rank,
            phase=moment.phase,
            started_at=None if moment.started_at is None else told(moment.started_at),
            ended_at=None if ending is None else told(ending.at),
            exit_code=None if ending is None else ending.exit_code,
            signal=None if ending is None else ending.signal,
            reason="" if ending is None else ending.reason,
            message=LABEL if ending is None else ending.message,
            ready=moment.phase is Phase.RUNNING if record.has_health else None,
            # A name that can never be resolved (RFC 2606): nothing listens anywhere.
            url=f"http://{record.attempt_id[-12:]}.simulated.invalid:{port}" if port else None,
            port=port,
            restart_count=moment.restart_count,
            progress_ratio=moment.progress_ratio,
            checkpoint=moment.checkpoint,
            outputs=dict(record.outputs) if succeeded and rank == 0 and record.outputs else None,
            checkpoint_at=None if moment.checkpoint_at is None else told(moment.checkpoint_at),
            gpu_memory_peak_mib=memory_mib,
            gpu_utilization_permille=busy_permille,
            forbids=record.forbidden,
        )


def _by_rank(entry: Entry) -> dict[int, bool]:
    """Return whether each replica of an attempt has its devices, by rank."""
    ranks = [replica.rank for replica in entry.record.replicas]
    return dict(zip(ranks, entry.holds, strict=True))


def _measured(
    record: AttemptRecord, position: int, moment: Moment
) -> tuple[int | None, int | None]:
    """Return peak memory in MiB and mean utilisation in thousandths, as described, once it runs.

    Of shares and MIG instances nothing is measured, as on real nodes.
    """
    replica = record.replicas[position]
    is_whole = replica.gpu_milli == WHOLE_GPU_MILLI and replica.mig_device is None
    if moment.started_at is None or not replica.gpu_ids or not is_whole:
        return None, None
    share = record.gpu_utilization
    return record.gpu_memory_mib, None if share is None else round(share * 1000)


def _refreshed(entry: Entry, position: int, at: int) -> ReplicaObservation:
    """Return what was seen at the last event with the progress of now."""
    seen = entry.seen[position]
    if seen.phase not in (Phase.RUNNING, Phase.STOPPING):
        return seen
    progress = compute_progress(entry.record, at)
    return seen if progress == seen.progress_ratio else replace(seen, progress_ratio=progress)


def _differs(before: Moment, after: Moment) -> bool:
    """Return whether there is news; progress is that only now and then."""
    return (
        before.phase is not after.phase
        or before.restart_count != after.restart_count
        or before.checkpoint_at != after.checkpoint_at
        or before.progress_step != after.progress_step
    )
