"""Exact amounts: every resource is an integer in one unit, every instant integer milliseconds.

Owns the units and their conversions from what people write; never rounds in anyone's favour
silently: what does not fit a unit exactly is refused by the caller that parses it.
"""

from decimal import ROUND_HALF_EVEN, Decimal

WHOLE_GPU_MILLI = 1000
"""A whole GPU, in thousandths: shares are integers, so they add up exactly."""

MIB_PER_GIB = 1024
MS_PER_S = 1000
MS_PER_HOUR = 3_600_000
MICRO = 1_000_000
"""Money is counted in millionths of a currency unit."""


def gib_to_mib(gib: Decimal) -> int:
    """Return a size in GiB as MiB, rounded to the nearest whole MiB (half to even)."""
    return int((gib * MIB_PER_GIB).to_integral_value(ROUND_HALF_EVEN))


def cores_to_milli(cores: Decimal) -> int:
    """Return CPU cores as thousandths of a core, rounded to the nearest (half to even)."""
    return int((cores * 1000).to_integral_value(ROUND_HALF_EVEN))


def money_to_micro(amount: Decimal) -> int:
    """Return an amount of currency as micro-units, rounded half to even."""
    return int((amount * MICRO).to_integral_value(ROUND_HALF_EVEN))


def micro_to_money(micro: int) -> Decimal:
    """Return micro-units as an exact decimal amount of currency."""
    return Decimal(micro).scaleb(-6)


def money_words(micro: int) -> str:
    """Return micro-units as exact text with at least two decimals: `2.00`, `0.000417`."""
    whole, _, decimals = f"{micro_to_money(micro):.6f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"


def divide_half_even(numerator: int, denominator: int) -> int:
    """Return numerator / denominator rounded half to even, in integers.

    Raises:
        ValueError: If denominator is not positive.
    """
    if denominator <= 0:
        raise ValueError(f"denominator must be positive, got {denominator}")
    quotient, remainder = divmod(numerator, denominator)
    twice = 2 * remainder
    if twice > denominator or (twice == denominator and quotient % 2 == 1):
        quotient += 1
    return quotient
