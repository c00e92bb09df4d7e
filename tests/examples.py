"""How many examples a property test draws: its own number in `make test`, a part in `make check`.

`TEST_EXAMPLES_PERCENT` says which part. A change is checked against some examples each time it is
saved and against all of them before it is shared.
"""

from __future__ import annotations

import os

import hypothesis

PERCENT = int(os.environ.get("TEST_EXAMPLES_PERCENT", "100"))
FEWEST = 5


def share_of(count: int) -> int:
    """Return how many of so many examples are drawn here."""
    return max(FEWEST, count * PERCENT // 100)


def examples(count: int) -> hypothesis.settings:
    """Mark a property test that draws so many examples where all are drawn."""
    return hypothesis.settings(max_examples=share_of(count))
