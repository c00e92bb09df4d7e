"""What an administrator declares: cluster queues, cohorts, local queues and their quotas.

Owns the declared shapes and which combinations are refused, in Kueue's words (v1beta2) and with
Kueue's admission rules. Never holds usage: that is `tree`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

GPU = "nvidia.com/gpu"
"""Counted in milli-GPU: 1000 is one whole GPU."""
CPU = "cpu"
"""Counted in thousandths of a core."""
MEMORY = "memory"
"""Counted in MiB."""

UNLIMITED = 2**63 - 1
"""What is available in a queue that covers everything; Kueue's `<unlimited>`."""
DEFAULT_FAIR_WEIGHT_MILLI = 1000
"""Weight 1, Kueue's default, in thousandths."""
MAX_COHORT_DEPTH = 64
"""Cohorts above one another; far more than any organisation has, and a bound on every walk."""
MAX_RESOURCE_GROUPS = 16
"""Kueue's limit on resource groups of one ClusterQueue."""


class FlavorResource(NamedTuple):
    """A resource in one flavor: the unit of every quota.

    A named tuple, not a dataclass: it is the key of the hottest dictionaries, and tuples hash and
    compare in C.
    """

    flavor: str
    resource: str


class QueueingStrategy(StrEnum):
    """Whether a workload that cannot be admitted blocks the ones behind it."""

    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"


class AdmissionMode(StrEnum):
    """How queues of one cohort take turns: Kueue's two modes."""

    CLASSICAL = "classical"
    FAIR_SHARING = "fairSharing"


@dataclass(frozen=True, slots=True)
class FairGates:
    """Rules of fair sharing that Kueue has behind feature gates; both are on since its v0.17.

    Args:
        preempts_within_nominal: A queue within its nominal quota takes back what is its own
            whatever the shares; else the strategies are asked of it as of any other
            (`FairSharingPreemptWithinNominal`).
        prioritizes_non_borrowing: A head that would not borrow goes before one that would; else
            shares alone decide (`FairSharingPrioritizeNonBorrowing`).

    Source: kubernetes-sigs/kueue, pkg/features/kube_features.go and issue 9406.
    """

    preempts_within_nominal: bool = True
    prioritizes_non_borrowing: bool = True


NEWEST_GATES = FairGates()
"""What is decided by here."""
OLD_GATES = FairGates(preempts_within_nominal=False, prioritizes_non_borrowing=False)
"""Kueue up to v0.16."""


class WithinClusterQueue(StrEnum):
    """Which workloads of its own ClusterQueue a pending workload may evict."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"


class ReclaimWithinCohort(StrEnum):
    """Which borrowers elsewhere in the cohort a pending workload may evict."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    ANY = "Any"


class BorrowWithinCohortPolicy(StrEnum):
    """Whether a workload may evict borrowers while it borrows itself."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"


class FlavorFungibilityPolicy(StrEnum):
    """Whether the search for a flavor stops at one that needs borrowing or preemption.

    `Borrow` and `Preempt`, the words of Kueue v1beta1, are read as `MayStopSearch`.
    """

    MAY_STOP_SEARCH = "MayStopSearch"
    TRY_NEXT_FLAVOR = "TryNextFlavor"

    @classmethod
    def _missing_(cls, value: object) -> "FlavorFungibilityPolicy | None":
        return cls.MAY_STOP_SEARCH if value in ("Borrow", "Preempt") else None


class FlavorPreference(StrEnum):
    """Which flavor wins when every one needs borrowing, preemption or both."""

    BORROWING_OVER_PREEMPTION = "BorrowingOverPreemption"
    PREEMPTION_OVER_BORROWING = "PreemptionOverBorrowing"


@dataclass(frozen=True, slots=True)
class ResourceQuota:
    """What one node of the tree owns of a flavor-resource.

    Args:
        nominal: What it owns.
        borrowing_limit: Most it may use beyond `nominal`; None for no limit.
        lending_limit: Most of its unused quota that others may use; None for all of it.
    """

    nominal: int
    borrowing_limit: int | None = None
    lending_limit: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Resources that always come from the same flavor, and the flavors in order of preference."""

    covered_resources: tuple[str, ...]
    flavors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreemptionPolicy:
    """Whom the workloads of a ClusterQueue may evict.

    Args:
        max_priority_threshold: With borrowWithinCohort, the highest priority that a borrowing
            workload may evict; None for any lower one.
    """

    within_cluster_queue: WithinClusterQueue = WithinClusterQueue.NEVER
    reclaim_within_cohort: ReclaimWithinCohort = ReclaimWithinCohort.NEVER
    borrow_within_cohort: BorrowWithinCohortPolicy = BorrowWithinCohortPolicy.NEVER
    max_priority_threshold: int | None = None


