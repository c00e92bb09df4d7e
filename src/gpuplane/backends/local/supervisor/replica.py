"""One rank of an attempt: its process, its output, its end and whether it starts again.

A decision about time is made in `tick` and an end in `settle`; both are called by the loop.
Never blocks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal

from gpuplane.backends.local.supervisor import cgroup, kernel, words
from gpuplane.backends.local.supervisor.health import READY, HealthProbe
from gpuplane.backends.local.supervisor.output import OutputLog
from gpuplane.backends.local.supervisor.process import Started, explain_failure, fork_logged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuplane.backends.local.supervisor.owner import Owner
    from gpuplane.backends.local.supervisor.plan import ReplicaTask

READ_BYTES = 1 << 18
STEADY_S = 600.0
"""A replica that ran this long starts its back-off from the beginning (Kubernetes' ten minutes)."""
_PIPE_BYTES = 1 << 20
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Replica:
    """The life of one rank, over all its restarts within the attempt."""

    def __init__(self, owner: Owner, task: ReplicaTask) -> None:
        self.owner = owner
        self.task = task
        self.rank = task.rank
        self.phase = words.STARTING
        self.process: Started | None = None
        self.pid: int | None = None
        self.ticks: int | None = None
        self.env: dict[str, str] = {}
        self.status: int | None = None
        self.started_at: int | None = None
        self.ended_at: int | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.reason = ""
        self.message = ""
        self.port: int | None = None
        self.ready: bool | None = None
        self.restart_count = 0
        self.cpu_ms: int | None = None
        self.memory_peak_mib: int | None = None
        self.log = OutputLog(
            task.folder + "/log", owner.plan.segment_bytes, owner.plan.max_log_bytes
        )
        self.probe = HealthProbe(owner, owner.plan.health, self.hear) if owner.plan.health else None
        self.stop_reason: tuple[str, str] | None = None
        self.asked_to_stop: tuple[str, str] | None = None
        self.kill_at: float | None = None
        self.start_at: float | None = None
        self._failures = 0
        self._began = 0.0
        self._failed_start = ""
        self._pipes: dict[int, int] = {}

    @property
    def is_over(self) -> bool:
        return self.phase == words.EXITED

    @property
    def is_running(self) -> bool:
        """Whether its main process runs."""
        return self.pid is not None and self.status is None

    def note(self, text: str) -> None:
        """Add a sentence to what people are told."""
        self.message = "; ".join(filter(None, (self.message, text)))

    def record(self) -> dict[str, object]:
        """Return the replica's part of the state record."""
        dropped = self.log.dropped_bytes
        lost = f"{dropped} bytes of output were lost: the disk took no more" if dropped else ""
        return {
            "rank": self.rank,
            "pid": self.pid,
            "start_ticks": self.ticks,
            "phase": self.phase,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "reason": self.reason,
            "message": "; ".join(filter(None, (self.message, lost))),
            "ready": self.ready,
            "port": self.port,
            "restart_count": self.restart_count,
            "cpu_ms": self.cpu_ms,
            "memory_peak_mib": self.memory_peak_mib,
        }

    def prepare(self, env: dict[str, str], port: int | None) -> Started | None:
        """Fork the process up to its gate; the caller records it, then calls `launch`."""
        self.env = env
        self.start_at = None
        self.status = None
        self.stop_reason = None
        self.port = port
        self.ready = None if self.probe is None else False
        self._failed_start = ""
        try:
            process = fork_logged(self.owner.plan.command, env, self.owner.folder_of(self))
        except OSError as error:
            self.fail_start(f"no process can be started: {error.strerror}")
            return None
        self.process = process
        self.pid = process.pid
        self.ticks = kernel.start_ticks(process.pid)
        cgroup.enter(self.owner.cgroup_of(self), process.pid)
        self._pipes = {process.stdout: 0, process.stderr: 1}
        for handle in self._pipes:
            _widen(handle)
            self.owner.watch(handle, self.pump)
        self.owner.watch(process.verdict, self.judge_start)
        return process

    def launch(self) -> None:
        """Open the gate."""
        assert self.process is not None
        self._began = self.owner.now()
        self.started_at = self.started_at or self.owner.now_ms()
        self.process.release()
        if self.probe is not None:
            settings = self.owner.plan.health or {}
            self.probe.begin(self._began, int(settings.get("port") or self.port or 0))

    def judge_start(self, handle: int) -> None:
        """Read whether exec happened."""
        try:
            verdict = os.read(handle, 1000).decode(errors="replace")
        except BlockingIOError:
            return
        self.owner.unwatch(handle)
        os.close(handle)
        if verdict:
            folder = self.owner.folder_of(self)
            self._failed_start = explain_failure(verdict, self.owner.plan.command, folder)
        elif self.phase == words.STARTING:
            self.phase = words.RUNNING
            self.owner.dirty = True

    def pump(self, handle: int) -> bool:
        """Move what a pipe holds into the log; False when it held nothing."""
        try:
            data = os.read(handle, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self.log.write(self._pipes[handle], data, self.owner.now_ms())
        else:
            self._close_pipe(handle)
        return True

    def stop(self, reason: str, message: str, grace_s: float) -> None:
        """Ask the replica to end for good: SIGTERM to all it started, SIGKILL after the grace."""
        if self.is_over:
            return
        self.asked_to_stop = self.asked_to_stop or (reason, message)
        if self.status is not None and self.stop_reason is None:
            return  # it has ended by itself; only what it left behind is being cleared away
        if self.pid is None:
            self._finish(reason, message)
            return
        self._terminate(reason, message, grace_s)

    def hear(self, verdict: str, message: str) -> None:
        """Take what the health check found; a failing service is ended if it may start again."""
        is_ready = verdict == READY
        if self.phase != words.RUNNING:
            return
        text = "" if is_ready else f"health check failed: {message}"
        if (self.ready, self.message) != (is_ready, text):
            self.ready, self.message = is_ready, text
            self.owner.dirty = True
        if not is_ready and self.owner.plan.restart != words.RESTART_NEVER:
            text = f"its health check failed: {message}"
            self._terminate(words.UNHEALTHY, text, self.owner.plan.grace_s)

    def ended(self, status: int, cpu_ms: int, memory_peak_mib: int) -> None:
        """Take the exit status of the main process."""
        self.status = status
        if self.probe is not None:
            self.probe.end()
        self.cpu_ms = (self.cpu_ms or 0) + cpu_ms
        self.memory_peak_mib = max(self.memory_peak_mib or 0, memory_peak_mib)
        if self.kill_at is None:
            # As in a container, what the main process left behind ends with it.
            self.kill_at = self.owner.now()

    def settle(self) -> None:
        """Conclude if the main process is over and nothing of the replica is left."""
        if self.status is None or self.pid is None or self.start_at is not None:
            return
        if self._leftovers():
            return
        for handle in list(self._pipes):
            while handle in self._pipes and self.pump(handle):
                pass
            self._close_pipe(handle)
        if self.process is not None and self.owner.is_watched(self.process.verdict):
            self.judge_start(self.process.verdict)
        self._conclude(self.status)

    def tick(self, now: float) -> None:
        """Do what has become due."""
        if self.kill_at is not None and now >= self.kill_at and not self.is_over:
            self._kill()
            self.kill_at = now + 1.0
        if self.probe is not None and self.phase == words.RUNNING:
            self.probe.tick(now)

    def is_due_to_start(self, now: float) -> bool:
        """Tell whether its pause before another start is over."""
        return self.start_at is not None and now >= self.start_at

    def next_due(self) -> float | None:
        """Return the monotonic time of the next thing to do."""
        due = [at for at in (self.kill_at, self.start_at) if at is not None]
        if self.probe is not None and self.phase == words.RUNNING:
            due.append(self.probe.due)
        return min(due) if due else None

    def abandon(self, message: str) -> None:
        """Give up a process that still waits at its gate: it never executes anything."""
        assert self.process is not None
        os.close(self.process.gate)
        self._failed_start = message

    def fail_start(self, message: str) -> None:
        """End the replica because it could not even be started."""
        self.exit_code = 127
        self._finish(words.START_FAILED, message)

    def processes(self) -> list[int]:
        """Return every living process of this rank, wherever it was adopted."""
        marker = f"GPUPLANE_RANK={self.rank}".encode()
        tree = set(kernel.list_descendants(self.pid)) if self.pid else set()
        alive = kernel.list_descendants(os.getpid())
        return [
            pid
            for pid in alive
            if pid == self.pid
            or pid in tree
            or self.owner.is_alone
            or kernel.has_marker(pid, marker)
        ]

    def _terminate(self, reason: str, message: str, grace_s: float) -> None:
        kill_at = self.owner.now() + grace_s
        self.kill_at = (
            kill_at if self.stop_reason is None else min(kill_at, self.kill_at or kill_at)
        )
        if self.stop_reason is not None and self.phase == words.STOPPING:
            return
        self.stop_reason = (reason, message)
        self.phase = words.STOPPING
        self.ready = None if self.ready is None else False
        self.owner.dirty = True
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        others = self.processes()
        if self.pid is not None and self.status is None:  # else its number may be another's by now
            others = [pid for pid in others if _group_of(pid) != self.pid]
            kernel.send_group(self.pid, number)
        for pid in others:
            kernel.send(pid, number)

    def _kill(self) -> None:
        cgroup.kill(self.owner.cgroup_of(self))
        if self.pid is not None:
            self._signal_all(signal.SIGKILL)

    def _leftovers(self) -> bool:
        try:
            # The supervisor adopts every orphan, so no child means no descendant.
            os.waitid(os.P_ALL, 0, _LOOK)
            # In this order: a process that ends after the first look is a zombie to the second.
            return bool(self.processes()) or os.waitid(os.P_ALL, 0, _LOOK) is not None
        except ChildProcessError:
            return False

    def _conclude(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        limits = self.owner.cgroup_of(self)
        # What a process did not wait for is counted by its cgroup alone.
        self.cpu_ms = max(self.cpu_ms or 0, cgroup.cpu_ms(limits))
        self.memory_peak_mib = max(self.memory_peak_mib or 0, cgroup.memory_peak_mib(limits))
        self.exit_code = code if code >= 0 else 128 - code
        self.signal = -code if code < 0 else None
        reason, message = self._explain(code)
        policy = self.owner.plan.restart
        again = policy == words.RESTART_ALWAYS or (
            policy == words.RESTART_ON_FAILURE and reason != words.COMPLETED
        )
        self.kill_at = None
        if again and self.asked_to_stop is not None:
            reason, message = self.asked_to_stop  # else it would have started again
        if not again or self.asked_to_stop is not None or reason == words.START_FAILED:
            self._finish(reason, message)
            return
        now = self.owner.now()
        self._failures = 0 if now - self._began >= STEADY_S else self._failures + 1
        plan = self.owner.plan
        delay = min(
            plan.restart_max_delay_s, plan.restart_delay_s * 2 ** max(0, self._failures - 1)
        )
        self.restart_count += 1
        self.phase = words.STARTING
        self.pid = self.ticks = None
        self.reason, self.message = reason, f"{message}; starts again in {delay:g} s"
        self.start_at = now + delay
        self.owner.dirty = True

    def _explain(self, code: int) -> tuple[str, str]:
        if self._failed_start:
            return words.START_FAILED, self._failed_start
        if self.stop_reason is not None:
            return self.stop_reason
        if cgroup.was_out_of_memory(self.owner.cgroup_of(self)):
            return words.OUT_OF_MEMORY, f"used more than {self.owner.plan.memory_mib} MiB of memory"
        if code == 0:
            return words.COMPLETED, ""
        if code > 0:
            return words.NON_ZERO_EXIT, f"ended with exit code {code}"
        name = signal.Signals(-code).name if -code in _NAMED else f"signal {-code}"
        hint = "; the kernel does this too when memory is short" if code == -signal.SIGKILL else ""
        return words.SIGNALLED, f"was killed by {name}{hint}"

    def _finish(self, reason: str, message: str) -> None:
        self.phase = words.EXITED
        self.reason, self.message = reason, message
        self.ended_at = self.owner.now_ms()
        self.ready = None if self.ready is None else False
        self.kill_at = self.start_at = None
        self.log.close()
        if self.probe is not None:
            self.probe.end()
        self.owner.dirty = True

    def _close_pipe(self, handle: int) -> None:
        if self._pipes.pop(handle, None) is not None:
            self.owner.unwatch(handle)
            os.close(handle)


_NAMED = frozenset(int(number) for number in signal.Signals)


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _widen(handle: int) -> None:
    """Give a pipe a megabyte, so that a burst does not stop the job; a refusal costs nothing."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(handle, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
