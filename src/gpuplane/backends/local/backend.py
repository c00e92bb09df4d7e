"""The local backend: verbs of the contract on attempt folders, supervisors and this machine.

Keeps nothing in memory that the folders do not say: a new object on the same home goes on where
the last one ended. Never waits for a job: a verb returns when it has been recorded.
"""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuplane import __version__
from gpuplane.backends.interface import (
    AttemptPlan,
    AttemptRef,
    BackendError,
    ExecResult,
    LogChunk,
    Observation,
    Probe,
    ReplicaChanges,
    Stream,
    Tombstoned,
)
from gpuplane.backends.local import artifacts, cgroups, folders, machine
from gpuplane.backends.local.executing import run_command
from gpuplane.backends.local.folders import AttemptFolder, read_json
from gpuplane.backends.local.gpulock import GpuLock
from gpuplane.backends.local.gpus import LocalGpus
from gpuplane.backends.local.inventory import LocalInventory
from gpuplane.backends.local.launching import launch
from gpuplane.backends.local.logs import ReplicaReader, merge_ranks, read_stream
from gpuplane.backends.local.measuring import GpuUse, whole_gpus
from gpuplane.backends.local.plans import check_plan, compute_payload
from gpuplane.backends.local.promises import promise_notes
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.backends.local.supervisor import records
from gpuplane.backends.local.tracking import AttemptTracker
from gpuplane.backends.local.watching import (
    IN_CLOSE_WRITE,
    IN_CREATE,
    IN_MODIFY,
    IN_MOVED_TO,
    Watcher,
)
from gpuplane.core.ids import AttemptId
from gpuplane.core.reasons import Word
from gpuplane.kit.clock import Clock
from gpuplane.kit.failpoints import failpoint
from gpuplane.nvml.devices import NvmlSession

_FOLLOW_S = 5.0
"""How often a follower asks whether the attempt is over when nothing is written: a supervisor
and guard killed together write no last record."""

_COMMAND_THREADS = 16
"""Commands that may run beside replicas at once; the next waits for a place."""

NOTHING_KEPT = "NothingKept"
"""The word of a BackendError for an attempt of which nothing is kept."""

NOT_DONE = "NotDone"
"""The word of a BackendError for what this machine refused, such as a write to a full disk."""


