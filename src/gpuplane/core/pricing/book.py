"""The price book as a value: which price holds where and when.

Owns the choice among prices; never the arithmetic on them (`cost`) nor their storage.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from gpuplane.core.ids import ClusterId
from gpuplane.core.pricing.cost import CostLine, Resource, compute_cost_micro

DEFAULT_CURRENCY = "USD"
"""The currency of a line without a price."""


@dataclass(frozen=True, slots=True)
class Price:
    """One entry of the book; never changed, only followed by a later one.

    Args:
        cluster_id: Where it holds; None for every cluster that has no price of its own.
        item: Canonical GPU model, `cpu` (per core-hour) or `memory` (per GiB-hour).
        price_micro: Micro-units of the currency per hour.
        valid_from: From when on, ms since the epoch.
    """

    id: UUID
    cluster_id: ClusterId | None
    item: str
    currency: str
    price_micro: int
    valid_from: int
    created_at: int
    created_by: str


class PriceBook:
    """All prices that may matter for one calculation."""

    def __init__(self, prices: Iterable[Price]) -> None:
        """Sort the prices; of two that begin at one instant the later written one holds."""
        self._rows: dict[tuple[ClusterId | None, str], list[Price]] = {}
        ordered = sorted(prices, key=lambda each: (each.valid_from, each.created_at, each.id))
        for price in ordered:
            self._rows.setdefault((price.cluster_id, price.item), []).append(price)
        self._starts = sorted({price.valid_from for price in ordered})

    def find_price(self, cluster_id: ClusterId | None, item: str, at: int) -> Price | None:
        """Return the price in force at an instant, the cluster's own before the general one."""
        for scope in (cluster_id, None):
            rows = self._rows.get((scope, item), [])
            index = bisect_right(rows, at, key=lambda price: price.valid_from)
            if index:
                return rows[index - 1]
        return None

    def epochs(self, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """Return the stretches of [start, end) within which no price changes, in order."""
        cuts = [start, *(at for at in self._starts if start < at < end), end]
        return tuple((low, high) for low, high in pairwise(cuts) if low < high)

    def line(
        self, cluster_id: ClusterId | None, resource: Resource, item: str, quantity: int, at: int
    ) -> CostLine:
        """Return the line for a quantity used at an instant's price."""
        price = self.find_price(cluster_id, item, at)
        if price is None:
            return CostLine(resource, item, quantity, DEFAULT_CURRENCY, None, 0)
        cost = compute_cost_micro(price.price_micro, quantity, resource)
        return CostLine(resource, item, quantity, price.currency, price.price_micro, cost)
