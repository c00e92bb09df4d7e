"""What a list of jobs may be narrowed by."""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Each field narrows the list; None or empty leaves it as wide as it is.

    Args:
        statuses: Any of these.
        labels: (key, value), all of them.
        created_since: From this instant on.
        created_until: Before this instant.
        replicas_missing: Only services that run with fewer replicas than they are to have.
    """

    statuses: tuple[str, ...] = ()
    job_type: str | None = None
    priority: str | None = None
    cluster_id: UUID | None = None
    tenant_id: UUID | None = None
    project_id: UUID | None = None
    source_type: str | None = None
    source_id: str | None = None
    name_prefix: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    queue: str | None = None
    gpu_model: str | None = None
    cost_centre: str | None = None
    data_classification: str | None = None
    user_id: UUID | None = None
    array_id: UUID | None = None
    created_since: int | None = None
    created_until: int | None = None
    replicas_missing: bool = False