@dataclass(frozen=True, slots=True)
class FlavorFungibility:
    """Whether to try the next flavor before borrowing or preempting in this one."""

    when_can_borrow: FlavorFungibilityPolicy = FlavorFungibilityPolicy.MAY_STOP_SEARCH
    when_can_preempt: FlavorFungibilityPolicy = FlavorFungibilityPolicy.TRY_NEXT_FLAVOR
    preference: FlavorPreference | None = None


@dataclass(frozen=True, slots=True)
class ClusterQueueSpec:
    """A queue with quotas of its own, alone or in a cohort.

    Args:
        fair_weight_milli: Weight under fair sharing in thousandths; 0 yields to everyone.
        covers_everything: No quota at all: whatever is asked fits. For the default queue of an
            installation on which nobody has configured quotas; such a queue has no cohort.
        highest_priority: Value of the highest class that may go through it; None for all.
    """

    name: str
    cohort: str | None = None
    resource_groups: tuple[ResourceGroup, ...] = ()
    quotas: Mapping[FlavorResource, ResourceQuota] = field(default_factory=dict)
    queueing_strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    fair_weight_milli: int = DEFAULT_FAIR_WEIGHT_MILLI
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    flavor_fungibility: FlavorFungibility = field(default_factory=FlavorFungibility)
    covers_everything: bool = False
    highest_priority: int | None = None

    def find_group(self, resource: str) -> ResourceGroup | None:
        """Return the group that covers a resource, or None when the queue does not offer it."""
        for group in self.resource_groups:
            if resource in group.covered_resources:
                return group
        return None


@dataclass(frozen=True, slots=True)
class CohortSpec:
    """A group of queues and cohorts that share unused quota; may own quota itself.

    A cohort that is only named by others exists too: without quotas, without a parent.
    """

    name: str
    parent: str | None = None
    quotas: Mapping[FlavorResource, ResourceQuota] = field(default_factory=dict)
    fair_weight_milli: int = DEFAULT_FAIR_WEIGHT_MILLI


@dataclass(frozen=True, slots=True)
class LocalQueueSpec:
    """A tenant's door to a ClusterQueue, with hard caps of its own.

    Args:
        job_types: Job types that go through this door; empty means all.
        limits: Most that the workloads of this queue may use together, per flavor-resource. Holds
            besides the quota of the ClusterQueue; what is not named is not capped here.
        highest_priority: Value of the highest class that may go through this door, besides that
            of the ClusterQueue; None for all.
    """

    name: str
    tenant: str
    cluster_queue: str
    job_types: frozenset[str] = frozenset()
    limits: Mapping[FlavorResource, int] = field(default_factory=dict)
    highest_priority: int | None = None

    @property
    def key(self) -> str:
        """Return `tenant/name`, unique as a namespaced name is."""
        return f"{self.tenant}/{self.name}"


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """One reason why a declaration is refused: which object, which field, and a sentence."""

    subject: str
    field: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.field}: {self.sentence}"


def unlimited_cluster_queue(name: str) -> ClusterQueueSpec:
    """Return a ClusterQueue that admits whatever is asked, for installations without quotas."""
    return ClusterQueueSpec(name=name, covers_everything=True)


