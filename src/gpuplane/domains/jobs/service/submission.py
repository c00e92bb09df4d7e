"""What is submitted, as a value: the specification, by whom, where, and under which key."""

from dataclasses import dataclass

from gpuplane.core.ids import ProjectId, TenantId, UserId
from gpuplane.core.workloads import JobSpec


@dataclass(frozen=True, slots=True)
class Submission:
    """One submit: what is asked, by whom, and under which key."""

    spec: JobSpec
    tenant_id: TenantId
    project_id: ProjectId
    user_id: UserId
    actor: str
    cluster: str | None = None
    source_type: str = "direct"
    source_id: str | None = None
    idempotency_key: str | None = None
    array_size: int | None = None
    array_limit: int | None = None
    traceparent: str | None = None
