"""Makes ids at the edge: UUIDv7, ordered by time, so that new rows land at the end of an index."""

import os
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last_ms = 0
_counter = 0


def new_id() -> UUID:
    """Return a fresh UUIDv7 that sorts after every one made before it in this process.

    Source:
        RFC 9562, section 5.7, with the monotonic counter of section 6.2, method 1 (12 bits).
    """
    global _last_ms, _counter
    with _lock:
        now = time.time_ns() // 1_000_000
        if now > _last_ms:
            _last_ms, _counter = now, int.from_bytes(os.urandom(2)) & 0x7FF
        else:
            _counter += 1
            if _counter > 0xFFF:
                _last_ms, _counter = _last_ms + 1, 0
        value = (_last_ms & (2**48 - 1)) << 80 | 0x7 << 76 | _counter << 64
    return UUID(int=value | 0b10 << 62 | int.from_bytes(os.urandom(8)) >> 2)
