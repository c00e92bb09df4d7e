"""Starts control planes quickly: each is forked from a process that has imported the product.

A child is a process of its own with its own memory, sockets and locks, as `gpuplane up` is; only
the second or two of imports are shared. Nothing of the product runs in the nursery itself.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

PRELOADED = ["tests.faults.preloaded"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


def start_plane(environment: Mapping[str, str], printed: Path) -> BaseProcess:
    """Start `gpuplane up` with these variables in a process of its own."""
    process = _context.Process(target=_serve, args=(dict(environment), str(printed)), daemon=True)
    process.start()
    return process


def _serve(environment: dict[str, str], printed: str) -> None:
    handle = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(handle, descriptor)
    faulthandler.register(signal.SIGUSR1)  # a plane that hangs can be asked where
    os.environ.clear()
    os.environ.update(environment)
    from gpuplane.entry.environment import load_settings
    from gpuplane.entry.server import serve

    raise SystemExit(serve(load_settings(os.environ)))
