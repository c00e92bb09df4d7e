"""What is told about the use of quotas, in the names and quantities of Kueue."""

from uuid import UUID

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from gpuplane.kit.bodies import Body


class KueueOut(Body):
    """A body whose fields are written as Kueue writes them."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class QuotaRowOut(KueueOut):
    """One line of an account: one resource in one flavor, in Kubernetes' quantities."""

    flavor: str
    resource: str
    nominal: str | None
    used: str
    borrowed: str
    lent: str
    available: str | None
    potential: str | None
    borrowing_limit: str | None
    lending_limit: str | None


class QuotaUseOut(KueueOut):
    """The account of one ClusterQueue."""

    name: str
    jobs: int
    resources: list[QuotaRowOut]


class CohortUseOut(KueueOut):
    """The account of one Cohort."""

    name: str
    resources: list[QuotaRowOut]


class DoorUseOut(KueueOut):
    """The account of one LocalQueue; `nominal` is its cap."""

    name: str
    tenant: str
    cluster_queue: str
    jobs: int
    resources: list[QuotaRowOut]


class QueueUseOut(KueueOut):
    """The account of every queue of a cluster."""

    cluster_id: UUID
    cluster: str
    cluster_queues: list[QuotaUseOut]
    cohorts: list[CohortUseOut]
    local_queues: list[DoorUseOut]
