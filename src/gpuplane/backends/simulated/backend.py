"""The simulated backend: the contract of `backends.interface` over a described fleet.

Never executes a command. Owns the verbs and their fencing; the course of an attempt is
arithmetic (`timeline`), what must survive is in the `journal`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpuplane import __version__
from gpuplane.backends.interface import (
    AttemptPlan,
    AttemptRef,
    BackendError,
    LogChunk,
    MigOrder,
    Observation,
    Probe,
    ReplicaChanges,
    StaleEpoch,
    Stream,
    Tombstoned,
)
from gpuplane.backends.simulated.attempts import AttemptTable, Entry
from gpuplane.backends.simulated.cutting import mig_device_name
from gpuplane.backends.simulated.fleet import Fleet, compute_chance
from gpuplane.backends.simulated.fleet_clock import FleetClock
from gpuplane.backends.simulated.inventory import Inventory
from gpuplane.backends.simulated.journal import Journal
from gpuplane.backends.simulated.logs import (
    Line,
    compute_lines,
    compute_written,
    merge_chunks,
)
from gpuplane.backends.simulated.timeline import (
    LABEL,
    AttemptRecord,
    ReplicaRecord,
    course_of,
    parse_checkpoint_ms,
)
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobType, RestartPolicy, SimulatedBehaviour
from gpuplane.kit.clock import Clock
from gpuplane.kit.ids import new_id

MAX_LOG_READ_BYTES = 16 * 1024 * 1024
"""Most bytes of one read, whatever was asked."""
NOTHING_KEPT = "NothingKept"
"""The word of a question about an attempt, a rank or a file that is not there."""


class SimulatedBackend:
    """A fleet that exists only as arithmetic.

    Args:
        fleet: What there is.
        clock: Where time comes from.
        seed: With an attempt's id it decides the attempt's delays.
        state_path: A SQLite file of its own; with it attempts outlive the control plane.
        speed: Fleet seconds per second of the clock. 1 under `up`; `simulate` and tests pass
            `fleet.speed` or their own.

    Raises:
        BackendError: If the state file cannot be used or belongs to another fleet.
    """

    kind = "simulated"

    def __init__(
        self, fleet: Fleet, clock: Clock, *, seed: int, state_path: Path, speed: float = 1.0
    ) -> None:
        self.fleet = fleet
        self._wall = clock
        self._seed = seed
        self._journal = Journal(state_path, fleet.name, clock.now_ms())
        records = self._journal.load_attempts(clock.now_ms())
        self._clock = FleetClock(
            clock,
            speed=speed,
            born_ms=self._journal.born_ms,
            last_ms=self._journal.load_last_ms(),
            steps=self._journal.load_steps(),
            on_step=self._journal.note_step,
        )
        now = self._clock.now()
        self._inventory = Inventory(fleet, now, self._journal.load_cuts())
        self._table = AttemptTable(
            self._inventory.failures, self._inventory.gpu_index, self._clock.to_instant
        )
        self._incarnation = new_id().hex
        self._told = (-1, -1)
        self._waiting: set[asyncio.Event] = set()
        self._journal.delete_old_tombstones(clock.now_ms())
        for record in records:
            self._table.put(self._checked(record, now), now)

    def close(self) -> None:
        """Release the state file; attempts go on by the clock and are found at the next start."""
        self._journal.close()

    async def probe(self) -> Probe:
        """Return that the fleet is there, and that it is simulated."""
        notes = ["This cluster is simulated: no command is executed and no GPU is used."]
        if self.fleet.speed != 1.0:
            notes.append(
                f"The fleet file asks for speed {self.fleet.speed:g}; a control plane that is up"
                " lives in wall time, other speeds are for simulate and tests."
            )
        return Probe(True, self.kind, __version__, simulated=True, notes=tuple(notes))

    async def observe(self) -> Observation:
        """Return all nodes and every replica not yet forgotten."""
        at = self._catch_up()
        return Observation(
            generation=self._inventory.generation,
            observed_at=self._clock.to_instant(at),
            nodes=self._inventory.nodes,
            replicas=tuple(self._table.observe(at)),
        )

    async def observe_replicas_since(self, cursor: str) -> ReplicaChanges:
        """Return the replicas that changed since the cursor."""
        at = self._catch_up()
        incarnation, _, position = cursor.partition(":")
        since = int(position) if incarnation == self._incarnation and position.isdigit() else -1
        return ReplicaChanges(
            cursor=f"{self._incarnation}:{self._table.position}",
            generation=self._inventory.generation,
            observed_at=self._clock.to_instant(at),
            replicas=tuple(self._table.observe_since(since, at)),
        )

    async def ensure_workload(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        """Start the attempt unless it was started already or was evicted."""
        at = self._catch_up()
        attempt_id = str(plan.ref.attempt_id)
        known = self._find(plan.ref, at)
        if known is not None and not known.record.forbidden:
            return
        if known is not None or self._journal.has_tombstone(attempt_id):
            raise Tombstoned(
                Word.CANCELLED, f"attempt {attempt_id} was evicted or forgotten; it may not start"
            )
        if not plan.replicas:
            raise BackendError(Word.START_FAILED, f"attempt {attempt_id} has no replica")
        for replica in plan.replicas:
            self._inventory.check_place(replica, at)
            self._table.check_devices(replica)
        self._put(self._draw(plan, at), at)

    async def scale(self, plan: AttemptPlan, secrets: dict[str, str], grace_s: float) -> None:
        """Have a started attempt run exactly the replicas of the plan; see `Scales`."""
        at = self._catch_up()
        entry = self._find(plan.ref, at)
        if entry is None or entry.record.forbidden or entry.record.stop_at is not None:
            raise Tombstoned(
                Word.CANCELLED, f"attempt {plan.ref.attempt_id} was evicted or is not known"
            )
        record = entry.record
        if plan.scale_number <= record.scale_number:
            return
        known = {replica.rank: replica for replica in record.replicas}
        wanted = {replica.rank for replica in plan.replicas}
        added = [replica for replica in plan.replicas if replica.rank not in known]
        for replica in added:
            self._inventory.check_place(replica, at)
            self._table.check_devices(replica)
        over = {r.rank for r, end in zip(record.replicas, entry.moments, strict=True) if end.ending}
        kept = [
            replica if replica.rank in wanted else _leaving(replica, at, grace_s)
            for replica in record.replicas
            if replica.rank in wanted or replica.rank not in over or replica.rank in plan.leaving
        ]
        running_at = at + record.startup_ms
        new = [
            ReplicaRecord(r.rank, r.node_name, r.gpu_ids, r.gpu_milli, r.mig_device, at, running_at)
            for r in added
        ]
        replicas = tuple(sorted((*kept, *new), key=lambda each: each.rank))
        self._put(replace(record, replicas=replicas, scale_number=plan.scale_number), at)

    async def repartition(self, order: MigOrder) -> None:
        """Destroy and create MIG instances of one GPU; again does nothing."""
        at = self._catch_up()
        cut = self._inventory.plan_cut(order, at)
        if cut is None:
            return
        holder = self._table.find_mig_holder(
            order.gpu_id, [mig_device_name(order.gpu_id, one) for one in order.destroy]
        )
        if holder is not None and order.destroy:
            message = f"{LABEL} attempt {holder} holds an instance that was to be destroyed"
            raise BackendError(Word.MIG_UNAVAILABLE, message)
        self._journal.store_cut(cut)
        self._inventory.put_cut(cut, at)
        for event in self._waiting:
            event.set()

    async def evict(self, ref: AttemptRef, grace_s: float, reason: str) -> None:
        """Ask an attempt to stop: SIGTERM, SIGKILL after grace_s; a late start is forbidden."""
        at = self._catch_up()
        entry = self._find(ref, at)
        if entry is None:
            self._forbid(ref, reason, at)
            return
        if entry.is_over and entry.record.replicas:
            return  # one without replicas is told too: none may be added any more
        record = entry.record
        kill_at = at + max(0, round(grace_s * 1000))
        if record.stop_at is None:
            self._put(replace(record, stop_at=at, kill_at=kill_at, stop_reason=reason), at)
        elif record.kill_at is not None and kill_at < record.kill_at:
            self._put(replace(record, kill_at=kill_at), at)

    async def forget(self, ref: AttemptRef) -> None:
        """Drop what is kept of an attempt that is over; logs too."""
        at = self._catch_up()
        entry = self._find(ref, at)
        if entry is None:
            return
        if not entry.is_over:
            raise BackendError(
                "StillRunning", f"attempt {ref.attempt_id} is not over; evict it first"
            )
        self._journal.store_tombstone(str(ref.attempt_id), self._wall.now_ms())
        self._journal.delete_attempt(str(ref.attempt_id))
        self._table.remove(str(ref.attempt_id))

    async def wait_changed(self, timeout_s: float) -> None:
        """Return when something changed since the last return, or after timeout_s.

        One watcher a backend: two would take each other's changes.
        """
        until = self._wall.monotonic() + timeout_s
        while True:
            self._catch_up()
            now = (self._table.position, self._inventory.generation)
            if self._told != now:
                self._told = now
                return
            left_s = until - self._wall.monotonic()
            if left_s <= 0:
                return
            events = _first(self._table.next_event, self._inventory.next_change)
            await self._sleep(events, left_s)

    async def request_checkpoint(self, ref: AttemptRef) -> None:
        """Let the workload write a checkpoint now, if it writes any and is running."""
        at = self._catch_up()
        entry = self._get(ref, at)
        record = entry.record
        if record.checkpoints and not entry.is_over and at >= record.running_at:
            self._put(replace(record, checkpoint_requests=(at,)), at)

    async def read_logs(
        self, ref: AttemptRef, rank: int, stream: Stream, offset: int, limit_bytes: int
    ) -> LogChunk:
        """Return at most limit_bytes from offset; empty data at the end of what there is."""
        at = self._catch_up()
        if offset < 0:
            raise BackendError("OffsetInvalid", f"the offset {offset} is negative")
        written = compute_written(self._lines(self._get(ref, at), rank, stream), at)
        data = b"".join(line.data for line in written)
        told = self._clock.to_instant(written[-1].at) if written else None
        end = offset + max(0, min(limit_bytes, MAX_LOG_READ_BYTES))
        return LogChunk(rank, stream, offset, data[offset:end], told)

    async def follow_logs(
        self, ref: AttemptRef, ranks: Sequence[int], stdout_offset: int, stderr_offset: int
    ) -> AsyncIterator[LogChunk]:
        """Yield output as it is written, in order, and end when the attempt is over."""
        offsets = {(rank, Stream.STDOUT): stdout_offset for rank in ranks}
        offsets |= {(rank, Stream.STDERR): stderr_offset for rank in ranks}
        while True:
            at = self._catch_up()
            entry = self._get(ref, at)
            written = {
                (rank, stream): compute_written(self._lines(entry, rank, stream), at)
                for rank, stream in offsets
            }
            for chunk in merge_chunks(written, offsets, self._clock.to_instant):
                offsets[chunk.rank, chunk.stream] = chunk.offset + len(chunk.data)
                yield chunk
            if entry.is_over:
                return
            due = [entry.next_at]
            for rank, stream in offsets:
                lines = self._lines(entry, rank, stream)
                due.append(next((line.at for line in lines if line.at > at), None))
            await self._sleep(_first(*due), None)

    async def list_artifacts(self, ref: AttemptRef) -> tuple[tuple[str, int], ...]:
        """Return the artifacts that the job names, each a short text that says `simulated`."""
        entry = self._get(ref, self._catch_up())
        if not entry.is_over or any(m.ending and m.ending.exit_code != 0 for m in entry.moments):
            return ()
        return tuple((name, len(_artifact(entry, name))) for name in entry.record.artifacts)

    async def read_artifact(
        self, ref: AttemptRef, path: str, offset: int, limit_bytes: int
    ) -> bytes:
        """Return a run of bytes of one artifact."""
        entry = self._get(ref, self._catch_up())
        if path not in dict(await self.list_artifacts(ref)):
            raise BackendError(NOTHING_KEPT, f"the attempt has no artifact {path!r}")
        return _artifact(entry, path)[max(0, offset) : max(0, offset) + max(0, limit_bytes)]

    def _catch_up(self) -> int:
        """Bring nodes and attempts to the present and return the fleet time."""
        at = self._clock.now()
        before = self._table.position
        self._inventory.refresh(at)
        self._table.advance(at)
        if self._table.position != before:
            # Before it is told: a clock set back while we are away must not undo what was seen.
            self._journal.note_last_ms(at)
        return at

    def _find(self, ref: AttemptRef, at: int) -> Entry | None:
        """Return the attempt of a reference, fenced: an older epoch is refused, a newer adopted."""
        entry = self._table.find(str(ref.attempt_id))
        if entry is None:
            return None
        if ref.epoch < entry.record.epoch:
            raise StaleEpoch(
                Word.CANCELLED,
                f"epoch {ref.epoch} of attempt {ref.attempt_id} is older than {entry.record.epoch}",
            )
        if ref.epoch > entry.record.epoch:
            self._put(replace(entry.record, epoch=ref.epoch), at)
        return self._table.find(str(ref.attempt_id))

    def _get(self, ref: AttemptRef, at: int) -> Entry:
        entry = self._find(ref, at)
        if entry is None:
            raise BackendError(NOTHING_KEPT, f"nothing is kept of attempt {ref.attempt_id}")
        return entry

    def _put(self, record: AttemptRecord, at: int) -> None:
        """Write the record, then let it take effect."""
        self._journal.store_attempt(record, at)
        self._table.put(record, at)
        for event in self._waiting:
            event.set()

    def _forbid(self, ref: AttemptRef, reason: str, at: int) -> None:
        """Remember an attempt that was evicted before it was started; its ranks are unknown."""
        attempt_id = str(ref.attempt_id)
        if not self._journal.has_tombstone(attempt_id):
            record = AttemptRecord(
                attempt_id=attempt_id,
                epoch=ref.epoch,
                job_name="",
                replicas=(ReplicaRecord(rank=0, node=""),),
                accepted_at=at,
                running_at=at,
                work_ms=0,
                stop_reason=reason,
                forbidden=True,
            )
            self._put(record, at)

    def _checked(self, record: AttemptRecord, at: int) -> AttemptRecord:
        """Return a loaded record, lost if the fleet has no longer one of its nodes."""
        if (
            record.lost_at is None
            and not record.forbidden
            and not all(self._inventory.has_node(replica.node) for replica in record.replicas)
        ):
            record = replace(record, lost_at=at)
            self._journal.store_attempt(record, at)
        return record

    def _draw(self, plan: AttemptPlan, at: int) -> AttemptRecord:
        """Return the record of a new attempt, its chances drawn from the seed and its id."""
        attempt_id = str(plan.ref.attempt_id)
        execution, service = plan.execution, plan.job_type is JobType.SERVICE
        behaviour = execution.simulated or SimulatedBehaviour()
        endless = service and execution.simulated is None
        start_ms = self.fleet.start_delay.compute_ms(
            compute_chance(self._seed, attempt_id, "start")
        )
        max_s = plan.max_duration_s
        startup_ms = start_ms + max(0, round(behaviour.startup_s * 1000))
        return AttemptRecord(
            attempt_id=attempt_id,
            epoch=plan.ref.epoch,
            job_name=plan.job_name,
            replicas=tuple(
                ReplicaRecord(r.rank, r.node_name, r.gpu_ids, r.gpu_milli, r.mig_device)
                for r in plan.replicas
            ),
            accepted_at=at,
            running_at=at + startup_ms,
            startup_ms=startup_ms,
            work_ms=None if endless else max(0, round(behaviour.duration_s * 1000)),
            done_ms=parse_checkpoint_ms(plan.resume_from),
            exit_code=behaviour.exit_code,
            log=behaviour.log,
            has_health=execution.health is not None,
            port=execution.port,
            ends_together=not service,
            restarts=execution.restart is RestartPolicy.ALWAYS
            or (execution.restart is RestartPolicy.ON_FAILURE and behaviour.exit_code != 0),
            stop_delay_ms=self.fleet.stop_delay.compute_ms(
                compute_chance(self._seed, attempt_id, "stop")
            ),
            max_duration_ms=None if max_s is None else max_s * 1000,
            grace_ms=execution.grace_s * 1000,
            checkpoints=bool(plan.checkpoint_path) or behaviour.checkpoint_every_s > 0,
            checkpoint_every_ms=max(0, round(behaviour.checkpoint_every_s * 1000)),
            checkpoint_path=plan.checkpoint_path,
            outputs=behaviour.outputs,
            gpu_memory_mib=behaviour.gpu_memory_mib,
            gpu_utilization=behaviour.gpu_utilization,
            artifacts=tuple(name for name in execution.artifacts if _is_plain(name)),
        )

    def _lines(self, entry: Entry, rank: int, stream: Stream) -> Iterator[Line]:
        """Return the lines of a stream of a replica, those to come too."""
        for position, replica in enumerate(entry.record.replicas):
            if replica.rank == rank:
                return compute_lines(
                    course_of(entry.record, replica),
                    position,
                    entry.endings[position],
                    stream,
                    self._clock.to_instant,
                )
        raise BackendError(NOTHING_KEPT, f"the attempt has no rank {rank}")

    async def _sleep(self, until: int | None, at_most_s: float | None) -> None:
        """Return at a fleet instant, after so many seconds, or when a verb changed something."""
        poked = asyncio.Event()
        self._waiting.add(poked)
        tasks: list[asyncio.Task[None]] = [asyncio.ensure_future(_poked(poked))]
        seconds = [] if at_most_s is None else [at_most_s]
        if until is not None:
            seconds.append(self._clock.seconds_until(until))
        if seconds:
            tasks.append(asyncio.ensure_future(_slept(self._wall, min(seconds))))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(poked)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _leaving(replica: ReplicaRecord, at: int, grace_s: float) -> ReplicaRecord:
    """Return a replica that is asked to stop because fewer are wanted."""
    if replica.stop_at is not None:
        return replica
    return replace(replica, stop_at=at, kill_at=at + max(0, round(grace_s * 1000)))


def _first(*instants: int | None) -> int | None:
    """Return the earliest of the instants that there are."""
    return min((at for at in instants if at is not None), default=None)


async def _poked(event: asyncio.Event) -> None:
    await event.wait()


async def _slept(clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)


def _is_plain(name: str) -> bool:
    """Return whether an artifact's name is one file below the job's directory."""
    parts = name.split("/")
    return bool(name) and ".." not in parts and "" not in parts and not set(name) & set("*?[")


def _artifact(entry: Entry, name: str) -> bytes:
    return f"{LABEL} {name} of job {entry.record.job_name}; no command was executed\n".encode()
