"""What of a service does not serve, as `why` tells it."""

from __future__ import annotations

from typing import Any

from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.core.workloads import Execution, HealthCheck, JobType
from gpuplane.domains.jobs.rules import Job
from gpuplane.domains.jobs.rules.remarks import Remark
from gpuplane.domains.jobs.rules.serving import FIX_NONE, FIX_PROBE, describe_serving
from tests.unit.domains.jobs.builders import a_job, a_replica, a_running_job, an_attempt


def a_service(**changes: Any) -> Job:
    return a_running_job(job_type=JobType.SERVICE, **changes)


def test_a_replica_that_does_not_answer_its_probe_is_told_with_its_port_and_the_option() -> None:
    said = "its startup probe has not succeeded yet"
    silent = tuple(a_replica(rank, ready=False, message=said) for rank in (0, 1))
    told = describe_serving(a_service(outputs={"port": 8080}), an_attempt(replicas=silent))
    assert told == Remark(
        f"0 of 2 replicas are ready: nothing answers at port 8080 ({said}).", FIX_PROBE
    )
    asked = Execution(port=80, health=HealthCheck(path="/ok"))
    half = an_attempt(replicas=(a_replica(0, ready=True), a_replica(1, ready=False)))
    told = describe_serving(a_service(execution=asked), half)
    assert told.sentence == "1 of 2 replicas are ready: GET /ok of port 80 does not succeed."


def test_a_replica_that_is_not_there_yet_is_told_with_what_keeps_it() -> None:
    waits = an_attempt(replicas=(a_replica(phase="starting", message="ImagePullBackOff: gone"),))
    assert describe_serving(a_service(), waits) == Remark(
        "0 of 1 replicas are ready: ImagePullBackOff: gone"
    )
    starts = a_job(JobStatus.SCHEDULED, job_type=JobType.SERVICE)
    assert describe_serving(starts, waits) == Remark(), "told as of any job that is started"


def test_a_service_scaled_to_none_runs_with_no_replica() -> None:
    told = describe_serving(a_service(), an_attempt(replicas=(), replicas_wanted=0))
    assert told.sentence.startswith("It runs with no replica")
    assert told.fix == FIX_NONE


def test_nothing_is_told_of_what_serves_or_ends_or_is_no_service() -> None:
    silent = (a_replica(ready=False),)
    assert describe_serving(a_service(), an_attempt(replicas=(a_replica(ready=True),))) == ("", "")
    assert describe_serving(a_service(), an_attempt(replicas=silent, state="stopping")) == ("", "")
    assert describe_serving(a_running_job(), an_attempt(replicas=silent)) == ("", "")
