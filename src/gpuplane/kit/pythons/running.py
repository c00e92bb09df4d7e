"""Runs one piece of user Python: starts the child, feeds it, watches it, says how it ended.

Owns the process, its folder and its pipes from start to end, whatever happens in between. Never
compiles or evaluates what the user wrote in this process.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuplane.kit.pythons.limits import MIB, PythonLimits, PythonResult, PythonWord

PREFIX = "gpuplane-python-"
STOP_RATIO = 16
"""Who prints so many times what is kept is stopped."""
LOOK_AT_DISK_S = 0.2
FRAME_BYTES = 4_096
"""What an answer has beside its result."""
CHUNK = 1 << 16
_ROOT = str(Path(__file__).parents[3])
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from gpuplane.kit.pythons.child import main; sys.path.pop(0); "
    "[sys.modules.pop(n) for n in list(sys.modules) if n.partition('.')[0] == 'gpuplane']; main()"
)
_is_swept = False


@dataclass(slots=True)
class _Run:
    """What is known of a run that is under way."""

    process: asyncio.subprocess.Process
    limits: PythonLimits
    folder: str
    output: bytearray = field(default_factory=bytearray)
    printed: int = 0
    answer: bytearray = field(default_factory=bytearray)
    stopped: tuple[PythonWord, str] | None = None

    def stop(self, word: PythonWord, message: str) -> None:
        """Kill it; the first reason is the one that is told."""
        if self.stopped is None:
            self.stopped = (word, message)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


async def run_python(
    source: str, inputs: Mapping[str, Any], limits: PythonLimits | None = None
) -> PythonResult:
    """Run `main(**inputs)` of the source, or the source as a script that sets `result`.

    It runs in a fresh interpreter with the standard library alone: no environment, an empty
    folder, no further processes, no network unless granted, no files of others. However it ends,
    the process is gone when this returns or is cancelled.
    """
    limits = limits or PythonLimits()
    try:
        request = {"source": source, "inputs": dict(inputs), "limits": asdict(limits),
                   "result_bytes": limits.result_bytes}  # fmt: skip
        size = len(json.dumps(request, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        return PythonResult(PythonWord.INPUT_NOT_JSON, f"Its inputs are no JSON: {error}.")
    if size > limits.input_bytes:
        return PythonResult(
            PythonWord.INPUT_TOO_LARGE,
            f"Source and inputs have {size} bytes; {limits.input_bytes} are allowed.",
        )
    folder = await asyncio.to_thread(_make_folder)
    try:
        return await _run(json.dumps({**request, "folder": folder}).encode(), limits, folder)
    finally:
        await asyncio.shield(asyncio.to_thread(_remove, folder))


async def _run(request: bytes, limits: PythonLimits, folder: str) -> PythonResult:
    reading, writing = os.pipe()
    began = time.monotonic()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, _ROOT, str(writing),
            str(os.getpid()),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={}, cwd=folder, start_new_session=True, pass_fds=(writing,),
        )  # fmt: skip
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    run = _Run(process, limits, folder)
    try:
        await _follow(run, request, reading)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
    return _result(run, int((time.monotonic() - began) * 1000))


async def _follow(run: _Run, request: bytes, reading: int) -> None:
    """Feed the child and read from it until it is over or has to be stopped."""
    loop = asyncio.get_running_loop()
    answers = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(answers), os.fdopen(reading, "rb", 0)
    )
    watch = asyncio.create_task(_watch_disk(run))
    try:
        async with asyncio.timeout(run.limits.wall_s):
            await asyncio.gather(
                _feed(run, request), _read_output(run), _read_answer(run, answers),
                run.process.wait(),
            )  # fmt: skip
    except TimeoutError:
        run.stop(PythonWord.TIMED_OUT, f"It was stopped after {run.limits.wall_s:g} s.")
    finally:
        watch.cancel()
        transport.close()


async def _feed(run: _Run, request: bytes) -> None:
    stdin = run.process.stdin
    assert stdin is not None
    if stdin.is_closing():
        return  # it has ended already, and uvloop takes no write any more
    with contextlib.suppress(ConnectionError):
        stdin.write(request)
        await stdin.drain()
    stdin.close()


async def _read_output(run: _Run) -> None:
    stdout, limit = run.process.stdout, run.limits.output_bytes
    assert stdout is not None
    while data := await stdout.read(CHUNK):
        run.printed += len(data)
        run.output += data[: limit - len(run.output)]
        if run.printed > STOP_RATIO * limit:
            run.stop(
                PythonWord.TOO_MUCH_OUTPUT, f"It printed more than {STOP_RATIO * limit} bytes."
            )


async def _read_answer(run: _Run, answers: asyncio.StreamReader) -> None:
    most = run.limits.result_bytes + FRAME_BYTES
    while data := await answers.read(CHUNK):
        run.answer += data[: most + 1 - len(run.answer)]
        if len(run.answer) > most:
            run.stop(
                PythonWord.RESULT_TOO_LARGE,
                f"It answered more than {run.limits.result_bytes} bytes.",
            )


async def _watch_disk(run: _Run) -> None:
    most = run.limits.disk_mib * MIB
    while True:
        await asyncio.sleep(LOOK_AT_DISK_S)
        if await asyncio.to_thread(_size_of, run.folder, most) > most:
            run.stop(
                PythonWord.DISK_EXCEEDED, f"Its files have more than {run.limits.disk_mib} MiB."
            )


def _size_of(folder: str, most: int) -> int:
    """Return the bytes of all files below a folder, or of enough of them to be over the most."""
    total, left = 0, [folder]
    while left and total <= most:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
    return total


def _result(run: _Run, duration_ms: int) -> PythonResult:
    # NUL has no place in the columns that output is kept in.
    output = run.output.decode(errors="replace").replace("\0", "\ufffd")
    if run.printed > len(run.output):
        output += f"\n[cut after {len(run.output)} bytes]\n"
    isolation, answer = _answers(bytes(run.answer))
    if run.stopped is not None:
        word, message, result = *run.stopped, None
    elif answer is None:
        word, message, result = *_end(run, duration_ms / 1000), None
    elif answer.get("word") == PythonWord.COMPLETED:
        word, message, result = PythonWord.COMPLETED, "", answer.get("result")
    else:
        word, message, result = PythonWord(answer["word"]), answer["message"], None
    return PythonResult(word, message, result, output, duration_ms, isolation)


def _answers(data: bytes) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Return what is enforced and the last answer; user code could have written anything there."""
    first, _, rest = data.partition(b"\n")
    isolation: dict[str, str] = {}
    with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError):
        told = json.loads(first).get("isolation")
        if told is None:
            rest = data
        else:
            isolation = {str(name): str(each) for name, each in told.items()}
    try:
        answer = json.loads(rest, parse_constant=_refuse_constant)
        json.dumps(answer, ensure_ascii=False).encode()  # lone surrogates cannot be stored
        PythonWord(answer["word"])
        if answer["word"] != PythonWord.COMPLETED:
            answer["message"] = str(answer["message"])
    except UnicodeEncodeError:
        word = PythonWord.RESULT_NOT_JSON
        return isolation, {"word": word, "message": "Its result holds half characters."}
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
        return isolation, None
    return isolation, answer


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _end(run: _Run, elapsed_s: float) -> tuple[PythonWord, str]:
    """Return how a process ended that gave no answer."""
    code = run.process.returncode or 0
    if code >= 0:
        return PythonWord.NO_RESULT, f"It ended with code {code} and without a result."
    # Who ignores SIGXCPU is killed a second later.
    if -code == signal.SIGXCPU or (-code == signal.SIGKILL and elapsed_s >= run.limits.cpu_s):
        return (
            PythonWord.CPU_TIME_EXCEEDED,
            f"The kernel stopped it after {run.limits.cpu_s} s of processor time.",
        )
    name = _signal_name(-code)
    return PythonWord.CRASHED, f"It was ended by {name}."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _make_folder() -> str:
    global _is_swept
    if not _is_swept:
        _is_swept = True
        _sweep()
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")


def _sweep() -> None:
    """Remove folders of servers that were killed before they could."""
    for each in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = each.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _remove(str(each))


def _remove(folder: str) -> None:
    """Remove a folder, however deep it is nested and whatever its modes are."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        # Deep trees exhaust the recursion of shutil, and folders may have been closed by chmod.
        tools = {"PATH": "/usr/bin:/bin"}
        for command in (["chmod", "-R", "u+rwX", folder], ["rm", "-rf", folder]):
            subprocess.run(command, check=False, env=tools, capture_output=True)