class LocalBackend:
    """This machine as a cluster of one node.

    Args:
        home: The product's home; attempts, volumes and checkpoints lie below it.
        clock: Tells when something was observed; a supervisor has its own clock.
        settings: Limits and habits.
        nvml: Finds the GPUs.
    """

    kind = "local"

    def __init__(
        self,
        home: Path,
        clock: Clock,
        settings: LocalSettings | None = None,
        nvml: NvmlSession | None = None,
    ) -> None:
        self.home = home
        self.root = home / "local"
        self.settings = settings or LocalSettings()
        self._clock = clock
        for name in (folders.ATTEMPTS, folders.CHANGES):
            (self.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        folders.clean_up(self.root, self.settings.forgotten_s, clock.now_ms() / 1000)
        self._tracker = AttemptTracker(
            self.root, machine.boot_id(), clock, self.settings.max_report_bytes
        )
        lock = GpuLock(home, self.settings.lock_folder)
        self._gpus = LocalGpus(nvml or NvmlSession(), lock, clock)
        self._inventory = LocalInventory(self.root, self.settings.node_name, self._gpus)
        self._use = GpuUse(self._whole_gpus_of)
        self.cgroups = self._find_cgroups()
        self._commands = ThreadPoolExecutor(_COMMAND_THREADS, "local-exec")
        self._watcher = Watcher()
        self._changes = self._watcher.watch((self.root / folders.CHANGES, IN_CLOSE_WRITE))

    def close(self) -> None:
        """Let go of the machine; what runs goes on."""
        self._watcher.close()
        self._commands.shutdown(wait=False)
        self._gpus.close()
        cgroups.remove(self.cgroups)

    async def probe(self) -> Probe:
        """Return what this machine enforces and what not; see `Backend`."""
        view = await asyncio.to_thread(self._gpus.look)
        notes = promise_notes(self.cgroups, view, is_event_driven=self._watcher.is_event_driven)
        return Probe(reachable=True, kind=self.kind, version=__version__, notes=notes)

    async def observe(self) -> Observation:
        """Return this machine and every attempt not yet forgotten; see `Backend`."""
        return await asyncio.to_thread(self._observe)

    async def observe_replicas_since(self, cursor: str) -> ReplicaChanges:
        """Return the replicas that changed since the cursor; see `ObservesChanges`."""
        return await asyncio.to_thread(self._observe_since, cursor)

    async def ensure_workload(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        """Start the attempt unless it was started already or was evicted; see `Backend`."""
        check_plan(plan, secrets)
        with _told(Word.START_FAILED):
            await asyncio.to_thread(self._ensure, plan, secrets)

    async def evict(self, ref: AttemptRef, grace_s: float, reason: str) -> None:
        """Stop an attempt, or forbid its start; see `Backend`."""
        with _told(NOT_DONE):
            await asyncio.to_thread(self._evict, ref, grace_s, reason)

    async def forget(self, ref: AttemptRef) -> None:
        """Drop what is kept of an attempt that is over; see `Backend`."""
        with _told(NOT_DONE):
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
            is_over = False
            while True:
                chunks = await asyncio.to_thread(_read_new, readers)
                for chunk in chunks:
                    yield chunk
                if chunks:
                    continue
                if is_over:
                    return
                # Once more after the end is known: what came in between is not lost.
                is_over = await asyncio.to_thread(self._is_over, folder)
                if not is_over:
                    await watch.changed(_FOLLOW_S)
        finally:
            watch.close()

    async def exec(
        self, ref: AttemptRef, rank: int, command: Sequence[str], stdin: bytes, timeout_s: float
    ) -> ExecResult:
        """Run a command in a replica's directory and environment; see `Executes`.

        A command that takes longer than timeout_s is ended and answers 124, as `timeout` does.
        """
        folder = self._kept(ref)
        cancelled, cancel = os.pipe2(os.O_CLOEXEC)

        def run() -> ExecResult:
            try:
                limit = self.settings.max_exec_bytes
                return run_command(folder.path, rank, command, stdin, timeout_s, limit, cancelled)
            finally:
                os.close(cancelled)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._commands, run)
        finally:
            os.close(cancel)  # tells the thread, when the caller was cancelled

    async def request_checkpoint(self, ref: AttemptRef) -> None:
        """Send SIGUSR1 to the processes that handle it; see `Checkpoints`.

        A process without a handler is left alone: the signal would end it.
        """
        folder = self._kept(ref)
        await asyncio.to_thread(self._accept, folder, ref)
        if await asyncio.to_thread(self._is_over, folder) or not folder.command("checkpoint"):
            raise BackendError(NOTHING_KEPT, f"attempt {ref.attempt_id} does not run")

    async def list_artifacts(self, ref: AttemptRef) -> tuple[tuple[str, int], ...]:
        """Return the artifacts of an attempt that is over; see `FetchesArtifacts`."""
        folder = self._kept(ref)

        def list_them() -> tuple[tuple[str, int], ...]:
            return artifacts.list_files(folder) if self._is_over(folder) else ()

        return await asyncio.to_thread(list_them)

    async def read_artifact(
        self, ref: AttemptRef, path: str, offset: int, limit_bytes: int
    ) -> bytes:
        """Return a run of bytes of one artifact; see `FetchesArtifacts`."""
        folder = self._kept(ref)
        return await asyncio.to_thread(artifacts.read_file, folder, path, offset, limit_bytes)

    def _observe(self) -> Observation:
        generation, node = self._inventory.look()
        replicas = self._tracker.look_at_all()
        self._use.note(node.gpus, replicas)
        told = tuple(self._use.add_to(each) for each in replicas)
        return Observation(generation, self._clock.now_ms(), (node,), told)

    def _observe_since(self, cursor: str) -> ReplicaChanges:
        generation, node = self._inventory.look()
        new_cursor, replicas = self._tracker.changed_since(cursor)
        self._use.note(node.gpus, self._tracker.last_seen())
        told = tuple(self._use.add_to(each) for each in replicas)
        return ReplicaChanges(new_cursor, generation, self._clock.now_ms(), told)

    def _whole_gpus_of(self, attempt_id: AttemptId) -> dict[int, list[str]]:
        plan = read_json(AttemptFolder(self.root, attempt_id).path / records.PLAN) or {}
        kept = plan.get("gpus")
        return {int(rank): gpus for rank, gpus in kept.items()} if isinstance(kept, dict) else {}

    def _is_over(self, folder: AttemptFolder) -> bool:
        view = self._tracker.look(folder)
        return view is not None and view.is_over

    def _accept(self, folder: AttemptFolder, ref: AttemptRef) -> None:
        if folder.accept(ref):
            self._tracker.drop(ref.attempt_id)

    def _ensure(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        folder = self._folder(plan.ref)
        if folder.was_forgotten():
            raise Tombstoned(Word.CANCELLED, "the attempt is over and was forgotten")
        self._accept(folder, plan.ref)
        fate = folder.fate()
        if fate is not None:
            if fate.get("fate") == records.NEVER:
                raise Tombstoned(Word.CANCELLED, "the attempt was evicted before it started")
            return
        failpoint("local.ensure.accepted")
        gpu_lock = self._gpus.lock_for(plan.replicas)
        payload = self._prepare(plan, secrets, folder)
        failpoint("local.ensure.prepared")
        launch(payload, folder.path, gpu_lock, self.settings.start_timeout_s)
        failpoint("local.ensure.claimed")

    def _prepare(
        self, plan: AttemptPlan, secrets: dict[str, str], folder: AttemptFolder
    ) -> dict[str, object]:
        """Make the folders of an attempt and return its supervisor's payload."""
        visible = {r.rank: self._gpus.visible_devices(r) for r in plan.replicas}
        known = {
            "format": records.FORMAT,
            "ranks": sorted(r.rank for r in plan.replicas),
            "gpus": whole_gpus(plan.replicas),
        }
        records.write_record(str(folder.path / records.PLAN), known)
        for replica in plan.replicas:
            for name in ("work", "log", "tmp", "report"):
                path = folder.replica(replica.rank) / name
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        volumes = {
            mount.name: self.home / "volumes" / str(plan.tenant_id) / mount.name
            for mount in plan.execution.mounts
        }
        checkpoints = None
        if plan.checkpoint_path:
            checkpoints = self.home / "checkpoints" / str(plan.tenant_id) / str(plan.job_id)
        for path in filter(None, (*volumes.values(), checkpoints)):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return compute_payload(
            plan, secrets, folder, self.settings, self.cgroups.base, volumes, checkpoints, visible
        )

    def _evict(self, ref: AttemptRef, grace_s: float, reason: str) -> None:
        folder = self._folder(ref)
        if folder.was_forgotten():
            return
        self._accept(folder, ref)
        # Written first: a supervisor that wins the claim below reads it before it starts a thing.
        overdue_s = folder.ask_to_stop(grace_s, reason, self._clock.now_ms())
        failpoint("local.evict.recorded")
        if folder.forbid_start(reason, self._clock.now_ms()):
            failpoint("local.evict.forbidden")
            records.announce(str(folder.changes))
            return
        folder.command("stop")
        if overdue_s > self.settings.stuck_s:
            folder.kill_supervisor()

    def _forget(self, ref: AttemptRef) -> None:
        folder = self._folder(ref)
        if not folder.exists():
            return
        self._accept(folder, ref)
        view = self._tracker.look(folder)
        if view is not None and not view.is_over:
            raise BackendError(Word.SUPERVISOR_LOST, "an attempt that still runs is not forgotten")
        folder.forget()
        self._tracker.drop(ref.attempt_id)

    def _folder(self, ref: AttemptRef) -> AttemptFolder:
        return AttemptFolder(self.root, ref.attempt_id)

    def _kept(self, ref: AttemptRef) -> AttemptFolder:
        folder = self._folder(ref)
        if not folder.exists():
            raise BackendError(NOTHING_KEPT, f"nothing is kept of attempt {ref.attempt_id}")
        return folder

    def _find_cgroups(self) -> cgroups.CgroupSupport:
        base = self.settings.cgroup_base
        if base is not None:
            return cgroups.describe(base)
        key = hashlib.sha256(str(self.home.resolve()).encode()).hexdigest()[:12]
        return cgroups.find_support(f"gpuplane-{key}")


def _read_new(readers: Sequence[ReplicaReader]) -> list[LogChunk]:
    return merge_ranks([reader.read_new() for reader in readers])


@contextlib.contextmanager
def _told(word: str) -> Iterator[None]:
    """Answer what the operating system refuses as an error of the contract."""
    try:
        yield
    except OSError as error:
        raise BackendError(word, f"this machine refuses: {error}") from error
