"""Asks the decision core: here what is answered at once, in a child process what takes longer.

Owns the child: started at the first long question, stopped when nobody has asked for a while,
started again when it died, killed when it takes too long and with this process. What travels are
pickled values between two processes of ours; the child is given nothing else.
"""

import asyncio
import contextlib
import os
import pickle
import select
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, TypeVar, cast

from gpuplane.loops.deciding.child import OUT_OF_MEMORY, READY
from gpuplane.loops.deciding.questions import Question

A = TypeVar("A")

CHILD = "gpuplane.loops.deciding.child"
AT_ONCE_MS = 2.0
"""Up to here the event loop answers itself: a thread would cost more than it saves."""
TRIES = 2
"""A child that died of something else than its question (an operator, the kernel) is replaced."""
START_S = 60.0
"""How long a child may take to load numpy and the decision core; half a second where it is calm."""
END_S = 1.0
"""How long a child whose pipe has ended may take to be gone."""
PASSED_ON = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH")
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The columns are short: threads of the linear algebra library would only take memory."""


class DecisionFailed(Exception):
    """A question got no answer; the text says why and names the setting that bounds it."""


@dataclass(frozen=True, slots=True)
class DecisionBounds:
    """When a child answers, and what it may take.

    Args:
        inline_ms: Questions that take about so long are answered in this process.
        timeout_s: Most a child may think about one question.
        memory_mib: Most memory a child may take.
        idle_s: After so long without a question the child is stopped.
        worth_ratio: An answer that takes less than so many times the packing of its question is
            given here: sending it away would save next to nothing.
    """

    inline_ms: float = 20.0
    timeout_s: float = 120.0
    memory_mib: int = 4096
    idle_s: float = 30.0
    worth_ratio: float = 2.0


class DecisionProcess:
    """One child at most, asked one question after another."""

    def __init__(self, bounds: DecisionBounds) -> None:
        """Start nothing yet."""
        self._bounds = bounds
        self._child: subprocess.Popen[bytes] | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._guard = threading.Lock()  # of the child's handle: closing may come at any time
        self._is_closed = False
        self._asked = 0
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id of the child, None while there is none."""
        child = self._child
        return None if child is None else child.pid

    async def ask(self, question: Question[A]) -> A:
        """Return the answer to a question.

        Raises:
            DecisionFailed: If a child got no answer within its bounds, or died twice.
        """
        cost_ms = question.cost_ms
        if cost_ms <= min(AT_ONCE_MS, self._bounds.inline_ms):
            return question.answer()
        if cost_ms <= max(self._bounds.inline_ms, self._bounds.worth_ratio * question.travel_ms):
            return await asyncio.to_thread(question.answer)
        if self._is_closed:
            raise DecisionFailed("The control plane is stopping.")
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "decisions")
        self._asked += 1
        try:
            found = await asyncio.wrap_future(self._worker.submit(self._exchange, question))
        finally:
            self._stop_later()
        return cast(A, found)

    def close(self) -> None:
        """Kill the child and wait for it; who still waits for an answer gets none."""
        if self._idle is not None:
            self._idle.cancel()
        with self._guard:
            self._is_closed = True
            if self._child is not None:
                self._child.kill()
        if self._worker is not None:
            self._worker.shutdown(wait=True)
        self._drop()

    def _stop_later(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if not self._is_closed:
            asked = self._asked
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._bounds.idle_s, self._stop_if_idle, asked)

    def _stop_if_idle(self, asked: int) -> None:
        if asked == self._asked and not self._is_closed and self._worker is not None:
            self._worker.submit(self._drop)

    # In the worker's thread, one call after another.

    def _exchange(self, question: Question[object]) -> object:
        for _ in range(TRIES):
            child = self._ensure_child()
            try:
                kind, found = self._converse(child, question)
            except (OSError, EOFError, pickle.UnpicklingError):
                code = self._reap(child)
                if code == OUT_OF_MEMORY:
                    raise DecisionFailed(
                        f"A decision needs more than {self._bounds.memory_mib} MiB; "
                        "GPUPLANE_DECISIONS_MEMORY_MIB allows more."
                    ) from None
                continue
            except BaseException:
                self._drop()  # half a question may be in its input
                raise
            if kind == "error":
                raise DecisionFailed(f"A decision failed in its process:\n{found}")
            return found
        raise DecisionFailed(f"The process that decides ended {TRIES} times in a row.")

    def _converse(
        self, child: subprocess.Popen[bytes], question: Question[object]
    ) -> tuple[str, object]:
        source, target = cast(IO[bytes], child.stdout), cast(IO[bytes], child.stdin)
        pickle.dump(question, target, pickle.HIGHEST_PROTOCOL)
        target.flush()
        if not _speaks(source, self._bounds.timeout_s):
            raise DecisionFailed(
                f"A decision took longer than {self._bounds.timeout_s:g} s; "
                "GPUPLANE_DECISIONS_TIMEOUT_S allows more."
            )
        return cast("tuple[str, object]", pickle.load(source))

    def _ensure_child(self) -> subprocess.Popen[bytes]:
        with self._guard:
            if self._is_closed:
                raise DecisionFailed("The control plane is stopping.")
            is_new = self._child is None
            if self._child is None:
                self._child = subprocess.Popen(
                    [sys.executable, "-P", "-m", CHILD, str(self._bounds.memory_mib)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={k: os.environ[k] for k in PASSED_ON if k in os.environ} | ONE_THREAD,
                    start_new_session=True,  # Ctrl-C is ours to answer
                )
            child = self._child
        if is_new:
            source = cast(IO[bytes], child.stdout)
            if not _speaks(source, START_S) or source.read(len(READY)) != READY:
                self._drop()
                raise DecisionFailed("The process that decides could not be started.")
        return child

    def _reap(self, child: subprocess.Popen[bytes]) -> int:
        """Return the exit code of a child whose pipe has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_S)
        self._drop()
        return child.wait()

    def _drop(self) -> None:
        """Kill the child, if there is one: between two questions it has nothing to lose."""
        with self._guard:
            child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                cast(IO[bytes], pipe).close()
        child.wait()


def _speaks(source: IO[bytes], timeout_s: float) -> bool:
    """Return whether there is something to read, or the end, within the time."""
    poller = select.poll()
    poller.register(source, select.POLLIN | select.POLLHUP)
    return bool(poller.poll(timeout_s * 1000))
