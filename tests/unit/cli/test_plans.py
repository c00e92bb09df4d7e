"""The plan of a job in a few lines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gpuplane.cli.following import end_code, end_line, state_line
from gpuplane.cli.plans import plan_lines

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def an_estimate(**more: Any) -> dict[str, Any]:
    return {
        "cluster": "demo", "simulated": False, "fits_now": True, "earliest_start": None,
        "expected_end": None, "nodes": ["n1"], "hourly_cost": "2.99", "estimated_cost": None,
        "max_cost": None, "currency": "USD", "reason": "", "sentence": "It would start at once.",
        "explanation": [], "cheaper": [], **more,
    }  # fmt: skip


def a_job(**more: Any) -> dict[str, Any]:
    return {
        "name": "train", "status": "queued", "condition": "", "reason": "", "status_message": "",
        "estimated_start": None, "current_attempt": None, "exit_code": None, **more,
    }  # fmt: skip


def test_a_plan_says_where_when_and_for_how_much() -> None:
    assert plan_lines(an_estimate()) == ["plan: demo on n1, now, 2.99 USD an hour"]


def test_a_simulated_plan_says_that_nothing_is_executed() -> None:
    assert "simulated: nothing is executed" in plan_lines(an_estimate(simulated=True))[0]


def test_a_plan_that_waits_says_why_and_until_when() -> None:
    lines = plan_lines(
        an_estimate(
            fits_now=False, earliest_start="2026-05-01T12:30:00Z", nodes=[],
            reason="InsufficientGpu", sentence="No node has 8 free GPUs.",
        ),
        NOON,
    )  # fmt: skip
    assert "starts in 30m by estimate" in lines[0]
    assert lines[1].strip() == "InsufficientGpu: No node has 8 free GPUs."


def test_what_would_be_cheaper_comes_with_what_it_saves() -> None:
    options = [{"sentence": "On L4 it costs less.", "saving": "1.25"}] * 5
    lines = plan_lines(an_estimate(cheaper=options))
    assert lines[1:] == ["      cheaper: On L4 it costs less. (1.25 USD an hour less)"] * 2


def test_what_similar_jobs_took_is_told_once_some_have_ended() -> None:
    sentence = "12 similar jobs of this project ran 20 min in the middle."
    known = {"durations_seconds": {"samples": 12}, "sentence": sentence}
    assert plan_lines(an_estimate(prediction=known))[1:] == [f"      expected: {sentence}"]
    unknown = {"durations_seconds": None, "sentence": "Nothing is known of its like."}
    assert plan_lines(an_estimate(prediction=unknown)) == plan_lines(an_estimate())


def test_without_a_price_the_plan_says_so() -> None:
    assert plan_lines(an_estimate(hourly_cost=None))[0].endswith("no price known")


def on(cluster: str, hourly: str | None, currency: str = "USD") -> dict[str, Any]:
    return {"cluster": cluster, "hourly_cost": hourly, "estimated_cost": None, "max_cost": None,
            "currency": currency}  # fmt: skip


def test_where_a_worker_decides_the_plan_tells_the_least_and_the_most_and_each() -> None:
    workers = [on("near", "1.20"), on("far", "0.80"), on("dear", "12.00")]
    lines = plan_lines(an_estimate(hourly_cost=None, by_worker=workers))
    assert lines[0].endswith("0.80 to 12.00 USD an hour, by the worker that takes it")
    assert lines[1:] == [
        "      on near: 1.20 USD an hour", "      on far: 0.80 USD an hour",
        "      on dear: 12.00 USD an hour",
    ]  # fmt: skip


def test_workers_of_one_price_are_told_as_one() -> None:
    workers = [on("near", "1.20"), on("far", "1.20")]
    assert plan_lines(an_estimate(hourly_cost="1.20", by_worker=workers)) == plan_lines(
        an_estimate(hourly_cost="1.20")
    )


def test_a_cost_that_a_worker_has_no_price_for_is_unknown() -> None:
    for other in (on("far", None), on("far", "1.00", "EUR")):
        lines = plan_lines(an_estimate(hourly_cost=None, by_worker=[on("near", "1.20"), other]))
        assert lines[0].endswith("cost unknown, by the worker that takes it")


def test_a_waiting_job_is_told_with_its_reason() -> None:
    line = state_line(a_job(reason="QuotaExceeded", status_message="Needs 4 more."))
    assert line == "queued: QuotaExceeded — Needs 4 more."


def test_the_end_of_a_job_is_its_exit_code() -> None:
    assert end_code(a_job(status="completed", exit_code=0)) == 0
    assert end_code(a_job(status="failed", exit_code=137)) == 137
    assert end_code(a_job(status="failed", exit_code=None)) == 1
    assert end_code(a_job(status="cancelled", exit_code=0)) == 1


def test_a_bad_end_is_told_and_a_good_one_is_not() -> None:
    assert end_line(a_job(status="completed")) == ""
    bad = a_job(status="failed", exit_code=3, status_message="ended with exit code 3")
    assert end_line(bad) == "train failed, exit code 3: ended with exit code 3"
