"""Requests to classify and predict."""

from __future__ import annotations

from typing import Any

from gpuplane.core.prediction.classes import KNOWN_WORDS
from gpuplane.core.prediction.requests import RequestFacts, facts_of
from gpuplane.core.workloads import (
    DeploymentType,
    Execution,
    JobSpec,
    JobType,
    ReplicaRequest,
    ResourceRequest,
)


def a_request(
    *command: str,
    name: str = "job",
    job_type: JobType = JobType.BATCH,
    gpus: int = 1,
    replicas: int = 1,
    image: str = "",
    is_array: bool = False,
    labels: dict[str, str] | None = None,
    who: tuple[str, str, str] = ("tenant", "project", "user"),
    simulated: bool = False,
    port: int | None = None,
    model: str | None = None,
    **spec: Any,
) -> RequestFacts:
    """Return the facts of a job with these words."""
    asked = JobSpec(
        name=name,
        job_type=job_type,
        deployment_type=DeploymentType.PROCESS,
        resources=ResourceRequest(gpu_count=gpus, gpu_model=model),
        replicas=ReplicaRequest(count=replicas),
        execution=Execution(image=image, command=command, port=port),
        **spec,
    )
    tenant, project, user = who
    return facts_of(
        asked,
        tenant=tenant,
        project=project,
        user=user,
        simulated=simulated,
        is_array=is_array,
        labels=labels or {},
        known_words=KNOWN_WORDS,
    )
