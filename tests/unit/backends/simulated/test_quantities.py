"""Amounts as people write them, in the product's exact units."""

from __future__ import annotations

import pytest

from gpuplane.backends.simulated.quantities import (
    QuantityError,
    parse_cpu_milli,
    parse_duration_ms,
    parse_memory_mib,
    parse_price_micro,
)


@pytest.mark.parametrize(
    ("written", "milli"), [(8, 8000), (0.5, 500), ("96", 96_000), ("1500m", 1500), ("0.001", 1)]
)
def test_cores_become_thousandths(written: object, milli: int) -> None:
    assert parse_cpu_milli(written) == milli


@pytest.mark.parametrize("written", [0, -1, "x", "", None, True, [], "nan", "inf", 5000, "1e9"])
def test_what_is_no_number_of_cores_is_refused(written: object) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_cpu_milli(written)
    assert "96" in refused.value.fix


@pytest.mark.parametrize(
    ("written", "mib"),
    [
        ("1Gi", 1024),
        ("1.5Gi", 1536),
        ("1024Ki", 1),
        ("1G", 953),
        (1_048_576, 1),
        ("2Ti", 2_097_152),
    ],
)
def test_bytes_become_mebibytes(written: object, mib: int) -> None:
    assert parse_memory_mib(written) == mib


@pytest.mark.parametrize("written", ["1GB", "-1Gi", "", 1.5, True, None, "1", "99999999Ti", "Gi"])
def test_what_is_no_amount_of_bytes_is_refused(written: object) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_memory_mib(written)
    assert "512Gi" in refused.value.fix


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("250ms", 250),
        ("1m500ms", 60_500),
        ("1.5s", 1500),
        (90, 90_000),
        (0.25, 250),
        ("0s", 0),
    ],
)
def test_durations_become_milliseconds(written: object, ms: int) -> None:
    assert parse_duration_ms(written) == ms


@pytest.mark.parametrize(
    "written", ["", "5", "1m1h", "s", "-1s", -1, True, None, "999999d", "1.5h"]
)
def test_what_is_no_duration_is_refused(written: object) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_duration_ms(written)
    assert "90s" in refused.value.fix


@pytest.mark.parametrize(
    ("written", "micro"), [("2.50", 2_500_000), (0.1, 100_000), (3, 3_000_000), ("0.000001", 1)]
)
def test_prices_become_micro_units_exactly(written: object, micro: int) -> None:
    assert parse_price_micro(written) == micro


@pytest.mark.parametrize("written", ["0.0000001", -1, "1e9", "free", True, float("nan")])
def test_what_is_no_price_is_refused(written: object) -> None:
    with pytest.raises(QuantityError):
        parse_price_micro(written)
