"""API bodies of quotas, queues and cohorts: Kueue's field names, Kubernetes' quantities."""

import re
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from gpuplane.core.quantities import SUFFIXES
from gpuplane.core.quota.specs import (
    BorrowWithinCohortPolicy,
    FlavorFungibilityPolicy,
    FlavorPreference,
    QueueingStrategy,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from gpuplane.core.workloads import JobType, Priority
from gpuplane.kit.bodies import Body, Flag, InstantOut, Name, refusal

Standing = Literal["declared", "active", "pending", "conflict", "inactive", "foreign", "withdrawn"]
"""Where a declaration and its object stand: see the page on Kueue."""
MAX_GROUPS = 16
MAX_FLAVORS = 64
MAX_RESOURCES = 64
MAX_MEMBERS = 1_000
MAX_LEVELS = 16
MAX_LABEL = 316
MAX_AMOUNT = Decimal(10) ** 18

_TOO_MANY = re.compile(r"0*[1-9][0-9]{18,}(?:\.[0-9]*)?[mkMGTPi]{0,2}")
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")


def _read_quantity(value: object) -> Decimal:
    """Return a Kubernetes quantity as a decimal number of its base unit."""
    text = str(value) if isinstance(value, int | float | str) else ""
    match = None if isinstance(value, bool) else _QUANTITY.fullmatch(text)
    if match is None and _TOO_MANY.fullmatch(text):
        raise _too_much()
    if match is None:
        raise refusal(
            "A quantity is a number with a suffix of Kubernetes or none.",
            "Such as 8, '500m' or '64Gi'.",
        )
    try:
        amount = Decimal(match[1]) * SUFFIXES[match[2] or ""]
    except InvalidOperation as error:
        raise refusal("This is no quantity.", "Such as 8, '500m' or '64Gi'.") from error
    if amount > MAX_AMOUNT:
        raise _too_much()
    return amount


def _too_much() -> ValueError:
    return refusal("It is too large: nobody has so much.", "Check the number and its suffix.")


Quantity = Annotated[
    Decimal,
    BeforeValidator(_read_quantity),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^{_QUANTITY.pattern}$"},
                {"type": "integer", "minimum": 0, "maximum": 10**15},
            ]
        }
    ),
]
ResourceName = Annotated[
    str, Field(pattern=r"^[a-z0-9A-Z][a-zA-Z0-9./_+-]{0,99}$", description="nvidia.com/gpu, cpu, …")
]
FlavorName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,98}[a-z0-9])?$")]
LevelName = Annotated[str, Field(min_length=1, max_length=MAX_LABEL)]
QueueName = Annotated[str, Field(min_length=1, max_length=63)]
Version = Annotated[int, Field(strict=True, ge=1, le=2**53)]
Weight = Annotated[float, Field(strict=True, ge=0, le=1_000_000, allow_inf_nan=False)]


