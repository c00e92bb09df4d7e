"""How values are written for people, and how people may write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gpuplane.cli.words import (
    age,
    cost_text,
    costs_text,
    duration_text,
    gpus_text,
    model_text,
    money_text,
    parse_duration,
    parse_gib,
    parse_instant,
    policy_lines,
    project_text,
    short_id,
    size_text,
    when,
)

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.3, "0.3s"), (59, "59s"), (61, "1m1s"), (7_500, "2h5m"), (90_061, "1d1h"),
     (-30, "-30s")],
)  # fmt: skip
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("2h30m", 9_000), ("1d", 86_400)]
)
def test_a_duration_is_read_as_it_is_written(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "3x", "-5s", "1h2", "1.5h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


def test_an_instant_may_be_a_distance_from_now() -> None:
    assert parse_instant("+2h", NOON) == "2026-05-01T14:00:00+00:00"
    assert parse_instant("-30m", NOON) == "2026-05-01T11:30:00+00:00"


def test_an_instant_with_a_zone_keeps_it_and_one_without_gets_the_local_one() -> None:
    assert parse_instant("2026-05-01T09:00:00Z") == "2026-05-01T09:00:00+00:00"
    assert datetime.fromisoformat(parse_instant("2026-05-01 09:00")).tzinfo is not None


@pytest.mark.parametrize(
    ("text", "gib"), [("8", 8), ("8G", 8), ("8Gi", 8), ("512M", 0.5), ("1.5T", 1536), ("8gb", 8)]
)
def test_memory_is_read_in_every_usual_spelling(text: str, gib: float) -> None:
    assert parse_gib(text) == gib


def test_an_instant_near_now_is_a_distance_and_a_far_one_a_date() -> None:
    assert when("2026-05-01T12:05:00Z", NOON) == "in 5m"
    assert when("2026-05-01T11:00:00Z", NOON) == "1h ago"
    assert when("2026-06-01T11:00:00Z", NOON).startswith("2026-06-01")
    assert when(None) == ""
    assert age("2026-05-01T10:00:00Z", NOON) == "2h"


def test_costs_are_told_with_a_currency_also_where_there_are_none() -> None:
    assert costs_text({}, "EUR") == "0.00 EUR"
    assert costs_text({"USD": "1.5", "EUR": "2"}, "CHF") == "2.00 EUR, 1.50 USD"


def test_money_is_rounded_for_people_but_never_to_nothing() -> None:
    assert money_text("12.345678", "USD") == "12.35 USD"
    assert money_text("0.001234", "USD") == "<0.01 USD"
    assert money_text("0.006117", "USD") == "<0.01 USD"
    assert money_text("0.01", "USD") == "0.01 USD"
    assert money_text("-0.001", "USD") == ">-0.01 USD"
    assert money_text("3", "EUR") == "3.00 EUR"
    assert money_text("0", "USD") == "0.00 USD"
    assert money_text(None) == ""


def test_gpus_are_named_as_people_say_them() -> None:
    assert model_text("nvidia-h100-80gb") == "H100-80GB"
    job = {"gpu_count": 8, "replica_count": 4, "gpu_type": "nvidia-h100-80gb"}
    assert gpus_text(job) == "4x8 H100-80GB"
    half = {"gpu_count": 1, "replica_count": 1, "gpu_type": None, "resources": {"gpu_share": 0.5}}
    assert gpus_text(half) == "0.5"


def test_a_service_that_scales_shows_the_gpus_of_the_replicas_it_wants_now() -> None:
    job = {"gpu_count": 1, "replica_count": 3, "gpu_type": "nvidia-l4"}
    shown = [gpus_text({**job, "replicas_wanted": wanted}) for wanted in (None, 3, 2, 1, 0)]
    assert shown == ["3x1 L4", "3x1 L4", "2x1 L4", "1 L4", "0x1 L4"]


def test_a_short_id_is_the_end_of_an_id() -> None:
    assert short_id("01a1fe21-d573-7716-92cc-818365d2f316") == "65d2f316"
    assert size_text(1536) == "1.5 KiB"


def test_a_preemption_policy_is_told_where_it_counts_and_who_preempts_where_it_does_not() -> None:
    policy = {"is_in_force": True, "decided_by": "scheduler", "enabled": True, "grace_period_s": 30}
    assert policy_lines(policy, "lab") == ["enabled: True", "grace_period_s: 30"]
    theirs = policy_lines({**policy, "is_in_force": False, "decided_by": "kueue"}, "lab")
    assert theirs[0] == "by the ClusterQueues of Kueue"
    assert "quotas ls --cluster lab" in theirs[1]


def test_a_job_of_a_deleted_tenant_says_so() -> None:
    assert project_text({"tenant": "acme", "project": "default"}) == "acme/default"
    assert project_text({"tenant": "", "project": ""}) == "(deleted)/(deleted)"


def test_what_has_no_price_is_not_shown_as_free() -> None:
    ran = {"actual_start": "2026-05-01T12:00:00Z", "currency": "USD"}
    assert cost_text({**ran, "actual_cost": None}) == "no price"
    assert cost_text({**ran, "actual_cost": "0.00"}) == "0.00 USD"
    assert cost_text({**ran, "actual_cost": None, "actual_start": None}) == ""
    assert costs_text({}, "USD", ["nvidia-t4"]) == "no price"
    assert costs_text({"EUR": "1.00"}, "USD", ["cpu"]) == "1.00 EUR"
    assert costs_text({}, "USD") == "0.00 USD"
