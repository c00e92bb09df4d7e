"""The supervisor's loop: one thread that waits for pipes, children, commands and time.

Owns the state record and is the only one that writes it. Never talks to the control plane: it
reads the control pipe and the stop record, and touches the change file when something is new.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from gpuplane.backends.local.supervisor import cgroup, kernel, records, words
from gpuplane.backends.local.supervisor.aside import Aside
from gpuplane.backends.local.supervisor.collecting import collect
from gpuplane.backends.local.supervisor.commands import CommandServer
from gpuplane.backends.local.supervisor.health import choose_port
from gpuplane.backends.local.supervisor.replica import Replica
from gpuplane.backends.local.supervisor.workspace import prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplane.backends.local.supervisor.owner import Ranked
    from gpuplane.backends.local.supervisor.plan import Plan

_TICK_LIMIT_S = 60.0
_RETRY_S = 1.0
"""How long after a record that the disk refused the next try comes."""
_COMMAND_BYTES = 65_536


class Supervisor:
    """Runs one attempt from its claimed folder to its last record."""

    def __init__(self, plan: Plan, control: int, guard: int) -> None:
        self.plan = plan
        self.control = control
        self.guard = guard
        self.dirty = False
        self._started_wall_ms = time.time_ns() // 1_000_000
        self._started = time.monotonic()
        self._handlers: dict[int, Callable[[int], object]] = {}
        self._poller = select.poll()
        self._guard_is_gone = False
        self._deadline: float | None = None
        self._cgroups: dict[int, str] = {}
        self._aside: Aside | None = None
        self._shared_env: dict[str, str] = {}
        self.replicas = [Replica(self, task) for task in plan.replicas]
        self.is_alone = len(self.replicas) == 1

    def now(self) -> float:
        """Return seconds that never run backwards."""
        return time.monotonic()

    def now_ms(self) -> int:
        """Return wall time in milliseconds, as the clock stood at the start plus what passed.

        A machine's clock may step while a job runs; its duration must not.
        """
        return self._started_wall_ms + int((time.monotonic() - self._started) * 1000)

    def watch(
        self, handle: int, handler: Callable[[int], object], events: int = select.POLLIN
    ) -> None:
        """Call handler with the descriptor whenever it can be read (or what events says)."""
        self._handlers[handle] = handler
        self._poller.register(handle, events)

    def unwatch(self, handle: int) -> None:
        if self._handlers.pop(handle, None) is not None:
            self._poller.unregister(handle)

    def is_watched(self, handle: int) -> bool:
        return handle in self._handlers

    def folder_of(self, replica: Ranked) -> str:
        """Return where a replica's process starts."""
        return os.path.normpath(f"{replica.task.folder}/work/{self.plan.working_dir}")

    def cgroup_of(self, replica: Ranked) -> str:
        """Return the replica's cgroup, or "" where there is none."""
        return self._cgroups.get(replica.rank, "")

    def run(self) -> None:
        """Run the attempt to its end; returns when the last record is written."""
        self._catch_signals()
        self._commands = CommandServer(self)
        self.watch(self.control, self._read_commands)
        if os.path.exists(f"{self.plan.folder}/{records.STOP}"):
            self._stop_as_recorded()
        else:
            self._start_all()
        while not self._is_over():
            self._wait()
            self._reap()
            now = self.now()
            if self._deadline is not None and now >= self._deadline:
                self._time_out()
            for replica in self.replicas:
                replica.tick(now)
                if replica.is_due_to_start(now):
                    self.start(replica)
                replica.settle()
            if self.dirty and not self._is_over():
                # The last end is written with the rest of it, when artifacts are collected.
                self.save()
        self._end()

    def start(self, replica: Replica) -> None:
        """Start a replica's process: record first, then open the gate."""
        env = {**replica.task.env, **self._shared_env}
        port = self.plan.port
        if port is not None:
            port = port or choose_port()
            env["PORT"] = str(port)
        if replica.prepare(env, port) is None:
            return
        if self.save():
            replica.launch()
        else:
            replica.abandon("its start record cannot be written; the disk may be full")

    def save(self) -> bool:
        """Write the state record and tell whoever waits; False when the disk refuses it."""
        return self._write_state(is_over=False)

    def stop_all(self, reason: str, message: str, grace_s: float) -> None:
        """Ask every replica to end for good."""
        if self._aside is not None:
            self._aside.cancel()
            self._aside = None
        for replica in self.replicas:
            replica.stop(reason, message, grace_s)

    def _is_over(self) -> bool:
        return all(replica.is_over for replica in self.replicas)

    def _start_all(self) -> None:
        if self.plan.max_duration_s is not None:
            self._deadline = self.now() + self.plan.max_duration_s
        for replica in self.replicas:
            name = f"{self.plan.attempt_id}/{replica.rank}"
            self._cgroups[replica.rank] = cgroup.make(
                self.plan.cgroup, name, self.plan.cpu_milli, self.plan.memory_mib
            )
        if not self.is_alone:
            # One for all ranks and all restarts: workers that wait for the first find it there.
            self._shared_env["MASTER_PORT"] = str(choose_port())
        if self.plan.workspace is None and not self.plan.mounts:
            self._prepared("")
            return
        self.save()
        folders = [replica.task.folder + "/work" for replica in self.replicas]
        plan = self.plan
        self._aside = Aside(
            self,
            lambda: prepare(plan.workspace, folders, plan.mounts, plan.max_workspace_bytes),
            self._prepared,
        )

    def _prepared(self, failure: str) -> None:
        """Start the replicas once their folders are filled, unless they were stopped."""
        self._aside = None
        for replica in self.replicas:
            if replica.is_over:
                continue
            if failure:
                replica.fail_start(f"the working directory cannot be prepared: {failure}")
            else:
                self.start(replica)

    def _collect(self) -> None:
        """Keep the artifacts of all ranks; a helper does it, the loop stays awake."""
        plan = self.plan
        for replica in self.replicas:
            if replica.started_at is None:
                continue
            work, target = self.folder_of(replica), f"{plan.folder}/artifacts/{replica.rank}"
            finished: list[str] = []
            Aside(
                self,
                lambda work=work, target=target: collect(  # type: ignore[misc]  # bound per rank
                    work, target, plan.artifacts, plan.max_artifact_bytes
                ),
                finished.append,
            )
            while not finished:
                self._wait()
                self._reap()
            replica.note(finished[0])

    def _wait(self) -> None:
        due = [at for replica in self.replicas if (at := replica.next_due()) is not None]
        if self._deadline is not None:
            due.append(self._deadline)
        if self.dirty:
            due.append(self.now() + _RETRY_S)
        wait_s = min([_TICK_LIMIT_S, *(max(0.0, at - self.now()) for at in due)])
        for handle, _ in self._poller.poll(int(wait_s * 1000) + 1):
            handler = self._handlers.get(handle)
            if handler is not None:
                handler(handle)

    def _reap(self) -> None:
        by_pid = {replica.pid: replica for replica in self.replicas if replica.pid is not None}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._commands.ended(pid, status)
            replica = by_pid.get(pid)
            if replica is not None:
                cpu_ms = int((usage.ru_utime + usage.ru_stime) * 1000)
                replica.ended(status, cpu_ms, usage.ru_maxrss >> 10)

    def _time_out(self) -> None:
        self._deadline = None
        seconds = self.plan.max_duration_s
        message = f"ran longer than its maximum duration of {seconds:g} s"
        self.stop_all(words.TIMED_OUT, message, self.plan.grace_s)

    def _catch_signals(self) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self.watch(reader, self._take_signals)
        # The guard is the parent. Without it a kill of this process would free the descendants.
        kernel.set_parent_death_signal(signal.SIGUSR2)
        if os.getppid() != self.guard:
            os.kill(os.getpid(), signal.SIGUSR2)

    def _take_signals(self, handle: int) -> None:
        with contextlib.suppress(BlockingIOError):
            received = os.read(handle, 4096)
            if signal.SIGUSR2 in received:
                message = "its guard process was killed, so the attempt was ended"
                self.stop_all(words.SUPERVISOR_LOST, message, 0.0)
            elif signal.SIGTERM in received:
                message = "its supervisor was told to end, as at the shutdown of the machine"
                self.stop_all(words.SUPERVISOR_LOST, message, self.plan.grace_s)

    def _read_commands(self, handle: int) -> None:
        with contextlib.suppress(BlockingIOError):
            text = os.read(handle, _COMMAND_BYTES).decode(errors="replace")
            for line in text.splitlines():
                verb, _, _rest = line.partition(" ")
                if verb == "stop":
                    self._stop_as_recorded()
                elif verb == "checkpoint":
                    self._ask_for_checkpoint()

    def _stop_as_recorded(self) -> None:
        text = kernel.read_text(f"{self.plan.folder}/{records.STOP}") or ""
        grace_ms, _, rest = text.strip().partition(" ")
        reason = rest.partition(" ")[2]
        grace_s = int(grace_ms) / 1000 if grace_ms.isdigit() else self.plan.grace_s
        self.stop_all(reason or words.SUPERVISOR_LOST, "was stopped on request", grace_s)

    def _ask_for_checkpoint(self) -> None:
        """Send SIGUSR1 to whoever has a handler for it: it would kill everything else."""
        for replica in self.replicas:
            for pid in replica.processes() if replica.is_running else ():
                if kernel.catches(pid, signal.SIGUSR1):
                    kernel.send(pid, signal.SIGUSR1)

    def _end(self) -> None:
        self._commands.close()
        if self.plan.artifacts:
            self._collect()
        for path in self._cgroups.values():
            cgroup.remove(path)
        if self.plan.cgroup:
            cgroup.remove(f"{self.plan.cgroup}/{self.plan.attempt_id}")
        while not self._write_state(is_over=True):
            # The end of a job is not given up for a full disk: the lock is held until it is known.
            time.sleep(_RETRY_S)

    def _write_state(self, *, is_over: bool) -> bool:
        self.dirty = False
        state = {
            "format": records.FORMAT,
            "attempt_id": self.plan.attempt_id,
            "epoch": self.plan.epoch,
            "boot_id": kernel.boot_id(),
            "supervisor_pid": os.getpid(),
            "supervisor_ticks": kernel.start_ticks(os.getpid()),
            "guard_pid": self.guard,
            "cgroup": f"{self.plan.cgroup}/{self.plan.attempt_id}" if self.plan.cgroup else "",
            "is_over": is_over,
            "replicas": [replica.record() for replica in self.replicas],
        }
        try:
            records.write_record(f"{self.plan.folder}/{records.STATE}", state)
        except OSError:
            # A full disk must not end the job; the record is tried again at the next wake-up.
            self.dirty = True
            return False
        records.announce(self.plan.changes)
        return True
