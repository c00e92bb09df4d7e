"""Loopback ports that nobody else takes between being chosen and being listened on.

Rigs start beside each other, and a program may be killed and started again on its port: asking
whether a port is free is not enough. Each port chosen here is held by a lock on a file of its own
until the process that chose it ends. It never listens itself.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

CHOICES = range(10_000, 60_000)
WANTED = 1_000  # fewer to choose from than this would make it a search
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOCKS = "gpuplane-ports-"  # then the user: others cannot lock our files

_held: dict[int, int] = {}  # port → descriptor, open as long as this process lives


class NoFreePort(Exception):
    """Every port that may be chosen is taken."""


def find_free_port() -> int:
    """Return a loopback port that nobody listens on and no other rig has chosen.

    It lies outside the ports that Linux gives to outgoing connections: one of those could take it
    while its server is killed and not yet started again.

    Raises:
        NoFreePort: If all are taken.
    """
    folder = Path(tempfile.gettempdir(), f"{LOCKS}{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for port in _draws(_choices(OUTGOING)):
        if port not in _held and _hold(folder, port):
            return port
    raise NoFreePort(f"no port of {CHOICES.start} to {CHOICES.stop - 1} is free")


def _choices(outgoing: Path) -> Sequence[int]:
    """Return the ports to choose from: those outside `ip_local_port_range` where enough are."""
    try:
        first, last = map(int, outgoing.read_text().split())
    except (OSError, ValueError):
        return CHOICES
    outside = [port for port in CHOICES if not first <= port <= last]
    return outside if len(outside) >= WANTED else CHOICES


def _draws(choices: Sequence[int]) -> Iterator[int]:
    yield from secrets.SystemRandom().sample(choices, len(choices))


def _hold(folder: Path, port: int) -> bool:
    """Lock a port for this process; say no where another has it or somebody listens."""
    try:
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return False
    with closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            os.close(lock)
            return False
    _held[port] = lock
    return True
