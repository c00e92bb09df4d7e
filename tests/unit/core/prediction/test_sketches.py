"""Counts in buckets, and the quantiles they give."""

from __future__ import annotations

import pytest

from gpuplane.core.prediction.sketches import (
    EMPTY,
    MAX_BUCKETS,
    MAX_VALUE,
    PARTS,
    RELATIVE_ERROR,
    bucket_of,
    find_quantile,
    middle_of,
    sketch_values,
)


def test_small_values_are_exact() -> None:
    assert [middle_of(bucket_of(value)) for value in range(2 * PARTS)] == [*range(2 * PARTS)]


def test_buckets_follow_each_other_without_a_gap() -> None:
    buckets = [bucket_of(value) for value in range(5000)]
    assert set(buckets) == {*range(buckets[-1] + 1)}
    assert buckets == sorted(buckets)


def test_the_largest_value_is_in_the_last_bucket() -> None:
    assert bucket_of(MAX_VALUE) == MAX_BUCKETS - 1
    assert bucket_of(MAX_VALUE * 1000) == MAX_BUCKETS - 1
    assert bucket_of(-3) == 0


@pytest.mark.parametrize("value", [33, 100, 3599, 86_399, 81_559, MAX_VALUE])
def test_a_bucket_stands_for_its_values_within_the_error(value: int) -> None:
    assert abs(middle_of(bucket_of(value)) - value) <= RELATIVE_ERROR * value


def test_of_nothing_there_is_no_quantile() -> None:
    assert find_quantile(EMPTY, 500) is None


def test_the_upper_quantile_of_few_values_is_the_largest_of_them() -> None:
    few = sketch_values([1, 2, 3])
    assert (find_quantile(few, 100), find_quantile(few, 500), find_quantile(few, 900)) == (1, 2, 3)


def test_of_nineteen_values_the_quantiles_leave_one_in_ten_on_each_side() -> None:
    found = sketch_values(range(1, 20))
    assert (find_quantile(found, 100), find_quantile(found, 900)) == (2, 18)
