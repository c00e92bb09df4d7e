"""Waiting for files to change by inotify, on the event loop; idle costs nothing.

One inotify instance for a backend. Where the machine grants none (`max_user_instances`), waiting
falls back to looking every 200 ms, which `Watcher.is_event_driven` tells.
"""

import asyncio
import contextlib
import ctypes
import os
import struct
from pathlib import Path

IN_MODIFY = 0x2
IN_CLOSE_WRITE = 0x8
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
_EVENT = struct.Struct("iIII")
_READ_BYTES = 65_536
_LOOK_S = 0.2


class Watcher:
    """Watches folders and wakes whoever waits for one of them."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: dict[int, set[Watch]] = {}

    @property
    def is_event_driven(self) -> bool:
        return self._handle >= 0

    def watch(self, *targets: tuple[Path, int]) -> "Watch":
        """Return a watch on (folder or file, event mask) pairs; close it when done."""
        descriptors = [-1]
        if self._handle >= 0:
            descriptors = [
                self._libc.inotify_add_watch(self._handle, os.fsencode(path), mask)
                for path, mask in targets
            ]
        watch = Watch(self, descriptors)
        for descriptor in descriptors:
            self._watches.setdefault(descriptor, set()).add(watch)
        return watch

    def attach(self) -> None:
        """Listen on the running event loop."""
        loop = asyncio.get_running_loop()
        if self._handle >= 0 and self._loop is not loop:
            loop.add_reader(self._handle, self._read)
            self._loop = loop

    def drop(self, watch: "Watch") -> None:
        """Forget a watch; the kernel's is removed with the last one on it."""
        for descriptor in watch.descriptors:
            watches = self._watches.get(descriptor, set())
            watches.discard(watch)
            if not watches:
                self._watches.pop(descriptor, None)
                if self._handle >= 0:
                    self._libc.inotify_rm_watch(self._handle, descriptor)

    def close(self) -> None:
        if self._handle >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._handle, _READ_BYTES)
            at = 0
            while at < len(data):
                descriptor, _, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                # A negative descriptor says that events were lost: everyone looks again.
                woken = self._watches.keys() if descriptor < 0 else (descriptor,)
                for key in list(woken):
                    for watch in tuple(self._watches.get(key, ())):
                        watch.wake()


class Watch:
    """One interest in some paths. A change between two waits is not lost."""

    def __init__(self, watcher: Watcher, descriptors: list[int]) -> None:
        self.descriptors = descriptors
        self._watcher = watcher
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Let everyone who waits go on."""
        self._changed.set()

    async def changed(self, timeout_s: float) -> None:
        """Return when something changed since the last return, or after timeout_s."""
        self._watcher.attach()
        if min(self.descriptors) < 0:
            timeout_s = min(timeout_s, _LOOK_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    def close(self) -> None:
        self._watcher.drop(self)
