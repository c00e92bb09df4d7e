"""A job and an attempt as values, in one line each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuplane.core.ids import (
    AttemptId,
    ClusterId,
    JobId,
    NodeId,
    ProjectId,
    ReplicaId,
    TenantId,
    UserId,
)
from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.workloads import DeploymentType, JobSpec, JobType
from gpuplane.domains.jobs.rules import Attempt, Job, Replica
from tests.builders import NOW, an_id

SPEC = JobSpec("job", JobType.BATCH, DeploymentType.PROCESS)


def a_job(status: JobStatus = JobStatus.QUEUED, **changes: Any) -> Job:
    """Return a job; what is no column of it is a field of its specification."""
    spec_fields = {
        name: value for name, value in changes.items() if name in JobSpec.__dataclass_fields__
    }
    own = {name: value for name, value in changes.items() if name not in spec_fields}
    job = Job(
        id=JobId(an_id("job")),
        name="job",
        tenant_id=TenantId(an_id("tenant")),
        project_id=ProjectId(an_id("project")),
        user_id=UserId(an_id("user")),
        cluster_id=ClusterId(an_id("cluster")),
        requested_cluster_id=None,
        source_type="direct",
        source_id=None,
        queue="",
        spec=replace(SPEC, **spec_fields),
        labels={},
        idempotency_key=None,
        array_id=None,
        array_index=None,
        array_limit=None,
        status=status,
        condition=Condition.NONE,
        condition_at=None,
        reason="",
        status_message="",
        reason_counts=None,
        due_at=None,
        retry_count=0,
        failures_at=(),
        breaker_until=None,
        promised_until=None,
        attempt_count=0,
        current_attempt_id=None,
        warned=(),
        estimated_start=None,
        estimated_end=None,
        actual_start=None,
        actual_end=None,
        queued_at=NOW,
        admitted_at=None,
        estimated_cost_micro=None,
        actual_cost_micro=None,
        currency="USD",
        progress_ratio=None,
        last_checkpoint=None,
        last_checkpoint_at=None,
        outputs={},
        manifest=None,
        traceparent=None,
        created_at=NOW,
        updated_at=NOW,
        version=1,
    )
    return replace(job, **own)


def a_running_job(**changes: Any) -> Job:
    """Return a job that has run since NOW."""
    started = {"admitted_at": NOW, "actual_start": NOW}
    return a_job(JobStatus.RUNNING, **{**started, **changes})


def an_attempt(**changes: Any) -> Attempt:
    """Return the first attempt of the job, running with one replica."""
    attempt = Attempt(
        id=AttemptId(an_id("attempt")),
        job_id=JobId(an_id("job")),
        number=1,
        epoch=1,
        cluster_id=ClusterId(an_id("cluster")),
        state="running",
        stop_intent=None,
        stop_reason="",
        stop_message="",
        stop_deadline=None,
        evict_sent_at=None,
        grace_s=30,
        admitted_at=NOW,
        ensured_at=NOW,
        started_at=NOW,
        ended_at=None,
        exit_code=None,
        signal=None,
        exit_reason="",
        exit_message="",
        lost_gpu_ms=None,
        cluster_queue="default",
        local_queue="sim/default",
        quota_usage=(),
        explanation=None,
        forgotten=False,
        version=1,
        replicas=(a_replica(),),
    )
    return replace(attempt, **changes)


def a_replica(rank: int = 0, **changes: Any) -> Replica:
    """Return a running replica."""
    replica = Replica(
        id=ReplicaId(an_id(f"replica-{rank}")),
        attempt_id=AttemptId(an_id("attempt")),
        rank=rank,
        node_id=NodeId(an_id("node")),
        node_name="node-0",
        gpu_ids=(),
        gpu_milli=1000,
        mig_device=None,
        phase="running",
        ready=None,
        started_at=NOW,
        ended_at=None,
        exit_code=None,
        signal=None,
        reason="",
        message="",
        url=None,
        restart_count=0,
    )
    return replace(replica, **changes)
