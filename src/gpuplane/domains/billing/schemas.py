"""API bodies of the price book and of use with its cost."""

from typing import Annotated
from uuid import UUID

from pydantic import Field, WithJsonSchema

from gpuplane.core.pricing.cost import Resource
from gpuplane.kit.bodies import Body, InstantIn, InstantOut, MoneyIn, MoneyOut

Currency = Annotated[
    str, Field(pattern="^[A-Z]{3}$"), WithJsonSchema({"type": "string", "pattern": "^[A-Z]{3}$"})
]


class PriceIn(Body):
    """A price to add; it holds from `valid_from` (now) until a later one begins."""

    item: Annotated[str, Field(min_length=1, max_length=100)]
    """A GPU model by any of its names (per GPU-hour), `cpu` (per core-hour) or `memory`
    (per GiB-hour)."""
    price: MoneyIn
    currency: Currency = "USD"
    cluster: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Id or name; absent: every cluster that has no price of its own."""
    valid_from: InstantIn | None = None


class PriceOut(Body):
    """One entry of the price book."""

    id: UUID
    cluster_id: UUID | None
    item: str
    unit: str
    currency: str
    price: MoneyOut
    valid_from: InstantOut
    created_at: InstantOut
    created_by: str


class PricesOut(Body):
    """The price book with its history, by item and start."""

    items: list[PriceOut]
    cluster_names: dict[UUID, str]
    """What the clusters of `items` are called; a deleted one says so."""


class CostLineOut(Body):
    """One item at one price; `price` is absent where none is known, and nothing is charged."""

    resource: Resource
    item: str
    hours: float
    """GPU-hours, core-hours or GiB-hours, for people; the cost is exact."""
    currency: str
    price: MoneyOut | None
    cost: MoneyOut


class UsageRowOut(Body):
    """One group's use and what it costs. Seconds are of whole GPUs, cores and GiB."""

    keys: dict[str, str | None]
    simulated: bool
    gpu_busy_s: float
    gpu_idle_s: float
    gpu_reserved_s: float
    gpu_billable_s: float
    cpu_core_s: float
    memory_gib_s: float
    lines: list[CostLineOut]
    cost: dict[str, MoneyOut]
    """By currency."""
    unpriced: list[str]


class UsageOut(Body):
    """Use within a window by group; `cost` is of the real rows alone."""

    from_at: InstantOut
    to_at: InstantOut
    group_by: list[str]
    rows: list[UsageRowOut]
    cost: dict[str, MoneyOut]
    simulated_cost: dict[str, MoneyOut]
    cluster_names: dict[str, str]
    """Names of the clusters among the keys by their ids, of those that were deleted too."""
