"""Random quota trees and workloads for the properties of quota."""

from dataclasses import dataclass

from hypothesis import strategies as st

from gpuplane.core.quota import (
    AdmissionMode,
    AdmittedWorkload,
    BorrowWithinCohortPolicy,
    ClusterQueueSpec,
    CohortSpec,
    FlavorResource,
    PreemptionPolicy,
    QuotaTree,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
)

GPU_AND_CPU = ResourceGroup(("cpu", "nvidia.com/gpu"), ("H100",))
TWO_MODELS = ResourceGroup(("nvidia.com/gpu",), ("H100", "L4"))
AMOUNTS = st.integers(0, 6)
Usage = dict[FlavorResource, int]


@dataclass(frozen=True)
class Declared:
    queues: tuple[ClusterQueueSpec, ...]
    cohorts: tuple[CohortSpec, ...]
    pairs: tuple[FlavorResource, ...]

    def tree(self, mode: AdmissionMode = AdmissionMode.CLASSICAL) -> QuotaTree:
        return QuotaTree(self.queues, self.cohorts, mode=mode)


@dataclass(frozen=True)
class Request:
    id: str
    queue: str
    usage: Usage
    priority: int
    queued_at_ms: int


@st.composite
def quotas(
    draw: st.DrawFn, pairs: tuple[FlavorResource, ...], *, has_parent: bool, is_queue: bool
) -> dict[FlavorResource, ResourceQuota]:
    found = {}
    for pair in pairs:
        nominal = draw(st.integers(0, 10))
        borrow = draw(st.none() | AMOUNTS) if has_parent else None
        most_lent = nominal if is_queue else 10
        lend = draw(st.none() | st.integers(0, most_lent)) if has_parent else None
        found[pair] = ResourceQuota(nominal, borrow, lend)
    return found


@st.composite
def policies(draw: st.DrawFn) -> PreemptionPolicy:
    reclaim = draw(st.sampled_from(ReclaimWithinCohort))
    borrow = BorrowWithinCohortPolicy.NEVER
    threshold = None
    if reclaim is not ReclaimWithinCohort.NEVER:
        borrow = draw(st.sampled_from(BorrowWithinCohortPolicy))
    if borrow is not BorrowWithinCohortPolicy.NEVER:
        threshold = draw(st.none() | st.integers(0, 3))
    return PreemptionPolicy(draw(st.sampled_from(WithinClusterQueue)), reclaim, borrow, threshold)


@st.composite
def declarations(draw: st.DrawFn) -> Declared:
    """Return cohorts whose parent is one of those before them, and queues under any or none."""
    group = draw(st.sampled_from((GPU_AND_CPU, TWO_MODELS)))
    pairs = tuple(
        FlavorResource(flavor, resource)
        for flavor in group.flavors
        for resource in group.covered_resources
    )
    cohorts: list[CohortSpec] = []
    for index in range(draw(st.integers(1, 4))):
        parent = f"c{draw(st.integers(0, index - 1))}" if index else None
        owned = draw(quotas(pairs, has_parent=parent is not None, is_queue=False))
        weight_milli = draw(st.sampled_from((0, 500, 1000, 3000)))
        cohorts.append(CohortSpec(f"c{index}", parent, owned, weight_milli))
    queues: list[ClusterQueueSpec] = []
    for index in range(draw(st.integers(1, 5))):
        cohort = draw(st.none() | st.sampled_from([spec.name for spec in cohorts]))
        queues.append(
            ClusterQueueSpec(
                f"q{index}",
                cohort,
                (group,),
                draw(quotas(pairs, has_parent=cohort is not None, is_queue=True)),
                fair_weight_milli=draw(st.sampled_from((0, 500, 1000, 3000))),
                preemption=draw(policies()),
            )
        )
    return Declared(tuple(queues), tuple(cohorts), pairs)


@st.composite
def requests(draw: st.DrawFn, declared: Declared, most: int = 12) -> list[Request]:
    names = [spec.name for spec in declared.queues]
    found = []
    for index in range(draw(st.integers(0, most))):
        usage = {pair: draw(AMOUNTS) for pair in declared.pairs}
        priority, age = draw(st.integers(0, 3)), draw(st.integers(0, 5))
        found.append(Request(f"w{index}", draw(st.sampled_from(names)), usage, priority, age))
    return found


@st.composite
def histories(draw: st.DrawFn) -> tuple[Declared, list[Request]]:
    declared = draw(declarations())
    return declared, draw(requests(declared))


def admit_what_fits(tree: QuotaTree, wanted: list[Request]) -> list[AdmittedWorkload]:
    """Count every request that fits, in the order given, and return what was admitted."""
    admitted = []
    for index, request in enumerate(wanted):
        if tree.fits(request.queue, request.usage).fits:
            tree.add_usage(request.queue, request.usage)
            admitted.append(
                AdmittedWorkload(
                    request.id,
                    request.queue,
                    request.usage,
                    request.priority,
                    request.queued_at_ms,
                    admitted_at_ms=index,
                )
            )
    return admitted


def state_of(tree: QuotaTree) -> dict[str, Usage]:
    """Return all usage, of queues and cohorts, for comparison."""
    state = {f"queue {name}": tree.usage_of(name) for name in tree.cluster_queues}
    state |= {f"cohort {name}": tree.cohort_usage_of(name) for name in tree.cohorts}
    return state