class KueueBody(Body):
    """A body whose fields are written as Kueue writes them."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class ResourceQuotaBody(KueueBody):
    """What a queue owns of one resource in one flavor."""

    name: ResourceName
    nominal_quota: Quantity
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotasBody(KueueBody):
    """The quotas of one flavor; one named after a GPU model stands for the nodes with it."""

    name: FlavorName
    resources: Annotated[list[ResourceQuotaBody], Field(min_length=1, max_length=MAX_RESOURCES)]


class ResourceGroupBody(KueueBody):
    """Resources that come from the same flavor, and the flavors in order of preference."""

    covered_resources: Annotated[list[ResourceName], Field(min_length=1, max_length=MAX_RESOURCES)]
    flavors: Annotated[list[FlavorQuotasBody], Field(min_length=1, max_length=MAX_FLAVORS)]


Groups = Annotated[list[ResourceGroupBody], Field(max_length=MAX_GROUPS)]


class FairSharingBody(KueueBody):
    """The weight under fair sharing; 0 yields to everyone."""

    weight: Weight = 1.0


class BorrowWithinCohortBody(KueueBody):
    """Whether a workload may evict borrowers while it borrows itself."""

    policy: BorrowWithinCohortPolicy = BorrowWithinCohortPolicy.NEVER
    max_priority_threshold: Annotated[int, Field(strict=True, ge=-(2**31), le=2**31 - 1)] | None = (
        None
    )


class PreemptionBody(KueueBody):
    """Whom the workloads of a ClusterQueue may evict."""

    within_cluster_queue: WithinClusterQueue = WithinClusterQueue.NEVER
    reclaim_within_cohort: ReclaimWithinCohort = ReclaimWithinCohort.NEVER
    borrow_within_cohort: BorrowWithinCohortBody = BorrowWithinCohortBody()


class FungibilityBody(KueueBody):
    """Whether to try the next flavor before borrowing or preempting in this one."""

    when_can_borrow: FlavorFungibilityPolicy = FlavorFungibilityPolicy.MAY_STOP_SEARCH
    when_can_preempt: FlavorFungibilityPolicy = FlavorFungibilityPolicy.TRY_NEXT_FLAVOR
    preference: FlavorPreference | None = None


class QuotaChangeIn(KueueBody):
    """What a ClusterQueue is from now on."""

    cohort: Name | None = None
    resource_groups: Groups = Field(default_factory=list)
    queueing_strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    fair_sharing: FairSharingBody = FairSharingBody()
    preemption: PreemptionBody = PreemptionBody()
    flavor_fungibility: FungibilityBody = FungibilityBody()
    covers_everything: Flag = False
    highest_priority: Priority | None = None
    """The highest class that may go through it; without one the caller's role alone decides."""
    resource_version: Version | None = None
    """When given, another version than this is not overwritten."""


class QuotaIn(QuotaChangeIn):
    """A ClusterQueue to declare."""

    name: Name


class CohortChangeIn(KueueBody):
    """What a Cohort is from now on; named members are exactly those in it."""

    parent: Name | None = None
    resource_groups: Groups = Field(default_factory=list)
    fair_sharing: FairSharingBody = FairSharingBody()
    members: Annotated[list[Name], Field(max_length=MAX_MEMBERS)] | None = None
    resource_version: Version | None = None


class CohortIn(CohortChangeIn):
    """A Cohort to declare."""

    name: Name


class LimitBody(KueueBody):
    """The most that the work of a LocalQueue may use of a resource in a flavor."""

    flavor: FlavorName
    resource: ResourceName
    limit: Quantity


class QueueChangeIn(KueueBody):
    """What a tenant's LocalQueue is from now on."""

    tenant: Annotated[str, Field(min_length=1, max_length=63, description="Name or id.")]
    cluster_queue: Name
    job_types: Annotated[list[JobType], Field(max_length=3)] = Field(default_factory=list)
    limits: Annotated[list[LimitBody], Field(max_length=1_000)] = Field(default_factory=list)
    highest_priority: Priority | None = None
    """The highest class that may go through it, besides that of the ClusterQueue."""
    resource_version: Version | None = None


class QueueIn(QueueChangeIn):
    """A tenant's LocalQueue to open."""

    name: Name


class FieldOwnerOut(KueueBody):
    """A field of an object on the cluster, and the manager that owns it there."""

    field: str
    manager: str


class ConflictOut(KueueBody):
    """Why what is declared was not written to the cluster."""

    reason: str
    message: str
    owners: list[FieldOwnerOut]


class UsedOut(KueueBody):
    """What Kueue counts as used of a resource in a flavor, and how much of it is borrowed."""

    flavor: str
    resource: str
    total: str
    borrowed: str


class QueueStateOut(KueueBody):
    """What a queue of a cluster with Kueue says of itself."""

    active: bool
    reason: str
    message: str
    pending: int
    reserving: int
    admitted: int
    weighted_share: int | None
    used: list[UsedOut]


