"""The local backend: verbs of the contract on attempt folders, supervisors and this machine.

Keeps nothing in memory that the folders do not say: a new object on the same home goes on where
the last one ended. Never waits for a job: a verb returns when it has been recorded.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from gpuplane import __version__
from gpuplane.backends.interface import (
    AttemptPlan,
    AttemptRef,
    BackendError,
    LogChunk,
    Observation,
    Probe,
    ReplicaObservation,
    Stream,
    Tombstoned,
)
from gpuplane.backends.local import folders, machine
from gpuplane.backends.local.folders import AttemptFolder
from gpuplane.backends.local.launching import launch
from gpuplane.backends.local.logs import ReplicaReader, merge_ranks, read_stream
from gpuplane.backends.local.observing import AttemptView, observe_attempt
from gpuplane.backends.local.plans import check_plan, compute_payload
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.backends.local.supervisor import records
from gpuplane.backends.local.watching import (
    IN_CLOSE_WRITE,
    IN_CREATE,
    IN_MODIFY,
    IN_MOVED_TO,
    Watcher,
)
from gpuplane.core.reasons import Word
from gpuplane.kit.clock import Clock
from gpuplane.kit.failpoints import failpoint

_FOLLOW_S = 5.0
"""How often a follower asks whether the attempt is over when nothing is written: a supervisor
and guard killed together write no last record."""


class LocalBackend:
    """This machine as a cluster of one node.

    Args:
        home: The product's home; attempts, volumes and checkpoints lie below it.
        clock: Tells when something was observed; a supervisor has its own clock.
        settings: Limits and habits.
    """

    kind = "local"

    def __init__(self, home: Path, clock: Clock, settings: LocalSettings | None = None) -> None:
        self.home = home
        self.root = home / "local"
        self.settings = settings or LocalSettings()
        self._clock = clock
        for name in (folders.ATTEMPTS, folders.CHANGES):
            (self.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        folders.clean_up(self.root, self.settings.forgotten_s, clock.now_ms() / 1000)
        self._boot_id = machine.boot_id()
        self._over: dict[AttemptFolder, AttemptView] = {}
        self._watcher = Watcher()
        self._changes = self._watcher.watch((self.root / folders.CHANGES, IN_CLOSE_WRITE))

    def close(self) -> None:
        """Let go of the machine; what runs goes on."""
        self._watcher.close()

    async def probe(self) -> Probe:
        """Return what this machine promises; see `Backend`."""
        return Probe(reachable=True, kind=self.kind, version=__version__, notes=())

    async def observe(self) -> Observation:
        """Return this machine and every attempt not yet forgotten; see `Backend`."""
        return await asyncio.to_thread(self._observe)

    async def ensure_workload(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        """Start the attempt unless it was started already or was evicted; see `Backend`."""
        check_plan(plan, secrets)
        await asyncio.to_thread(self._ensure, plan, secrets)

    async def evict(self, ref: AttemptRef, grace_s: float, reason: str) -> None:
        """Stop an attempt, or forbid its start; see `Backend`."""
        await asyncio.to_thread(self._evict, ref, grace_s, reason)

    async def forget(self, ref: AttemptRef) -> None:
        """Drop what is kept of an attempt that is over; see `Backend`."""
        await asyncio.to_thread(self._forget, ref)

    async def wait_changed(self, timeout_s: float) -> None:
        """Return when a supervisor wrote something new, or after timeout_s; see `Backend`."""
        await self._changes.changed(timeout_s)

    async def read_logs(
        self, ref: AttemptRef, rank: int, stream: Stream, offset: int, limit_bytes: int
    ) -> LogChunk:
        """Return a run of bytes of one stream; see `ReadsLogs`."""
        folder = self._kept(ref).replica(rank) / "log"
        data = await asyncio.to_thread(read_stream, folder, stream, offset, limit_bytes)
        return LogChunk(rank, stream, offset, data)

    async def follow_logs(
        self, ref: AttemptRef, ranks: Sequence[int], stdout_offset: int, stderr_offset: int
    ) -> AsyncIterator[LogChunk]:
        """Yield output as it is written until the attempt is over; see `ReadsLogs`."""
        folder = self._kept(ref)
        readers = []
        for rank in ranks:
            log = folder.replica(rank) / "log"
            log.mkdir(mode=0o700, parents=True, exist_ok=True)
            readers.append(ReplicaReader(log, rank, stdout_offset, stderr_offset))
        for reader in readers:
            reader.check()
        watch = self._watcher.watch(
            *((reader.folder, IN_MODIFY | IN_CREATE) for reader in readers),
            (folder.path, IN_MOVED_TO | IN_CREATE),
        )
        try:
            while True:
                is_over = await asyncio.to_thread(self._is_over, folder)
                chunks = merge_ranks([reader.read_new() for reader in readers])
                for chunk in chunks:
                    yield chunk
                if is_over and not chunks:
                    return
                if not chunks:
                    await watch.changed(_FOLLOW_S)
        finally:
            watch.close()

    def _observe(self) -> Observation:
        now_ms = self._clock.now_ms()
        replicas: list[ReplicaObservation] = []
        for folder in folders.list_attempts(self.root):
            view = self._view(folder)
            if view is not None:
                replicas += view.replicas
        node = machine.observe_machine(self.home, self.settings.node_name, (), None, "")
        return Observation(1, now_ms, (node,), tuple(replicas))

    def _view(self, folder: AttemptFolder) -> AttemptView | None:
        return observe_attempt(
            folder, self._clock.now_ms(), self._boot_id, self.settings.max_report_bytes
        )

    def _is_over(self, folder: AttemptFolder) -> bool:
        view = self._view(folder)
        return view is not None and view.is_over

    def _ensure(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        folder = self._folder(plan.ref)
        if folder.was_forgotten():
            raise Tombstoned(Word.CANCELLED, "the attempt is over and was forgotten")
        folder.accept(plan.ref)
        fate = folder.fate()
        if fate is not None:
            if fate.get("fate") == records.NEVER:
                raise Tombstoned(Word.CANCELLED, "the attempt was evicted before it started")
            return
        failpoint("local.ensure.accepted")
        known = {"format": records.FORMAT, "ranks": [r.rank for r in plan.replicas]}
        records.write_record(str(folder.path / records.PLAN), known)
        for replica in plan.replicas:
            for name in ("work", "log", "tmp", "report"):
                path = folder.replica(replica.rank) / name
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        payload = compute_payload(plan, secrets, folder, self.settings, "", {}, None)
        launch(payload, folder.path, None, self.settings.start_timeout_s)
        failpoint("local.ensure.claimed")

    def _evict(self, ref: AttemptRef, grace_s: float, reason: str) -> None:
        folder = self._folder(ref)
        if folder.was_forgotten():
            return
        folder.accept(ref)
        # Written first: a supervisor that wins the claim below reads it before it starts a thing.
        text = f"{max(0, int(grace_s * 1000))} {reason}\n"
        records.write_whole(str(folder.path / records.STOP), text)
        failpoint("local.evict.recorded")
        if folder.forbid_start(reason, self._clock.now_ms()):
            folder.changes.touch()
            return
        folder.command("stop")

    def _forget(self, ref: AttemptRef) -> None:
        folder = self._folder(ref)
        if not folder.exists():
            return
        folder.accept(ref)
        view = self._view(folder)
        if view is not None and not view.is_over:
            raise BackendError(Word.SUPERVISOR_LOST, "an attempt that still runs is not forgotten")
        folder.forget()

    def _folder(self, ref: AttemptRef) -> AttemptFolder:
        return AttemptFolder(self.root, ref.attempt_id)

    def _kept(self, ref: AttemptRef) -> AttemptFolder:
        folder = self._folder(ref)
        if not folder.exists():
            text = f"nothing is kept of attempt {ref.attempt_id}"
            raise BackendError("NothingKept", text)
        return folder
