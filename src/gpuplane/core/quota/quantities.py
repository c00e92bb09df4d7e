"""Amounts of resources between Kubernetes' quantities and the exact units of the core.

GPUs and cores are thousandths, memory is MiB, every other resource is counted in whole pieces of
its base unit. Owns the arithmetic; never knows an object that carries such amounts.
"""

import re
from decimal import Decimal
from typing import NamedTuple

from gpuplane.core.quota.specs import CPU, GPU, MEMORY

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,2})|([a-zA-Z]*))")
_FACTORS = {
    "": Decimal(1),
    "n": Decimal(10) ** -9,
    "u": Decimal(10) ** -6,
    "m": Decimal(10) ** -3,
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
MAX_TEXT = 64
"""Longer than any quantity that an API server stores; bounds the arithmetic."""
_MIB = Decimal(2) ** 20
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
        ValueError: If it is no quantity.

    Source: kubernetes/apimachinery, pkg/api/resource/quantity.go (the grammar).
    """
    text = str(quantity) if isinstance(quantity, str | int | float) else ""
    match = _QUANTITY.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None or (match[3] or "") not in _FACTORS:
        raise ValueError(f"{quantity!r} is no quantity")
    base = Decimal(match[1])
    base *= Decimal(10) ** int(match[2]) if match[2] else _FACTORS[match[3] or ""]
    exact = base
    if resource in (GPU, CPU):
        exact = base * _MILLI
    elif resource == MEMORY:
        exact = base / _MIB
    units = int(exact.to_integral_value(rounding="ROUND_FLOOR"))
    return Amount(units, exact == units)
