"""Exact cost: price times amount times duration in integers, rounded once for each line.

Owns the units of priced amounts and the rounding; never looks a price up.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.amounts import MIB_PER_GIB, MS_PER_HOUR, WHOLE_GPU_MILLI, divide_half_even

CPU_ITEM = "cpu"
"""Priced per core-hour."""
MEMORY_ITEM = "memory"
"""Priced per GiB-hour."""

_PROFILE = re.compile(r"^(?:\d+c\.)?(\d+)g\.")


class Resource(StrEnum):
    """What is paid for; a GPU's price has the name of its model."""

    GPU = "gpu"
    CPU = CPU_ITEM
    MEMORY = MEMORY_ITEM


UNITS = {
    Resource.GPU: WHOLE_GPU_MILLI * MS_PER_HOUR,
    Resource.CPU: 1000 * MS_PER_HOUR,
    Resource.MEMORY: MIB_PER_GIB * MS_PER_HOUR,
}
"""Amount-milliseconds (milli-GPU, milli-CPU, MiB) in the hour that a price is for."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """One line of a bill: one resource at one price.

    Args:
        item: A GPU model, `cpu` or `memory`.
        quantity: Milli-GPU, milli-CPU or MiB, times milliseconds.
        price_micro: Per GPU-hour, core-hour or GiB-hour; None where no price is known.
        cost_micro: Rounded half to even, once; 0 where no price is known.
    """

    resource: Resource
    item: str
    quantity: int
    currency: str
    price_micro: int | None
    cost_micro: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Lines, and their sum for each currency."""

    lines: tuple[CostLine, ...] = ()

    @property
    def totals(self) -> dict[str, int]:
        """Return micro-units by currency, of the lines that have a price."""
        totals: dict[str, int] = {}
        for line in self.lines:
            if line.price_micro is not None:
                totals[line.currency] = totals.get(line.currency, 0) + line.cost_micro
        return totals

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Return the items that were used and have no price, sorted."""
        return tuple(sorted({line.item for line in self.lines if line.price_micro is None}))

    def total_micro(self, currency: str) -> int:
        """Return the sum of one currency."""
        return self.totals.get(currency, 0)

    def known_micro(self, currency: str) -> int | None:
        """Return the sum of one currency, None where nothing of what was used has a price."""
        return None if self.lines and not self.totals else self.total_micro(currency)


def compute_cost_micro(price_micro: int, quantity: int, resource: Resource) -> int:
    """Return what a quantity costs in micro-units, rounded half to even.

    Args:
        price_micro: Per GPU-hour, core-hour or GiB-hour, at least 0.
        quantity: Milli-GPU, milli-CPU or MiB, times milliseconds, at least 0.
        resource: Which of the three.

    Raises:
        ValueError: If price or quantity is negative.
    """
    if price_micro < 0 or quantity < 0:
        raise ValueError(f"price {price_micro} and quantity {quantity} must not be negative")
    return divide_half_even(price_micro * quantity, UNITS[resource])


def split_by_largest_remainder(total: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Return integer parts of a total in proportion to weights; the parts add up to the total.

    Ties go to the earlier part. With no weight at all the first part takes everything.

    Args:
        total: What is split, at least 0.
        weights: One for each part, each at least 0, at least one part.

    Raises:
        ValueError: If there is no part, or a number is negative.
    """
    if not weights or total < 0 or min(weights) < 0:
        raise ValueError("split needs a total of at least 0 and weights of at least 0")
    whole = sum(weights)
    if whole == 0:
        return (total, *(0 for _ in weights[1:]))
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return tuple(parts)


def mig_share_milli(profile: str, mig_slices: int) -> int:
    """Return the share of a GPU that a MIG profile is billed as: its part of the compute slices.

    Rounded down, so that the instances of one GPU never add up to more than the GPU.

    Args:
        profile: Such as `3g.40gb`, `1g.10gb+me` or `1c.3g.40gb` (billed as its GPU instance).
        mig_slices: Compute slices of the model (7, or 4 on A30).

    Raises:
        ValueError: If the profile is not one, or larger than the GPU.
    """
    found = _PROFILE.match(profile)
    slices = int(found.group(1)) if found else 0
    if not 0 < slices <= mig_slices:
        raise ValueError(f"{profile!r} is no MIG profile of a GPU with {mig_slices} slices")
    return slices * WHOLE_GPU_MILLI // mig_slices


def merge_lines(lines: Iterable[CostLine]) -> tuple[CostLine, ...]:
    """Return lines sorted, those of one item at one price merged and rounded once."""
    sums: dict[tuple[str, str, str, int], int] = {}
    for line in lines:
        price = -1 if line.price_micro is None else line.price_micro
        key = (str(line.resource), line.item, line.currency, price)
        sums[key] = sums.get(key, 0) + line.quantity
    merged = []
    for (name, item, currency, price), quantity in sorted(sums.items()):
        resource = Resource(name)
        if price < 0:
            merged.append(CostLine(resource, item, quantity, currency, None, 0))
        else:
            cost = compute_cost_micro(price, quantity, resource)
            merged.append(CostLine(resource, item, quantity, currency, price, cost))
    return tuple(merged)
