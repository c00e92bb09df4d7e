"""Makes ids at the edge, and tells them from names where either may be given.

They are UUIDv7, ordered by time, so that new rows land at the end of an index.
"""

import os
import re
import threading
import time
from typing import Final
from uuid import UUID

CHANCE_BYTES = 4_096
"""Random bytes fetched at once: a call of the kernel for each id gives the interpreter away."""

_CANONICAL: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

_lock = threading.Lock()
_last_ms = 0
_counter = 0
_chance = b""
_used = 0


def new_id() -> UUID:
    """Return a fresh UUIDv7 that sorts after every one made before it in this process.

    Source:
        RFC 9562, section 5.7, with the monotonic counter of section 6.2, method 1 (12 bits).
    """
    global _last_ms, _counter
    with _lock:
        now = time.time_ns() // 1_000_000
        if now > _last_ms:
            _last_ms, _counter = now, int.from_bytes(_take(2)) & 0x7FF
        else:
            _counter += 1
            if _counter > 0xFFF:
                _last_ms, _counter = _last_ms + 1, 0
        value = (_last_ms & (2**48 - 1)) << 80 | 0x7 << 76 | _counter << 64
        tail = int.from_bytes(_take(8)) >> 2
    return UUID(int=value | 0b10 << 62 | tail)


def find_id(text: str) -> UUID | None:
    """Return the id that a text is, None for a name.

    Only the form 8-4-4-4-12 is one: `UUID()` takes any 32 hexadecimal digits, with hyphens
    anywhere, and names may be such.
    """
    return UUID(text) if _CANONICAL.fullmatch(text) else None


def _take(count: int) -> bytes:
    """Return so many random bytes that nobody was given before; the lock is held."""
    global _chance, _used
    if _used + count > len(_chance):
        _chance, _used = os.urandom(CHANCE_BYTES), 0
    _used += count
    return _chance[_used - count : _used]


def _forget_chance() -> None:
    """Let a forked child fetch bytes of its own, so that its ids are not its parent's."""
    global _chance, _used, _lock
    _chance, _used, _lock = b"", 0, threading.Lock()


os.register_at_fork(after_in_child=_forget_chance)