class QuotaOut(KueueBody):
    """One ClusterQueue."""

    name: str
    cohort: str | None
    resource_groups: list[dict[str, Any]]
    queueing_strategy: str
    fair_sharing: dict[str, float]
    preemption: dict[str, Any]
    flavor_fungibility: dict[str, Any]
    covers_everything: bool
    highest_priority: str | None
    is_default: bool
    """True for the queue of a cluster on which nobody declared one."""
    is_declared: bool
    """False for one that somebody else made on the cluster: read-only until it is adopted."""
    standing: Standing
    warnings: list[str]
    """What of it holds nothing yet, such as a GPU model that no node has, in sentences."""
    cluster: QueueStateOut | None
    """What the cluster's Kueue says of it; null where admission is embedded."""
    on_cluster: dict[str, Any] | None
    """What the cluster has, where that is something else than is declared."""
    conflict: ConflictOut | None
    notes: list[str]
    """What of it on the cluster has no field here, in sentences."""
    resource_version: int
    created_at: InstantOut | None
    updated_at: InstantOut | None


class CohortOut(KueueBody):
    """One Cohort with its members."""

    name: str
    parent: str | None
    resource_groups: list[dict[str, Any]]
    fair_sharing: dict[str, float]
    members: list[str]
    is_declared: bool
    """False for one that exists only because ClusterQueues name it, or on the cluster alone."""
    standing: Standing
    conflict: ConflictOut | None
    notes: list[str]
    resource_version: int | None


class QueueOut(KueueBody):
    """One LocalQueue."""

    name: str
    tenant: str
    tenant_id: str
    cluster_queue: str
    job_types: list[str]
    limits: list[dict[str, str]]
    highest_priority: str | None
    is_declared: bool
    standing: Standing
    namespace: str | None
    """Where it is on a cluster with Kueue."""
    cluster: QueueStateOut | None
    conflict: ConflictOut | None
    resource_version: int
    created_at: InstantOut | None
    updated_at: InstantOut | None


class QuotasOut(KueueBody):
    """Every ClusterQueue of a cluster, by name."""

    items: list[QuotaOut]


class CohortsOut(KueueBody):
    """Every Cohort of a cluster, by name."""

    items: list[CohortOut]


class QueuesOut(KueueBody):
    """Every LocalQueue of a cluster that the caller may see, by name."""

    items: list[QueueOut]


class OpeningIn(KueueBody):
    """A LocalQueue that a tenant gets."""

    name: Name
    cluster_queue: Name
    job_types: Annotated[list[JobType], Field(max_length=3)] = Field(default_factory=list)


class MostIn(KueueBody):
    """The most that all pods of a tenant may ask for of a resource."""

    name: ResourceName
    most: Quantity


class TenancyIn(KueueBody):
    """A tenant to set up on a cluster."""

    tenant: Annotated[str, Field(min_length=1, max_length=63, description="Name or id.")]
    queues: Annotated[list[OpeningIn], Field(max_length=100)] = Field(default_factory=list)
    limits: Annotated[list[MostIn], Field(max_length=MAX_RESOURCES)] = Field(default_factory=list)


class TenancyOut(KueueBody):
    """The run that sets a tenant up or takes it away."""

    tenant: str
    run_id: UUID


class TopologyChangeIn(KueueBody):
    """How nodes are laid out, and which flavors' nodes are."""

    levels: Annotated[list[LevelName], Field(min_length=1, max_length=MAX_LEVELS)]
    """Node labels, the widest level first, such as block, rack, `kubernetes.io/hostname`."""
    flavors: Annotated[list[FlavorName], Field(max_length=MAX_FLAVORS)] = Field(
        default_factory=list
    )


class TopologyIn(TopologyChangeIn):
    """A Topology to declare."""

    name: Name


class TopologyOut(KueueBody):
    """One Topology."""

    name: str
    levels: list[str]
    flavors: list[str]
    is_declared: bool
    """False for one that somebody else made; it is only shown."""
    is_on_cluster: bool
    conflict: ConflictOut | None


class TopologiesOut(KueueBody):
    """The Topologies of a cluster."""

    items: list[TopologyOut]


class DispatchIn(KueueBody):
    """Which clusters a manager dispatches to, best first, and for which of its ClusterQueues."""

    workers: Annotated[list[Name], Field(min_length=1, max_length=99)]
    queues: Annotated[list[Name], Field(max_length=MAX_MEMBERS)] = Field(default_factory=list)


class DispatchOut(KueueBody):
    """The run that connects the workers."""

    workers: list[str]
    queues: list[str]
    run_id: UUID
