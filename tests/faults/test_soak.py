"""Three hundred kills at random moments: what `make soak` adds to the thirty of `make test`."""

from __future__ import annotations

import random

import pytest

from tests.faults.soak import soak

KILLS = 300


@pytest.mark.soak
async def test_nothing_is_lost_or_run_twice_over_three_hundred_random_kills() -> None:
    assert await soak(KILLS, random.SystemRandom().randrange(2**32)) == 0