def find_local_queue(
    local_queues: Iterable[LocalQueueSpec], tenant: str, job_type: str
) -> LocalQueueSpec | None:
    """Return the door for a tenant's job type: one that names the type before one for all types.

    Among equals the first by name, so that the answer does not depend on the order given.
    """
    ours = [
        queue
        for queue in local_queues
        if queue.tenant == tenant and (not queue.job_types or job_type in queue.job_types)
    ]
    return min(ours, key=lambda queue: (not queue.job_types, queue.name), default=None)


def list_spec_problems(
    cluster_queues: Sequence[ClusterQueueSpec],
    cohorts: Sequence[CohortSpec] = (),
    local_queues: Sequence[LocalQueueSpec] = (),
) -> list[SpecProblem]:
    """Return everything that Kueue would refuse in these declarations, and cohort cycles.

    Source: kubernetes-sigs/kueue, pkg/webhooks/clusterqueue_webhook.go and cohort_webhook.go.
    """
    problems: list[SpecProblem] = []
    problems += _duplicate_problems("ClusterQueue", [queue.name for queue in cluster_queues])
    problems += _duplicate_problems("Cohort", [cohort.name for cohort in cohorts])
    problems += _duplicate_problems("LocalQueue", [queue.key for queue in local_queues])
    for queue in cluster_queues:
        problems += _cluster_queue_problems(queue)
    for cohort in cohorts:
        subject = f"Cohort {cohort.name}"
        for pair, quota in cohort.quotas.items():
            problems += _quota_problems(subject, pair, quota, has_parent=cohort.parent is not None)
        problems += _weight_problems(subject, cohort.fair_weight_milli)
    problems += _cohort_shape_problems(cohorts)
    known = {queue.name for queue in cluster_queues}
    for local in local_queues:
        problems += _local_queue_problems(local, known)
    return problems


def _duplicate_problems(kind: str, names: Sequence[str]) -> list[SpecProblem]:
    seen: set[str] = set()
    problems = []
    for name in names:
        if name in seen:
            problems.append(SpecProblem(f"{kind} {name}", "name", "is declared twice"))
        seen.add(name)
    return problems


def _cluster_queue_problems(queue: ClusterQueueSpec) -> list[SpecProblem]:
    subject = f"ClusterQueue {queue.name}"
    problems = _weight_problems(subject, queue.fair_weight_milli)
    problems += _policy_problems(subject, queue)
    if queue.covers_everything:
        if queue.cohort is not None or queue.quotas or queue.resource_groups:
            sentence = "a queue that covers everything has neither cohort nor quotas"
            problems.append(SpecProblem(subject, "covers_everything", sentence))
        return problems
    problems += _group_problems(subject, queue)
    for pair, quota in queue.quotas.items():
        problems += _quota_problems(subject, pair, quota, has_parent=queue.cohort is not None)
        if quota.lending_limit is not None and quota.lending_limit > quota.nominal:
            sentence = f"lending limit of {pair.resource} in {pair.flavor} is above its nominal"
            problems.append(SpecProblem(subject, "quotas", sentence))
    return problems


def _policy_problems(subject: str, queue: ClusterQueueSpec) -> list[SpecProblem]:
    problems = []
    policy = queue.preemption
    borrows = policy.borrow_within_cohort is not BorrowWithinCohortPolicy.NEVER
    if borrows and policy.reclaim_within_cohort is ReclaimWithinCohort.NEVER:
        sentence = "borrowWithinCohort needs a reclaimWithinCohort other than Never"
        problems.append(SpecProblem(subject, "preemption", sentence))
    if policy.max_priority_threshold is not None and not borrows:
        sentence = "maxPriorityThreshold needs borrowWithinCohort LowerPriority"
        problems.append(SpecProblem(subject, "preemption", sentence))
    fungibility = queue.flavor_fungibility
    both_try_next = (
        fungibility.when_can_borrow is FlavorFungibilityPolicy.TRY_NEXT_FLAVOR
        and fungibility.when_can_preempt is FlavorFungibilityPolicy.TRY_NEXT_FLAVOR
    )
    if fungibility.preference is not None and not both_try_next:
        sentence = "preference needs both whenCanBorrow and whenCanPreempt TryNextFlavor"
        problems.append(SpecProblem(subject, "flavor_fungibility", sentence))
    return problems


