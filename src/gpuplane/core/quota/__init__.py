"""Kueue's quota arithmetic: who may use how much, who borrows, who may reclaim.

Owns the exact integer arithmetic of ClusterQueues, cohorts and LocalQueues and every decision
that follows from it alone. Never reads a clock, a database or a node.
"""

from gpuplane.core.quota.shares import MAX_SHARE, DominantShare
from gpuplane.core.quota.specs import (
    CPU,
    GPU,
    MEMORY,
    UNLIMITED,
    AdmissionMode,
    BorrowWithinCohortPolicy,
    ClusterQueueSpec,
    CohortSpec,
    FlavorFungibility,
    FlavorFungibilityPolicy,
    FlavorPreference,
    FlavorResource,
    LocalQueueSpec,
    PreemptionPolicy,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    SpecProblem,
    WithinClusterQueue,
    find_local_queue,
    list_spec_problems,
    unlimited_cluster_queue,
)
from gpuplane.core.quota.tree import QuotaRow, QuotaTree
from gpuplane.core.quota.verdicts import (
    Borrowing,
    Outcome,
    QuotaVerdict,
    Shortage,
    describe_amount,
    describe_pair_amount,
)

__all__ = [
    "CPU",
    "GPU",
    "MAX_SHARE",
    "MEMORY",
    "UNLIMITED",
    "AdmissionMode",
    "BorrowWithinCohortPolicy",
    "Borrowing",
    "ClusterQueueSpec",
    "CohortSpec",
    "DominantShare",
    "FlavorFungibility",
    "FlavorFungibilityPolicy",
    "FlavorPreference",
    "FlavorResource",
    "LocalQueueSpec",
    "Outcome",
    "PreemptionPolicy",
    "QueueingStrategy",
    "QuotaRow",
    "QuotaTree",
    "QuotaVerdict",
    "ReclaimWithinCohort",
    "ResourceGroup",
    "ResourceQuota",
    "Shortage",
    "SpecProblem",
    "WithinClusterQueue",
    "describe_amount",
    "describe_pair_amount",
    "find_local_queue",
    "list_spec_problems",
    "unlimited_cluster_queue",
]
