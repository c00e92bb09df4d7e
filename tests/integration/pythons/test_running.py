"""User Python in its process: what it answers, and what stops it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kit.pythons.limits import PythonLimits, PythonResult, PythonWord
from gpuplane.kit.pythons.running import PREFIX, run_python
from tests.accepting import accepting
from tests.waiting import wait_until

# Generous where it only bounds a failure of the test: what stops each case is its own limit.
CALM = PythonLimits(wall_s=60, cpu_s=20)


async def run(source: str, limits: PythonLimits = CALM, **inputs: Any) -> PythonResult:
    return await run_python(textwrap.dedent(source), inputs, limits)


def folders(place: Path) -> list[Path]:
    return list(place.glob(f"{PREFIX}*"))


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


async def test_main_gets_the_inputs_and_its_value_is_the_result() -> None:
    found = await run("def main(a, b): return {'sum': a + b}", a=1, b=2)
    assert (found.word, found.result) == (PythonWord.COMPLETED, {"sum": 3})
    assert found.isolation["processes"] == found.isolation["network"] == "enforced"


async def test_a_script_sets_result() -> None:
    found = await run("print('hello')\nresult = [each * 2 for each in inputs['each']]", each=[1, 2])
    assert (found.result, found.output) == ([2, 4], "hello\n")


async def test_threads_and_asyncio_work() -> None:
    found = await run("""
        import asyncio, threading
        seen = []
        thread = threading.Thread(target=lambda: seen.append(1))
        thread.start(); thread.join()
        async def three():
            await asyncio.sleep(0)
            return 3
        result = [*seen, asyncio.run(three())]
        """)
    assert found.result == [1, 3]


async def test_its_annotations_are_what_they_would_be_in_a_file_of_its_own() -> None:
    found = await run("def main(a: int = 1):\n    return main.__annotations__['a'] is int")
    assert found.result is True


ENDS = {
    "raises": ("def main():\n    raise ValueError('boom')", "Raised", "ValueError: boom (line 2)"),
    "is no Python": ("def main(:", "BadSource", "invalid syntax, line 1"),
    "defines nothing": ("x = 1", "BadSource", "neither main(...) nor result"),
    "ends itself": ("import sys\nsys.exit(3)", "Exited", "with 3"),
    "leaves without a word": ("import os\nos._exit(0)", "NoResult", "code 0"),
    "closes everything": ("import os\nos.closerange(0, 200)\nresult = 1", "NoResult", "without"),
    "forks": ("import os\nwhile True: os.fork()", "ProcessRefused", "may not start processes"),
    "starts a program": ("import subprocess\nsubprocess.run(['ls'])", "ProcessRefused", "line 2"),
    "calls out": (
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9/')",
        "NetworkRefused", "none was granted",
    ),
    "allocates": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "OutOfMemory", "memory"),
    "prints without end": ("while True: print('x' * 1000)", "TooMuchOutput", "1048576 bytes"),
    "writes a huge file": (
        "with open('f', 'wb') as f:\n    while True: f.write(bytes(1 << 20))",
        "FileTooLarge", "larger file",
    ),
    "writes many files": (
        "import itertools, time\nfor n in itertools.count():\n"  # noqa: ISC004 - one source
        "    open(str(n), 'wb').write(bytes(4 << 20)); time.sleep(0.01)",
        "DiskExceeded", "128 MiB",
    ),
    "returns five megabytes": ("result = 'x' * 5_000_000", "ResultTooLarge", "1048576"),
    "returns NaN": ("result = {'loss': float('nan')}", "ResultNotJson", "JSON"),
    "returns itself": ("result = []\nresult.append(result)", "ResultNotJson", "Circular"),
    "returns an object": ("result = object()", "ResultNotJson", "object"),
    "returns half a character": ("result = chr(0xd800)", "ResultNotJson", "half characters"),
    "nests without end": (
        "result = []\nfor _ in range(5000): result = [result]", "ResultNotJson", "nested",
    ),
    "ends by a signal": ("import ctypes\nctypes.string_at(0)", "Crashed", "SIGSEGV"),
}  # fmt: skip


@pytest.mark.parametrize("what", ENDS)
async def test_what_goes_wrong_has_a_word_and_a_sentence(what: str) -> None:
    source, word, part = ENDS[what]
    found = await run(source)
    assert found.word == word
    assert part in found.message
    assert found.result is None


@pytest.mark.parametrize("source", [
    "import time\ntime.sleep(600)",
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)",
    "import threading\nthreading.Event().wait()",
])  # fmt: skip
async def test_what_hangs_is_stopped_by_the_clock(source: str) -> None:
    found = await run(source, PythonLimits(wall_s=0.5))
    assert (found.word, found.message) == (PythonWord.TIMED_OUT, "It was stopped after 0.5 s.")


@pytest.mark.parametrize("before", [
    "", "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n",
])  # fmt: skip
async def test_what_spins_is_stopped_by_the_kernel(before: str) -> None:
    found = await run(before + "while True: pass", PythonLimits(wall_s=60, cpu_s=1))
    assert found.word is PythonWord.CPU_TIME_EXCEEDED


async def test_output_is_cut_and_the_cut_is_told() -> None:
    found = await run("print('y' * 100_000)\nresult = 1")
    assert found.result == 1
    assert found.output == "y" * 65_536 + "\n[cut after 65536 bytes]\n"


async def test_output_that_is_no_text_is_shown_as_text() -> None:
    found = await run("import sys\nsys.stdout.buffer.write(b'a\\x00\\xffb')\nresult = 1")
    assert found.output == "a\ufffd\ufffdb"


async def test_without_stdout_there_is_still_a_result() -> None:
    found = await run("import os, sys\nsys.stdout.close()\nos.close(2)\nresult = 5")
    assert found.result == 5


async def test_an_answer_written_past_the_interpreter_is_not_believed() -> None:
    forged = """
        import os
        for number in range(3, 64):
            try: os.write(number, b'{"word": "Completed", "result": NaN}')
            except OSError: pass
        os._exit(0)
        """
    assert (await run(forged)).word is PythonWord.NO_RESULT


async def test_inputs_that_are_no_json_or_too_many_start_nothing() -> None:
    assert (await run("result = 1", each=object())).word is PythonWord.INPUT_NOT_JSON
    small = PythonLimits(input_bytes=1_000)
    assert (await run("result = 1", small, each="x" * 1_000)).word is PythonWord.INPUT_TOO_LARGE


async def test_it_sees_no_environment_and_no_files_but_its_own(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    found = await run("""
        import os
        def main(path):
            tries = {}
            for each in (path, '/etc/passwd', f'/proc/{os.getppid()}/environ'):
                try: tries[each] = open(each).read()
                except OSError as error: tries[each] = error.strerror
            open('mine', 'w').write('x')
            return {'tries': list(tries.values()), 'env': sorted(os.environ),
                    'files': os.listdir()}
        """, path=str(secret))  # fmt: skip
    assert found.result == {
        "tries": ["Permission denied"] * 3, "env": ["LC_CTYPE"], "files": ["mine"],
    }  # fmt: skip
    assert found.isolation["files"] == "enforced"


async def test_it_can_neither_signal_the_server_nor_outlive_it() -> None:
    found = await run("""
        import ctypes, os
        def refused(call, *args):
            try: call(*args)
            except PermissionError: return True
        libc = ctypes.CDLL(None)
        result = [refused(os.kill, os.getppid(), 9), refused(os.killpg, os.getpgid(0), 9),
                  refused(os.pidfd_open, os.getppid()), libc.prctl(1, 0, 0, 0, 0)]
        """)
    assert found.result == [True, True, True, -1]


async def test_with_a_grant_it_reaches_the_network() -> None:
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readline())
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhi")
        await writer.drain()
        writer.close()

    async with accepting(answer) as port:
        found = await run(
            "import urllib.request\n"
            "def main(port): return urllib.request.urlopen(f'http://127.0.0.1:{port}/').read(2).decode()",
            PythonLimits(wall_s=60, network=True), port=port,
        )  # fmt: skip
    assert (found.result, seen) == ("hi", [b"GET / HTTP/1.1\r\n"])


@pytest.mark.parametrize("source", [
    "import os\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')\nresult = 1",
    "import os\nos.mkdir('d'); open('d/f', 'w'); os.chmod('d', 0)\nresult = 1",
])  # fmt: skip
async def test_its_folder_is_removed_whatever_it_left_there(source: str, tmp_path: Path) -> None:
    assert (await run(source)).result == 1
    assert folders(tmp_path) == []


def _processes_named(marker: str) -> list[int]:
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                line = (each / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line:
                found.append(int(each.name))
    return found


async def test_a_cancelled_call_leaves_no_process(tmp_path: Path) -> None:
    task = asyncio.create_task(run("import time\ntime.sleep(600)"))
    # The child is given the id of this process as its last argument.
    while not (left := _processes_named(f"\0{os.getpid()}\0")):
        await asyncio.wait([task], timeout=0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not set(left) & set(_processes_named(""))
    assert folders(tmp_path) == []


SERVER = """
import asyncio, os, sys, tempfile
from gpuplane.kit.pythons.running import run_python
tempfile.tempdir = sys.argv[1]
source = "import os, time\\nprint(os.getpid(), flush=True)\\ntime.sleep(600)"
async def main():
    task = asyncio.create_task(run_python(source, {}))
    while not list(os.scandir(sys.argv[1])):
        await asyncio.wait([task], timeout=0.01)
    print("started", flush=True)
    await task
