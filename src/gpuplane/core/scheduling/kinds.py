"""What makes two workloads equal: for a place, and for what a cycle does when there is none.

Owns those questions; whatever a filter, a score or the search for victims comes to look at
besides belongs in here, or into the workload's class.
"""

from collections.abc import Hashable

from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.reservations import may_be_stopped
from gpuplane.core.scheduling.workload import Workload

Owners = frozenset[tuple[str, str]]
"""Tenants and projects with reservations that have not begun."""


def kind_of(workload: Workload, owners: Owners) -> Hashable | None:
    """Return what two workloads of a queue must share to find the same place, None if nothing."""
    placement = workload.placement
    if placement.co_locate_with or placement.separate_from:
        return None
    owner = None
    if owners:
        # What is kept clear for a reservation is not kept from its owner, nor from what may stop.
        project = (workload.tenant, workload.project)
        owner = (may_be_stopped(workload), project if project in owners else None)
    return (
        owner,
        workload.class_key,
        workload.local_queue,
        workload.replicas,
        placement.spreading,
        placement.network,
        workload.clusters,
        workload.estimated_duration_s,
        workload.max_duration_s,
        workload.learned,
    )


def rank_of(workload: Workload, place: Hashable | None) -> Hashable | None:
    """Return what two workloads of a place must share to be refused alike, None if each is asked.

    A GPU may be cut anew for one job and not for the next, so work on MIG instances is asked.
    Where queues have no quotas, whom one may stop depends on its tenant (`NodeRights`), which the
    LocalQueue in the kind tells where there is one.
    """
    if place is None or workload.resources.mig_profile is not None:
        return None
    tenant = workload.tenant if workload.local_queue is None else None
    return place, workload.priority.value, workload.preempts_others, tenant


def asker_of(workload: Workload, kind: Hashable | None) -> Hashable | None:
    """Return what two workloads must share for nothing to be tried for the one or the other.

    Once nobody is to be stopped for one of them and no head's place is left to be kept, each of
    them that finds no place just waits. None for those that have other ways to a place: GPUs of a
    reservation, GPUs cut anew, fewer replicas.
    """
    if (
        kind is None
        or workload.reservation_id is not None
        or workload.resources.mig_profile is not None
        or needed_replicas(workload.replicas) != workload.replicas.count
    ):
        return None
    return workload.queue, workload.priority.value, workload.preempts_others, workload.clusters
