"""Quota documents survive the way to Kueue's objects and back, in every version that is spoken."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.quota import (
    CohortSpec,
    FlavorFungibility,
    FlavorFungibilityPolicy,
    FlavorPreference,
    FlavorResource,
    LocalQueueSpec,
    QueueingStrategy,
    ResourceGroup,
    ResourceQuota,
    list_spec_problems,
)
from gpuplane.core.quota.quantities import amount_of, quantity_text
from gpuplane.core.quota.specs import ClusterQueueSpec
from gpuplane.core.workloads import PRIORITY_VALUES
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.kube.kueue.queues import (
    cluster_queue_object,
    cohort_object,
    local_queue_object,
    read_cluster_queue,
    read_cohort,
    read_local_queue,
)
from tests.property.quota_trees import Declared, declarations, policies

RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "ephemeral-storage", "habana.ai/gaudi")
AMOUNTS = st.integers(0, 10**9)
VERSIONS = st.sampled_from(ApiVersion)
HIGHEST = st.none() | st.sampled_from(sorted(PRIORITY_VALUES.values()))


@st.composite
def fungibilities(draw: st.DrawFn) -> FlavorFungibility:
    borrow = draw(st.sampled_from(FlavorFungibilityPolicy))
    preempt = draw(st.sampled_from(FlavorFungibilityPolicy))
    both = borrow is preempt is FlavorFungibilityPolicy.TRY_NEXT_FLAVOR
    preference = draw(st.none() | st.sampled_from(FlavorPreference)) if both else None
    return FlavorFungibility(borrow, preempt, preference)


@st.composite
def cluster_queues(draw: st.DrawFn) -> ClusterQueueSpec:
    resources = draw(st.lists(st.sampled_from(RESOURCES), min_size=1, max_size=4, unique=True))
    cut = draw(st.integers(1, len(resources)))
    groups = [ResourceGroup(tuple(resources[:cut]), ("nvidia-a100-80gb", "nvidia-l4"))]
    if cut < len(resources):
        groups.append(ResourceGroup(tuple(resources[cut:]), ("any",)))
    cohort = draw(st.none() | st.just("research"))
    quotas = {}
    for group in groups:
        for flavor in group.flavors:
            for resource in group.covered_resources:
                nominal = draw(AMOUNTS)
                borrow = draw(st.none() | AMOUNTS) if cohort else None
                lend = draw(st.none() | st.integers(0, nominal)) if cohort else None
                quotas[FlavorResource(flavor, resource)] = ResourceQuota(nominal, borrow, lend)
    return ClusterQueueSpec(
        "team",
        cohort,
        tuple(groups),
        quotas,
        draw(st.sampled_from(QueueingStrategy)),
        draw(st.integers(0, 10_000)),
        draw(policies()),
        draw(fungibilities()),
        highest_priority=draw(HIGHEST),
    )


@given(cluster_queues(), VERSIONS)
def test_a_cluster_queue_comes_back_as_it_went(spec: ClusterQueueSpec, version: ApiVersion) -> None:
    assert list_spec_problems([spec]) == []
    reading = read_cluster_queue(cluster_queue_object(spec, version, ("gpuplane-hold",)))
    assert (reading.spec, reading.notes) == (spec, ())


@given(declarations(), VERSIONS)
def test_whole_trees_come_back_as_they_went(declared: Declared, version: ApiVersion) -> None:
    queues = [
        read_cluster_queue(cluster_queue_object(each, version)).spec for each in declared.queues
    ]
    cohorts = [read_cohort(cohort_object(each, version)).spec for each in declared.cohorts]
    owned = [
        replace(each, quotas={k: q for k, q in each.quotas.items() if q != ResourceQuota(0)})
        for each in declared.cohorts
    ]
    assert queues == list(declared.queues)
    assert cohorts == owned


@given(
    st.dictionaries(
        st.builds(FlavorResource, st.sampled_from("abcd"), st.sampled_from(RESOURCES)),
        st.builds(ResourceQuota, AMOUNTS, st.none() | AMOUNTS, st.none() | AMOUNTS),
        max_size=8,
    ),
    VERSIONS,
)
def test_a_cohort_of_any_quotas_becomes_groups_that_kueue_takes(
    quotas: dict[FlavorResource, ResourceQuota], version: ApiVersion
) -> None:
    spec = CohortSpec("all", "above", quotas)
    made = cohort_object(spec, version)
    groups = made["spec"]["resourceGroups"]
    resources = [name for group in groups for name in group["coveredResources"]]
    flavors = [flavor["name"] for group in groups for flavor in group["flavors"]]
    assert len(set(resources)) == len(resources)
    assert len(set(flavors)) == len(flavors)
    for group in groups:
        for flavor in group["flavors"]:
            assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]
    kept = {pair: quota for pair, quota in quotas.items() if quota != ResourceQuota(0)}
    assert read_cohort(made).spec == replace(spec, quotas=kept)


@given(st.sets(st.sampled_from(("batch", "training", "service"))), HIGHEST, VERSIONS)
def test_a_local_queue_comes_back_as_it_went(
    types: set[str], highest: int | None, version: ApiVersion
) -> None:
    spec = LocalQueueSpec("door", "acme", "team", frozenset(types), {}, highest)
    made = local_queue_object(spec, "tenant-acme", version)
    assert made["metadata"]["namespace"] == "tenant-acme"
    assert read_local_queue(made) == spec


@given(st.sampled_from(RESOURCES), st.integers(0, 10**12))
def test_an_amount_written_as_a_quantity_reads_as_the_same_amount(name: str, amount: int) -> None:
    assert amount_of(name, quantity_text(name, amount)) == (amount, True)
