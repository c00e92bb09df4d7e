"""Exact amounts as text."""

import pytest

from gpuplane.core.amounts import money_words


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "0.00"), (2_000_000, "2.00"), (417, "0.000417"), (10_000, "0.01"), (1_234_500, "1.2345")],
)
def test_money_is_told_exactly_with_at_least_two_decimals(micro: int, text: str) -> None:
    assert money_words(micro) == text
