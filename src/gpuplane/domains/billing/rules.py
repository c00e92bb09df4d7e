"""Pure decisions about prices and what a request will cost."""

from dataclasses import dataclass

from gpuplane.core.hardware import KNOWN_MODELS, find_model, nearest_models
from gpuplane.core.ids import ClusterId
from gpuplane.core.pricing.book import Price, PriceBook
from gpuplane.core.pricing.cost import (
    CPU_ITEM,
    MEMORY_ITEM,
    Cost,
    Resource,
    merge_lines,
    mig_share_milli,
)
from gpuplane.core.pricing.currencies import CURRENCIES, nearest_currencies
from gpuplane.core.workloads import ResourceRequest

MAX_PRICE_MICRO = 1_000_000_000_000
"""A million an hour: anything above is a slip of the pen."""
MIG_SLICES = 7


@dataclass(frozen=True, slots=True)
class BadField:
    """Why a price cannot hold: the field, the sentence and the fix."""

    field: str
    sentence: str
    fix: str


@dataclass(frozen=True, slots=True)
class NewPrice:
    """A price as asked for; `item` may be any name of a model."""

    item: str
    price_micro: int
    currency: str = "USD"
    cluster_id: ClusterId | None = None
    valid_from: int | None = None


def canonical_item(item: str) -> str | BadField:
    """Return the item's one name: a model's canonical name, `cpu` or `memory`."""
    if item.lower() in (CPU_ITEM, MEMORY_ITEM):
        return item.lower()
    model = find_model(item)
    if model is not None:
        return model.name
    near = ", ".join(nearest_models(item))
    return BadField(
        "item",
        f"{item!r} is neither a GPU model nor cpu nor memory.",
        f"Nearest models: {near}; or cpu, memory.",
    )


def find_fault(price: NewPrice) -> BadField | None:
    """Return what is wrong with a price's numbers, or None."""
    if not 0 <= price.price_micro <= MAX_PRICE_MICRO:
        return BadField(
            "price",
            f"A price per hour lies between 0 and {MAX_PRICE_MICRO // 1_000_000}.",
            "Give the price of one GPU-hour, core-hour or GiB-hour.",
        )
    if price.currency not in CURRENCIES:
        near = ", ".join(nearest_currencies(price.currency))
        return BadField(
            "currency",
            f"{price.currency[:20]!r} is no currency code of ISO 4217.",
            f"Nearest codes: {near}.",
        )
    return None


def is_followed(price: NewPrice, current: Price | None) -> bool:
    """Return whether a price differs from the one in force, so that it has to be written."""
    return current is None or (
        (current.cluster_id, current.currency, current.price_micro)
        != (price.cluster_id, price.currency, price.price_micro)
    )


def compute_estimate(
    resources: ResourceRequest,
    replicas: int,
    duration_ms: int,
    book: PriceBook,
    cluster_id: ClusterId | None,
    model: str | None,
    at: int,
) -> Cost:
    """Return what a request would cost at the prices of an instant.

    Args:
        model: The model it would run on; None takes the one asked for.
        duration_ms: How long every replica would hold what it asks.
    """
    lines = []
    name = model or resources.gpu_model
    if resources.gpu_count and name is not None:
        milli = resources.gpu_count * resources.gpu_milli
        if resources.mig_profile is not None:
            known = KNOWN_MODELS.get(name)
            slices = known.mig_slices if known is not None and known.mig_slices else MIG_SLICES
            milli = mig_share_milli(resources.mig_profile, slices)
        lines.append((Resource.GPU, name, milli))
    lines.append((Resource.CPU, CPU_ITEM, resources.cpu_milli))
    lines.append((Resource.MEMORY, MEMORY_ITEM, resources.memory_mib))
    return Cost(
        merge_lines(
            book.line(cluster_id, resource, item, amount * replicas * duration_ms, at)
            for resource, item, amount in lines
            if amount
        )
    )
