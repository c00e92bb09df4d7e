"""Names of priced items, and what a request would cost."""

from __future__ import annotations

from uuid import UUID

import pytest

from gpuplane.core.pricing.book import Price, PriceBook
from gpuplane.core.pricing.cost import Cost
from gpuplane.core.workloads import ResourceRequest
from gpuplane.domains.billing.rules import (
    BadField,
    NewPrice,
    canonical_item,
    compute_estimate,
    find_fault,
    is_followed,
)

HOUR_MS = 3_600_000
H100 = "nvidia-h100-80gb"


def a_price(item: str, price_micro: int, currency: str = "USD") -> Price:
    return Price(UUID(int=1), None, item, currency, price_micro, 0, 0, "test")


BOOK = PriceBook(
    [a_price(H100, 7_000_000), a_price("cpu", 40_000), a_price("memory", 5_000, "EUR")]
)


@pytest.mark.parametrize(("name", "item"), [("H100", H100), ("CPU", "cpu"), ("memory", "memory")])
def test_an_item_has_one_name(name: str, item: str) -> None:
    assert canonical_item(name) == item


def test_an_unknown_item_is_refused_with_the_nearest_names() -> None:
    fault = canonical_item("H1OO-80GB")
    assert isinstance(fault, BadField)
    assert "h100" in fault.fix.lower()


def test_an_estimate_counts_every_replica_for_the_whole_time() -> None:
    resources = ResourceRequest(gpu_count=2, gpu_model=H100, cpu_milli=500, memory_mib=2048)
    cost = compute_estimate(resources, 3, HOUR_MS // 2, BOOK, None, None, 1)
    assert cost.totals == {"USD": 7_000_000 * 3 + 40_000 * 3 // 4, "EUR": 5_000 * 3}
    assert cost.unpriced == ()


def test_an_estimate_of_a_mig_instance_is_its_part_of_the_gpu() -> None:
    resources = ResourceRequest(gpu_count=1, mig_profile="1g.10gb", cpu_milli=0, memory_mib=0)
    cost = compute_estimate(resources, 1, HOUR_MS, BOOK, None, H100, 1)
    assert cost.totals == {"USD": 7_000_000 * 142 // 1000}


def test_what_has_no_price_is_named_and_costs_nothing() -> None:
    resources = ResourceRequest(gpu_count=1, gpu_model="nvidia-t4", cpu_milli=0, memory_mib=0)
    cost = compute_estimate(resources, 1, HOUR_MS, BOOK, None, None, 1)
    assert (cost.totals, cost.unpriced) == ({}, ("nvidia-t4",))
    assert (cost.known_micro("USD"), Cost().known_micro("USD")) == (None, 0)


def test_a_price_is_followed_only_by_another_one() -> None:
    current = a_price("cpu", 40_000)
    assert not is_followed(NewPrice("cpu", 40_000), current)
    assert is_followed(NewPrice("cpu", 40_001), current)
    assert is_followed(NewPrice("cpu", 40_000, "EUR"), current)
    assert is_followed(NewPrice("cpu", 40_000), None)


@pytest.mark.parametrize("written", ["USS", "usd", "ZZZ", "XXX", "", "dollars"])
def test_a_price_in_what_is_no_currency_is_refused_with_the_nearest_codes(written: str) -> None:
    fault = find_fault(NewPrice("cpu", 1, currency=written))
    assert fault is not None
    assert (fault.field, "ISO 4217" in fault.sentence) == ("currency", True)
    assert fault.fix.startswith("Nearest codes: ")


def test_a_slip_of_one_letter_is_answered_with_the_code_that_was_meant() -> None:
    fault = find_fault(NewPrice("cpu", 1, currency="USS"))
    assert fault is not None
    assert fault.fix.startswith("Nearest codes: USD,")


@pytest.mark.parametrize("code", ["USD", "EUR", "JPY", "CNY", "XCG"])
def test_a_code_of_iso_4217_is_accepted(code: str) -> None:
    assert find_fault(NewPrice("cpu", 1, currency=code)) is None
