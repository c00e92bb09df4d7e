"""Cost is exact, adds up, and never depends on the order of what is added."""

from __future__ import annotations

from fractions import Fraction
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.ids import ClusterId
from gpuplane.core.pricing.book import Price, PriceBook
from gpuplane.core.pricing.cost import (
    UNITS,
    CostLine,
    Resource,
    compute_cost_micro,
    merge_lines,
    mig_share_milli,
    split_by_largest_remainder,
)

CLUSTER = ClusterId(UUID(int=7))
prices = st.integers(0, 10**12)
quantities = st.integers(0, 10**18)
resources = st.sampled_from(list(Resource))


@given(price=prices, quantity=quantities, resource=resources)
def test_a_cost_is_the_exact_product_rounded_half_to_even(
    price: int, quantity: int, resource: Resource
) -> None:
    exact = Fraction(price * quantity, UNITS[resource])
    assert compute_cost_micro(price, quantity, resource) == round(exact)


@given(total=st.integers(0, 10**15), weights=st.lists(st.integers(0, 10**9), min_size=1))
def test_a_split_adds_up_and_is_never_off_by_a_whole_unit(total: int, weights: list[int]) -> None:
    parts = split_by_largest_remainder(total, weights)
    assert sum(parts) == total
    whole = sum(weights)
    if whole:
        for part, weight in zip(parts, weights, strict=True):
            assert abs(part - Fraction(total * weight, whole)) < 1


@given(
    st.lists(
        st.tuples(resources, st.sampled_from(["a", "b"]), quantities, st.sampled_from([None, 1, 5]))
    )
)
def test_merged_lines_keep_every_quantity_and_round_once(
    rows: list[tuple[Resource, str, int, int | None]],
) -> None:
    lines = [
        CostLine(
            resource,
            item,
            quantity,
            "USD",
            price,
            0 if price is None else compute_cost_micro(price, quantity, resource),
        )
        for resource, item, quantity, price in rows
    ]
    merged = merge_lines(lines)
    assert merged == merge_lines(reversed(lines)) == merge_lines(merged)
    assert sum(line.quantity for line in merged) == sum(line.quantity for line in lines)
    for line in merged:
        if line.price_micro is not None:
            exact = Fraction(line.price_micro * line.quantity, UNITS[line.resource])
            assert line.cost_micro == round(exact)


@st.composite
def books(draw: st.DrawFn) -> list[Price]:
    rows = draw(
        st.lists(
            st.tuples(st.sampled_from([None, CLUSTER]), st.integers(0, 100), st.integers(0, 9)),
            max_size=12,
        )
    )
    return [
        Price(UUID(int=i), scope, "cpu", "USD", price, start, i, "test")
        for i, (scope, start, price) in enumerate(rows)
    ]


@given(rows=books(), at=st.integers(-1, 101))
def test_the_price_in_force_is_the_last_begun_of_the_cluster_else_the_general_one(
    rows: list[Price], at: int
) -> None:
    begun = [row for row in rows if row.valid_from <= at]
    own = [row for row in begun if row.cluster_id == CLUSTER]
    among = own or [row for row in begun if row.cluster_id is None]
    expected = max(among, key=lambda row: (row.valid_from, row.created_at), default=None)
    assert PriceBook(reversed(rows)).find_price(CLUSTER, "cpu", at) == expected


@given(rows=books(), start=st.integers(0, 100), length=st.integers(0, 100))
def test_no_price_changes_within_an_epoch_and_epochs_tile_the_window(
    rows: list[Price], start: int, length: int
) -> None:
    book = PriceBook(rows)
    epochs = book.epochs(start, start + length)
    assert sum(high - low for low, high in epochs) == length
    for low, high in epochs:
        assert low < high
        known = {book.find_price(CLUSTER, "cpu", at) for at in range(low, high)}
        assert len(known) == 1


@given(slices=st.sampled_from([4, 7]), parts=st.lists(st.integers(1, 7), max_size=7))
def test_instances_that_fit_a_gpu_are_never_billed_as_more_than_the_gpu(
    slices: int, parts: list[int]
) -> None:
    while sum(parts) > slices:
        parts.pop()
    assert sum(mig_share_milli(f"{part}g.10gb", slices) for part in parts) <= 1000


@pytest.mark.parametrize("profile", ["", "8g.80gb", "0g.5gb", "h100", "g.5gb"])
def test_what_is_no_profile_of_the_gpu_is_refused(profile: str) -> None:
    with pytest.raises(ValueError, match="is no MIG profile"):
        mig_share_milli(profile, 7)


@pytest.mark.parametrize(
    ("profile", "share"), [("1c.3g.40gb", 428), ("1g.10gb+me", 142), ("7g.80gb", 1000)]
)
def test_a_profile_is_billed_as_its_slices(profile: str, share: int) -> None:
    assert mig_share_milli(profile, 7) == share
