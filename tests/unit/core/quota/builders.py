"""Short spellings of queues and cohorts for the quota tests."""

from collections.abc import Mapping

from gpuplane.core.quota.specs import (
    ClusterQueueSpec,
    CohortSpec,
    FlavorResource,
    ResourceGroup,
    ResourceQuota,
)

RED_CPU = FlavorResource("red", "cpu")
BLUE_CPU = FlavorResource("blue", "cpu")


def quota(nominal: int, borrow: int | None = None, lend: int | None = None) -> ResourceQuota:
    return ResourceQuota(nominal, borrow, lend)


def queue(
    name: str,
    quotas: Mapping[FlavorResource, ResourceQuota],
    cohort: str | None = None,
    **fields: object,
) -> ClusterQueueSpec:
    """Return a queue whose groups hold resources that share the same flavors, in order given."""
    flavors_of: dict[str, list[str]] = {}
    for pair in quotas:
        flavors_of.setdefault(pair.resource, []).append(pair.flavor)
    resources_of: dict[tuple[str, ...], list[str]] = {}
    for resource, flavors in flavors_of.items():
        resources_of.setdefault(tuple(flavors), []).append(resource)
    groups = tuple(
        ResourceGroup(tuple(resources), flavors) for flavors, resources in resources_of.items()
    )
    return ClusterQueueSpec(name, cohort, groups, quotas, **fields)  # type: ignore[arg-type]  # fields of the spec


def red(name: str, cohort: str | None, nominal: int, *limits: int | None) -> ClusterQueueSpec:
    """Return a queue with red CPU alone: nominal, borrowing limit, lending limit."""
    return queue(name, {RED_CPU: quota(nominal, *limits)}, cohort)


def red_cohort(name: str, parent: str | None, nominal: int, *limits: int | None) -> CohortSpec:
    """Return a cohort with red CPU of its own."""
    return CohortSpec(name, parent, {RED_CPU: quota(nominal, *limits)})
