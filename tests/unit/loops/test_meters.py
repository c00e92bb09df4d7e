"""The job metrics of specification 12.4.3, counted from events."""

from uuid import UUID

from prometheus_client import CollectorRegistry, generate_latest

from gpuplane.core.ids import EventId
from gpuplane.domains.events.service import Event
from gpuplane.loops.meters import JobMeters


def an_event(kind: str, reason: str = "", **data: object) -> Event:
    return Event(
        seq=1,
        id=EventId(UUID(int=1)),
        position=1,
        at=0,
        kind=kind,
        tenant_id=None,
        project_id=None,
        cluster_id=None,
        subject_kind="job",
        subject_id="1",
        actor="system",
        reason=reason,
        message="",
        data={"job_type": "batch", "source_type": "direct", "priority": "high", **data},
        audit=False,
    )


def counted(*events: Event) -> str:
    registry = CollectorRegistry()
    meters = JobMeters(registry)
    for event in events:
        meters.count(event)
    return generate_latest(registry).decode()


def test_every_metric_of_the_specification_is_there_by_name() -> None:
    text = counted()
    for name in (
        "job_state_transitions_total",
        "job_queue_wait_seconds",
        "job_duration_seconds",
        "job_resource_requested",
        "job_resource_used",
        "job_resource_efficiency_ratio",
        "job_estimated_cost_dollars",
        "job_actual_cost_dollars",
        "job_failures_total",
        "job_retries_total",
        "job_preemptions_total",
        "jobs_total",
    ):
        assert f"# TYPE {name} " in text


def test_an_admission_counts_the_transition_and_the_wait_in_its_queue() -> None:
    text = counted(
        an_event(
            "job.scheduled", from_status="queued", wait_ms=1500, cluster_queue="gold", attempt=1
        )
    )
    assert (
        'job_state_transitions_total{from_state="queued",job_type="batch",to_state="ADMITTED"} 1.0'
        in text
    )
    assert (
        'job_queue_wait_seconds_sum{cluster_queue="gold",job_type="batch",priority="high"} 1.5'
        in text
    )
    assert "job_retries_total{" not in text


def test_a_second_attempt_is_a_retry() -> None:
    text = counted(an_event("job.scheduled", from_status="queued", attempt=2))
    assert 'job_retries_total{job_type="batch"} 1.0' in text


def test_a_completed_job_counts_its_duration_and_its_cost() -> None:
    text = counted(
        an_event(
            "job.completed",
            from_status="running",
            ran_ms=2000,
            cost_micro=2_500_000,
            currency="USD",
        )
    )
    assert (
        'job_duration_seconds_sum{job_type="batch",source_type="direct",status="completed"} 2.0'
        in text
    )
    assert 'status="completed"} 2.5' in text
    assert "job_failures_total{" not in text


def test_an_attempt_that_ended_badly_is_a_failure_by_reason_even_when_it_is_tried_again() -> None:
    text = counted(an_event("job.pending", "NonZeroExit", from_status="running", ran_ms=1))
    assert 'job_failures_total{failure_reason="NonZeroExit",job_type="batch"} 1.0' in text


def test_a_preemption_is_no_failure() -> None:
    text = counted(
        an_event("job.preempted", "Preempted", from_status="running", intent="preempt", ran_ms=1)
    )
    assert 'job_preemptions_total{job_type="batch",preemption_reason="Preempted"} 1.0' in text
    assert "job_failures_total{" not in text


def test_a_cancelled_job_is_no_failure() -> None:
    text = counted(
        an_event("job.cancelled", "Cancelled", from_status="running", intent="cancel", ran_ms=1)
    )
    assert "job_failures_total{" not in text


def test_events_that_change_no_status_are_passed_over() -> None:
    assert counted(an_event("job.stopping")) == counted()


def test_a_completed_run_is_compared_with_what_was_expected_of_it() -> None:
    expected = {"expected_s": 100, "expected_high_s": 200, "expected_basis": "history"}
    text = counted(
        *(
            an_event("job.completed", from_status="running", ran_ms=ran, **expected)
            for ran in (90_000, 150_000, 201_000)
        ),
        an_event("job.completed", from_status="running", ran_ms=5_000),
    )
    held = 'job_durations_expected_total{basis="history",outcome="within"} 2.0'
    assert held in text
    assert 'job_durations_expected_total{basis="history",outcome="beyond"} 1.0' in text
    assert 'job_duration_expected_ratio_bucket{basis="history",le="0.9"} 1.0' in text
    assert 'job_duration_expected_ratio_count{basis="history"} 3.0' in text
