"""The records of an attempt folder: names, format version and how they reach the disk.

Shared by supervisor and control plane. A record is JSON; writing it needs no `json` module,
whose import would cost a supervisor's start more than everything else it does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct

FORMAT = 1
"""Version of every record here. A control plane reads its own version and the one before."""

LOCK = "lock"
FATE = "fate.json"
STATE = "state.json"
LOST = "lost.json"
STOP = "stop"
PLAN = "plan.json"
EPOCH = "epoch"
CONTROL = "control"

START = "start"
NEVER = "never"

_LOCK = struct.Struct("hhqqi4x")
"""`struct flock`: type, whence, start, length, owner."""

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def encode(value: object) -> str:
    """Return JSON text of dicts, lists, tuples, strings, numbers, booleans and None."""
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(_escape(char) for char in value) + '"'
    if isinstance(value, dict):
        return "{" + ",".join(f"{encode(str(k))}:{encode(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(encode(item) for item in value) + "]"
    raise TypeError(f"no record holds a {type(value).__name__}")


def write_record(path: str, value: object) -> None:
    """Replace a record as a whole and durably."""
    write_whole(path, encode(value) + "\n")


def write_whole(path: str, text: str) -> None:
    """Replace a file's text as a whole, on disk before the new name is seen."""
    temporary = _write_temporary(path, text)
    os.rename(temporary, path)


def create_once(path: str, value: object) -> bool:
    """Create a record with its content in one step; False when the name is taken.

    A link is made of a complete file, so whoever reads the record never sees half of it and of
    two that try exactly one succeeds. The folder is synced: the name survives a power cut.
    """
    temporary = _write_temporary(path, encode(value) + "\n")
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    sync_folder(os.path.dirname(path))
    return True


def take_lock(path: str) -> int | None:
    """Return a descriptor that holds a file's lock until its last copy closes, or None.

    An open-file-description lock: like `flock` it is shared with forked children, and unlike it
    others can ask about it without taking it for a moment themselves.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        os.close(handle)
        return None
    return handle


def is_locked(path: str) -> bool:
    """Return whether another open file holds a file's lock."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, asked)
    finally:
        os.close(handle)
    return bool(_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def announce(path: str) -> None:
    """Tell whoever watches the folder of changes that an attempt has news.

    The file is made by the control plane and gone once the attempt is forgotten.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_temporary(path: str, text: str) -> str:
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        data = text.encode("utf-8", "surrogateescape")
        while data:
            data = data[os.write(handle, data) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    return temporary


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if " " <= char <= "~":
        return char
    code = ord(char)
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"