def _group_problems(subject: str, queue: ClusterQueueSpec) -> list[SpecProblem]:
    problems = []
    if len(queue.resource_groups) > MAX_RESOURCE_GROUPS:
        sentence = f"has {len(queue.resource_groups)} groups, at most {MAX_RESOURCE_GROUPS}"
        problems.append(SpecProblem(subject, "resource_groups", sentence))
    flavors: set[str] = set()
    resources: set[str] = set()
    wanted: set[FlavorResource] = set()
    for group in queue.resource_groups:
        if not group.covered_resources or not group.flavors:
            sentence = "a group needs at least one resource and one flavor"
            problems.append(SpecProblem(subject, "resource_groups", sentence))
        for resource in group.covered_resources:
            if resource in resources:
                sentence = f"resource {resource} is in more than one group"
                problems.append(SpecProblem(subject, "resource_groups", sentence))
            resources.add(resource)
        for flavor in group.flavors:
            if flavor in flavors:
                sentence = f"flavor {flavor} is in more than one group"
                problems.append(SpecProblem(subject, "resource_groups", sentence))
            flavors.add(flavor)
            wanted.update(FlavorResource(flavor, name) for name in group.covered_resources)
    for pair in sorted(wanted - queue.quotas.keys()):
        sentence = f"no quota for {pair.resource} in flavor {pair.flavor}"
        problems.append(SpecProblem(subject, "quotas", sentence))
    for pair in sorted(queue.quotas.keys() - wanted):
        sentence = f"{pair.resource} in flavor {pair.flavor} is in no resource group"
        problems.append(SpecProblem(subject, "quotas", sentence))
    return problems


def _quota_problems(
    subject: str, pair: FlavorResource, quota: ResourceQuota, *, has_parent: bool
) -> list[SpecProblem]:
    problems = []
    limits = (quota.borrowing_limit, quota.lending_limit)
    if quota.nominal < 0 or any(limit is not None and limit < 0 for limit in limits):
        sentence = f"quota of {pair.resource} in {pair.flavor} is below 0"
        problems.append(SpecProblem(subject, "quotas", sentence))
    if not has_parent and any(limit is not None for limit in limits):
        sentence = (
            f"borrowing and lending limits of {pair.resource} in {pair.flavor} need a cohort to "
            "borrow from and lend to"
        )
        problems.append(SpecProblem(subject, "quotas", sentence))
    return problems


def _weight_problems(subject: str, weight_milli: int) -> list[SpecProblem]:
    if weight_milli >= 0:
        return []
    return [SpecProblem(subject, "fair_weight_milli", f"is {weight_milli}, at least 0")]


def _cohort_shape_problems(cohorts: Sequence[CohortSpec]) -> list[SpecProblem]:
    parents = {cohort.name: cohort.parent for cohort in cohorts}
    problems = []
    for name in parents:
        path = [name]
        above = parents.get(name)
        while above is not None and above != name and len(path) <= MAX_COHORT_DEPTH:
            path.append(above)
            above = parents.get(above)
        if above == name:
            circle = " → ".join([*path, name])
            problems.append(SpecProblem(f"Cohort {name}", "parent", f"forms a cycle: {circle}"))
        elif above is not None:
            sentence = f"has more than {MAX_COHORT_DEPTH} cohorts above it, or leads into a cycle"
            problems.append(SpecProblem(f"Cohort {name}", "parent", sentence))
    return problems


def _local_queue_problems(local: LocalQueueSpec, known: set[str]) -> list[SpecProblem]:
    subject = f"LocalQueue {local.key}"
    problems = []
    if local.cluster_queue not in known:
        sentence = f"there is no ClusterQueue {local.cluster_queue}"
        problems.append(SpecProblem(subject, "cluster_queue", sentence))
    for pair, limit in local.limits.items():
        if limit < 0:
            sentence = f"limit of {pair.resource} in {pair.flavor} is below 0"
            problems.append(SpecProblem(subject, "limits", sentence))
    return problems
