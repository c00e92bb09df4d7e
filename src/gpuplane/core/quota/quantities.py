"""Amounts of resources between Kubernetes' quantities and the exact units of the core.

GPUs and cores are thousandths, memory is MiB, every other resource is counted in whole pieces of
its base unit. Owns the arithmetic; never knows an object that carries such amounts.
"""

from decimal import Decimal
from typing import NamedTuple

from gpuplane.core.quantities import SUFFIXES, parse_quantity
from gpuplane.core.quota.specs import CPU, GPU, MEMORY

_MILLI = Decimal(1000)


class Amount(NamedTuple):
    """An amount in the core's unit, and whether the quantity was a whole number of it."""

    units: int
    exact: bool


def quantity_text(resource: str, amount: int) -> str:
    """Return an amount in the core's unit as Kubernetes writes it."""
    if resource in (GPU, CPU):
        whole, rest = divmod(amount, 1000)
        return f"{amount}m" if rest else str(whole)
    if resource == MEMORY:
        return f"{amount}Mi" if amount % 1024 else f"{amount // 1024}Gi"
    return str(amount)


def amount_of(resource: str, quantity: object) -> Amount:
    """Return what a quantity of a Kubernetes object is in the core's unit, rounded down.

    Args:
        resource: The resource's name; it decides the unit.
        quantity: Text such as `500m`, `64Gi`, `1e3`, or a number.

    Raises:
        BadQuantity: If it is no quantity.
    """
    exact = parse_quantity(quantity)
    if resource in (GPU, CPU):
        exact *= _MILLI
    elif resource == MEMORY:
        exact /= SUFFIXES["Mi"]
    units = int(exact.to_integral_value(rounding="ROUND_FLOOR"))
    return Amount(units, exact == units)
