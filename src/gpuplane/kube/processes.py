"""Runs one program with limits of time and memory and keeps what it says within bounds.

There is no shell and no terminal. Knows nothing of what the program is. What it is given in secret
goes by a file in memory that has no name in any folder, or, where the system has none, by one of
mode 0600 that is removed.
"""

import asyncio
import contextlib
import os
import resource
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STDOUT_BYTES = 64 << 20
STDERR_BYTES = 256 << 10
END_WITHIN_S = 5.0
"""What a program that is out of time gets to end by itself."""


class OutOfTime(Exception):
    """The program had not ended in its time, and was ended."""


class TooMuchSaid(Exception):
    """The program wrote more than is taken, and was ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended and what it wrote; of stderr the last part."""

    code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file for one program: its path there, and the number that must stay open for it."""

    path: str
    number: int | None


@contextmanager
def secret_file(data: bytes) -> Iterator[SecretFile]:
    """Keep something in a file that only the program which inherits it can read."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("secret", os.MFD_CLOEXEC)
        try:
            os.fchmod(number, 0o600)
            _write(number, data)
            yield SecretFile(f"/proc/self/fd/{number}", number)
        finally:
            os.close(number)
        return
    number, name = tempfile.mkstemp()  # mode 0600
    try:
        _write(number, data)
        os.close(number)
        yield SecretFile(name, None)
    finally:
        Path(name).unlink(missing_ok=True)


def _write(number: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]


async def run_program(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdin: bytes = b"",
    secrets: Sequence[SecretFile] = (),
    timeout_s: float,
    folder: Path | None = None,
    memory_mib: int | None = None,
) -> Ended:
    """Run a program to its end.

    Args:
        arguments: The program and its arguments.
        environment: All of it; nothing of ours is handed on.
        stdin: What it reads.
        secrets: Files that it may read.
        timeout_s: Then it is asked to end, and made to.
        folder: Where it runs.
        memory_mib: Data that it may have, its own code not counted; None for no bound. It holds
            before the program has read the end of `stdin`, for whatever it starts too, on Linux.

    Raises:
        OutOfTime: If it had not ended.
        TooMuchSaid: If it wrote too much.
        OSError: If it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
        pass_fds=[one.number for one in secrets if one.number is not None],
        cwd=folder,
        start_new_session=True,
    )
    try:
        if memory_mib is not None and process.returncode is None:
            _bound_memory(process.pid, memory_mib << 20)
        async with asyncio.timeout(timeout_s):
            _, stdout, stderr = await asyncio.gather(
                _feed(process, stdin), _take(process), _last(process.stderr)
            )
            code = await process.wait()
    except TimeoutError:
        raise OutOfTime(f"It had not ended after {timeout_s:g} s.") from None
    finally:
        await _end(process)
    if len(stdout) > STDOUT_BYTES:
        raise TooMuchSaid(f"It wrote more than {STDOUT_BYTES} bytes.")
    return Ended(code, stdout, stderr)


def _bound_memory(number: int, most: int) -> None:
    """Bound the data of a program that has just been started, in bytes.

    From outside, because what runs between fork and exec may not run in a process with threads. Not
    its address space, of which a program in Go reserves 700 MiB that it never uses.
    """
    if not hasattr(resource, "prlimit"):
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(number, resource.RLIMIT_DATA, (most, most))


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if process.stdin.is_closing():
            return  # it has ended already, and uvloop takes no write any more
        process.stdin.write(data)
        await process.stdin.drain()
        process.stdin.close()
        await process.stdin.wait_closed()


async def _take(process: asyncio.subprocess.Process) -> bytes:
    """Return what it writes; ends it when that is too much, and reads on to the end all the same.

    A pipe that nobody empties would keep the program from being waited for.
    """
    assert process.stdout is not None
    found = bytearray()
    while chunk := await process.stdout.read(64 << 10):
        if len(found) <= STDOUT_BYTES:
            found += chunk
            if len(found) > STDOUT_BYTES:
                _signal(process, signal.SIGKILL)
    return bytes(found)


async def _last(stream: asyncio.StreamReader | None) -> bytes:
    assert stream is not None
    found = bytearray()
    while chunk := await stream.read(64 << 10):
        found += chunk
        del found[:-STDERR_BYTES]
    return bytes(found)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Leave nothing of the program running, whatever happened to us."""
    if process.returncode is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(process, number)
        try:
            async with asyncio.timeout(END_WITHIN_S):
                await asyncio.gather(_last(process.stdout), _last(process.stderr), process.wait())
                return
        except TimeoutError:
            continue


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal the program and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
