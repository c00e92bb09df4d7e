"""Keeps a rig running in the background for others, until it is told to end.

The keeper is a process of its own session: it outlives the shell that started it, and takes every
part of the rig along when it ends. With a process to end with (a test run) it watches that one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rig.api import Object
from rig.binaries import find_binaries
from rig.processes import RigFailed, is_alive
from rig.rigs import Rig, RigPlan, clean_folder, find_rig, remove_abandoned_folders

PROJECT = Path(__file__).parents[1]
START_S = 300.0  # seconds on an idle machine; test runs share theirs with everything else
STOP_S = 60.0
WATCH_S = 1.0
LOG = "keeper.log"
PID = "keeper.pid"
LOCK = "lock"  # held by whoever starts a keeper in a folder that several may want


def ensure_kept(folder: Path, arguments: list[str]) -> Object:
    """Return the state of the rig in a folder, started once however many ask at a time.

    Raises:
        RigFailed: If it does not come up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return find_rig(folder) or start_keeper(folder, arguments)


def start_keeper(folder: Path, arguments: list[str]) -> Object:
    """Start a keeper with a rig in a folder and wait until it is up; returns the rig's state.

    Raises:
        RigFailed: If it does not come up, with the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rig", "keep", "--folder", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=PROJECT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        state = find_rig(folder)
        if state is not None:
            return state
        if process.poll() is not None:
            break
        time.sleep(0.1)
    process.terminate()
    raise RigFailed(f"the rig did not start: {(folder / LOG).read_text()[-3000:]}")


def keep_rig(
    folder: Path, plan: RigPlan, until_gone: int | None, announce: Callable[[str], None]
) -> None:
    """Start a rig here and keep it until SIGTERM, Ctrl-C or the end of another process.

    Raises:
        BinariesUnavailable: If its programs are not on this machine.
        RigFailed: If it does not come up, or one runs in the folder.
    """
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    binaries = find_binaries(plan.more)
    remove_abandoned_folders()
    folder.mkdir(parents=True, exist_ok=True)
    clean_folder(folder, keep=(LOG, LOCK))
    (folder / PID).write_text(str(os.getpid()))
    rig = Rig(folder.resolve(), plan)
    rig.start(binaries, announce)
    try:
        while not over.wait(WATCH_S):
            if until_gone is not None and not is_alive(until_gone):
                return
    finally:
        rig.stop()
        clean_folder(folder)
        if until_gone is not None:  # the folder was made for that process
            shutil.rmtree(folder, ignore_errors=True)


def stop_keeper(folder: Path) -> bool:
    """End the rig in a folder and wait until it is gone; False where none runs.

    Raises:
        RigFailed: If it does not end.
    """
    state = find_rig(folder)
    if state is None:
        return False
    os.kill(state["pid"], signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline:
        if not is_alive(state["pid"]):
            return True
        time.sleep(0.05)
    raise RigFailed(f"the rig's keeper (process {state['pid']}) does not end")
