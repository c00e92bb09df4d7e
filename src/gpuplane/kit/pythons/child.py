"""The process that runs user Python: reads the request, confines itself, runs, answers.

Started by `running` alone. The request comes on stdin, the answer leaves on a descriptor of its
own, stdout and stderr are the user's. Answers are JSON: `{"word", "message", "result"}`.
"""

from __future__ import annotations

import errno
import json
import os
import sys

from gpuplane.kit.pythons.confining import (
    CannotConfine,
    confine,
    die_with_parent,
    leave_root,
    limit_resources,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would take a tenth of the start
    from types import CodeType, TracebackType
    from typing import Any

NAME = "<function>"
MESSAGE_CHARACTERS = 2_000
_PROCESS_EVENTS = frozenset(
    {"os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system",
     "subprocess.Popen", "pty.spawn"}
)  # fmt: skip


class Answered(Exception):
    """The run is over with this word and sentence."""

    def __init__(self, word: str, message: str) -> None:
        super().__init__(word, message)
        self.word, self.message = word, message


def main() -> None:
    """Run one request and end the process."""
    answers, parent = int(sys.argv[1]), int(sys.argv[2])
    request = json.loads(sys.stdin.buffer.read())
    isolation: dict[str, str] = {}
    try:
        isolation = _confine(request, parent)
        _send(answers, {"isolation": isolation})
        result = _run(request["source"], request["inputs"])
        text = _as_json(result, request["result_bytes"])
    except CannotConfine as error:
        answer = {"word": "NotIsolated", "message": f"It was not started: {error}."}
    except Answered as error:
        answer = {"word": error.word, "message": error.message[:MESSAGE_CHARACTERS]}
    else:
        _flush()
        os.write(answers, b'{"word": "Completed", "result": ')
        _write(answers, text + b"}\n")
        os._exit(0)
    _flush()
    _send(answers, answer)
    # Threads of the user may still run; nothing waits for them.
    os._exit(1)


def _confine(request: dict[str, Any], parent: int) -> dict[str, str]:
    folder, limits = request["folder"], request["limits"]
    os.chdir(folder)
    leave_root(folder)
    die_with_parent(parent)  # after leave_root: the kernel forgets it when the user changes
    isolation = confine(folder, network=limits["network"])
    limit_resources(**{name: limits[name] for name in
                       ("cpu_s", "memory_mib", "file_mib", "open_files")})  # fmt: skip
    return isolation


def _run(source: str, inputs: dict[str, Any]) -> Any:
    """Return what the user's Python answers.

    Raises:
        Answered: If it did not come to an answer.
    """
    refused: set[str] = set()
    sys.addaudithook(lambda event, _: _notice(event, refused))
    names: dict[str, Any] = {"__name__": "__function__", "inputs": inputs}
    try:
        exec(_compiled(source), names)
        if callable(names.get("main")):
            return names["main"](**inputs)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise Answered("Exited", f"It ended itself with {error.code!r}.") from None
    except MemoryError:
        raise Answered("OutOfMemory", "It asked for more memory than it may have.") from None
    except Answered:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the user raises is the answer
        raise _told(error, refused) from None
    if "result" not in names:
        raise Answered("BadSource", "It defines neither main(...) nor result.")
    return names["result"]


def _compiled(source: str) -> CodeType:
    try:
        return compile(source, NAME, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        place = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise Answered("BadSource", f"It is no Python: {why}{place}.") from None
    except (RecursionError, MemoryError):
        raise Answered("BadSource", "It is nested too deeply to be compiled.") from None


def _notice(event: str, refused: set[str]) -> None:
    # Only for the word: what refuses is the filter of system calls.
    if event in _PROCESS_EVENTS:
        refused.add("ProcessRefused")
    elif event == "socket.__new__":
        refused.add("NetworkRefused")


def _told(error: BaseException, refused: set[str]) -> Answered:
    _print(error)
    place = _line_of(error.__traceback__)
    said = f"{type(error).__name__}: {_text_of(error)}{place}"
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EPERM and "ProcessRefused" in refused:
        return Answered("ProcessRefused", f"It may not start processes. {said}")
    # Clients wrap the error of the socket in one of their own.
    if "NetworkRefused" in refused and "Network is down" in str(error):
        return Answered("NetworkRefused", f"It has no network, for none was granted. {said}")
    if number == errno.EFBIG:
        return Answered("FileTooLarge", f"It wrote a larger file than it may. {said}")
    return Answered("Raised", said)


def _print(error: BaseException) -> None:
    try:
        import traceback

        first = error.__traceback__
        while first is not None and first.tb_frame.f_code.co_filename != NAME:
            first = first.tb_next
        traceback.print_exception(type(error), error, first, limit=-20)
    except BaseException:  # noqa: BLE001 - the user may have closed or replaced stderr
        return


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_CHARACTERS]
    except BaseException:  # noqa: BLE001 - the text is the user's code too
        return "(its text cannot be made)"


def _line_of(trace: TracebackType | None) -> str:
    line = 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" (line {line})" if line else ""


def _as_json(result: Any, limit: int) -> bytes:
    try:
        text = json.dumps(result, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise Answered("ResultNotJson", f"Its result is no JSON: {_text_of(error)}.") from None
    except RecursionError:
        raise Answered("ResultNotJson", "Its result is nested too deeply.") from None
    except MemoryError:
        raise Answered("OutOfMemory", "Its result needs more memory than it may have.") from None
    if len(text) > limit:
        raise Answered(
            "ResultTooLarge", f"Its result has {len(text)} bytes of JSON; {limit} are allowed."
        )
    return text


def _send(to: int, answer: dict[str, Any]) -> None:
    _write(to, json.dumps(answer).encode() + b"\n")


def _write(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data) :]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001 - the user may have closed or replaced it
            continue
