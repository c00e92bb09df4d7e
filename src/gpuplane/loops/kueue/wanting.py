"""What a cluster's Kueue is to have, by what is declared here and what its nodes are."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuplane.core.quota.specs import ClusterQueueSpec, CohortSpec, LocalQueueSpec
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.identity import service as identity
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.service import TopologySpec
from gpuplane.kube.kueue.flavors import (
    FlavorSpec,
    LabelledGpus,
    flavor_object,
    plan_flavors,
    priority_class_objects,
    topology_object,
)
from gpuplane.kube.kueue.multikueue import CHECK
from gpuplane.kube.kueue.names import (
    HOLD_CHECK,
    HOLD_CONTROLLER,
    MANAGED_LABEL,
    UNCOUNTED_FLAVOR,
    ApiVersion,
)
from gpuplane.kube.kueue.queues import (
    cluster_queue_object,
    cohort_object,
    find_untold,
    find_untold_door,
    local_queue_object,
)
from gpuplane.kube.tenancy import Tenancy, namespace_of

Object = dict[str, Any]
ANY_FLAVOR = "any"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Everything declared of one cluster.

    Args:
        flavors: One for each GPU model of its nodes, and `any` for all of them.
        tenants: The tenants with a LocalQueue there, by name.
    """

    flavors: tuple[FlavorSpec, ...]
    cohorts: tuple[CohortSpec, ...]
    cluster_queues: tuple[ClusterQueueSpec, ...]
    local_queues: tuple[LocalQueueSpec, ...]
    tenants: Mapping[str, Tenancy]
    dispatching: frozenset[str] = frozenset()
    """ClusterQueues whose work goes to other clusters."""
    topologies: tuple[TopologySpec, ...] = ()
    laid_out: frozenset[str] = frozenset()
    """Flavors of others that have a Topology on the cluster."""


def load_wanted(session: ReadSession, cluster: Cluster) -> Wanted:
    """Return what is declared of a cluster and follows from its nodes."""
    declared = queues.load_declared(session, cluster.id)
    specs = declared.specs()
    labelled = [
        LabelledGpus(gpu.model, node.labels)
        for node in nodes.list_nodes(session, cluster.id)
        for gpu in node.gpus
        if gpu.present and node.present
    ]
    ids = {each.spec.tenant_id for each in declared.local_queues}
    known = identity.tenants_by_ids(session, ids)
    return Wanted(
        flavors=(
            *plan_flavors(labelled),
            FlavorSpec(ANY_FLAVOR),
            FlavorSpec(UNCOUNTED_FLAVOR),
        ),
        cohorts=specs.cohorts,
        cluster_queues=tuple(each for each in specs.cluster_queues if find_untold(each) is None),
        local_queues=tuple(each for each in specs.local_queues if find_untold_door(each) is None),
        tenants={
            each.name: Tenancy(each.name, str(key), str(cluster.id), {})
            for key, each in known.items()
        },
        dispatching=queues.dispatching_queues(cluster),
        topologies=queues.declared_topologies(cluster),
        laid_out=frozenset(
            each.name
            for each in declared.seen
            if each.kind is queues.SeenKind.FLAVOR and each.spec.get("topologyName")
        ),
    )


def check_object(version: ApiVersion) -> Object:
    """Return the AdmissionCheck by which budget, window and suspension hold work back."""
    return {
        "apiVersion": version.group_version,
        "kind": "AdmissionCheck",
        "metadata": {"name": HOLD_CHECK, "labels": {MANAGED_LABEL: "gpuplane"}},
        "spec": {"controllerName": HOLD_CONTROLLER},
    }


def wanted_objects(wanted: Wanted, version: ApiVersion) -> list[Object]:
    """Return the objects of Kueue that are to be there, in the order in which they are made."""
    made: list[Object] = [*priority_class_objects(version), check_object(version)]
    made += [topology_object(each.name, each.levels, version) for each in wanted.topologies]
    laid_out = {name: each.name for each in wanted.topologies for name in each.flavors}
    for flavor in wanted.flavors:
        topology = laid_out.get(flavor.name) if flavor.node_labels else None
        made.append(flavor_object(replace(flavor, topology=topology), version))
    made += [cohort_object(each, version) for each in wanted.cohorts]
    for each in wanted.cluster_queues:
        checks = (HOLD_CHECK, CHECK) if each.name in wanted.dispatching else (HOLD_CHECK,)
        made.append(cluster_queue_object(each, version, checks, wanted.laid_out | laid_out.keys()))
    made += [
        local_queue_object(each, namespace_of(each.tenant), version)
        for each in wanted.local_queues
        if each.tenant in wanted.tenants
    ]
    return made
