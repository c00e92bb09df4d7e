"""HTTP of the Topologies of a cluster with Kueue."""

from typing import Annotated

from fastapi import Path

from gpuplane.db.calls import CallDep
from gpuplane.domains.queues import service
from gpuplane.domains.queues.endpoints.bodies import conflict_body
from gpuplane.domains.queues.endpoints.routes import router
from gpuplane.domains.queues.schemas import (
    QueueName,
    TopologiesOut,
    TopologyChangeIn,
    TopologyIn,
    TopologyOut,
)
from gpuplane.domains.queues.service import ShownTopology, TopologySpec
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Done

ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]
NamePath = Annotated[QueueName, Path()]


@router.get("/clusters/{cluster}/topologies")
@requires(Permission.QUOTA_READ)
async def list_topologies(call: CallDep, cluster: ClusterKey) -> TopologiesOut:
    """List the Topologies of a cluster with Kueue, those of others among them."""
    found = await call.read(lambda s: service.list_topologies(s, cluster))
    return TopologiesOut(items=[_body(each) for each in found])


@router.post("/clusters/{cluster}/topologies", status_code=201)
@requires(Permission.QUOTA_MANAGE)
async def create_topology(call: CallDep, cluster: ClusterKey, body: TopologyIn) -> TopologyOut:
    """Declare how nodes are laid out, and the flavors whose nodes are."""
    spec = TopologySpec(body.name, tuple(body.levels), tuple(sorted(set(body.flavors))))
    return await call.write(
        "queues.create_topology",
        lambda s: service.create_topology(s, cluster, spec, call.principal.name, call.now),
        _body,
        201,
    )


@router.put("/clusters/{cluster}/topologies/{name}")
@requires(Permission.QUOTA_MANAGE)
async def change_topology(
    call: CallDep, cluster: ClusterKey, name: NamePath, body: TopologyChangeIn
) -> TopologyOut:
    """Let more flavors have a Topology; Kueue lets neither its levels change nor a flavor leave."""
    spec = TopologySpec(name, tuple(body.levels), tuple(sorted(set(body.flavors))))
    return await call.write(
        "queues.change_topology",
        lambda s: service.change_topology(s, cluster, spec, call.principal.name, call.now),
        _body,
    )


@router.delete("/clusters/{cluster}/topologies/{name}")
@requires(Permission.QUOTA_MANAGE)
async def delete_topology(call: CallDep, cluster: ClusterKey, name: NamePath) -> Done:
    """Withdraw a Topology that no flavor has."""
    return await call.write(
        "queues.delete_topology",
        lambda s: service.delete_topology(s, cluster, name, call.principal.name, call.now),
        lambda _: Done(),
    )


def _body(shown: ShownTopology) -> TopologyOut:
    return TopologyOut(
        name=shown.spec.name,
        levels=list(shown.spec.levels),
        flavors=list(shown.spec.flavors),
        is_declared=shown.is_declared,
        is_on_cluster=shown.seen is not None and bool(shown.seen.spec),
        conflict=conflict_body(shown.seen),
    )