asyncio.run(main())
"""


NEXT = """
import asyncio, sys, tempfile
from gpuplane.kit.pythons.running import run_python
tempfile.tempdir = sys.argv[1]
print(asyncio.run(run_python("result = 1", {})).result)
"""


def test_it_dies_with_the_server_and_its_folder_goes_at_the_next_start(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "started\n"
    left = wait_until(lambda: _processes_named(f"\0{server.pid}\0"), "the child is started")
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    server.stdout.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}/fd").is_dir() and
                               Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left),
               "the child is gone")  # fmt: skip
    assert len(folders(tmp_path)) == 1
    again = [sys.executable, "-c", NEXT, str(tmp_path)]
    assert subprocess.run(again, check=True, capture_output=True, text=True).stdout == "1\n"
    assert folders(tmp_path) == []


WITHOUT_FILTERS = """
import asyncio, ctypes, os, struct
from gpuplane.kit.pythons import confining
from gpuplane.kit.pythons.running import run_python
libc = ctypes.CDLL(None)
column, arch = confining._MACHINES[os.uname().machine]
prctl = confining._CALLS["prctl"][column]
lines = [(0x20, 0, 0, 0), (0x15, 0, 3, prctl), (0x20, 0, 0, 16), (0x15, 0, 1, 22),
         (0x06, 0, 0, 0x00050000 | 22), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, struct.pack("@HP", len(lines), ctypes.addressof(code)), 0, 0) == 0
found = asyncio.run(run_python("result = 1", {}))
print(found.word, found.message)
"""


def test_where_the_kernel_cannot_confine_it_nothing_is_run() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_FILTERS], capture_output=True, text=True)
    assert done.stdout == (
        "NotIsolated It was not started: the kernel accepts no filter of system calls.\n"
    )
