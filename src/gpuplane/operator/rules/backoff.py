"""How long a workload that found no node waits before it is tried again.

Source: operator document, "Backoff Helper": base * 2^attempt + 0 to 10 %, five minutes at most.
"""

CAP_MS = 300_000
CHANCE_STEPS = 1_000_000
"""Chance is drawn as a whole number below this."""


def compute_wait_ms(base_s: int, attempt: int, chance: int) -> int:
    """Return the wait before the next try in milliseconds, five minutes at most with its jitter.

    Args:
        base_s: The workload's base in seconds, at least 1.
        attempt: Tries that were waited for before, from 0.
        chance: A whole number in [0, `CHANCE_STEPS`), drawn by the caller.

    Raises:
        ValueError: If an argument is out of its range.
    """
    if base_s < 1 or attempt < 0 or not 0 <= chance < CHANCE_STEPS:
        raise ValueError(f"no wait follows from base {base_s}, try {attempt}, chance {chance}")
    # Twenty doublings of a second are twelve days: beyond, only the number would grow.
    plain_ms = min(base_s * 1000 << min(attempt, 20), CAP_MS)
    return min(plain_ms + plain_ms * chance // (10 * CHANCE_STEPS), CAP_MS)
