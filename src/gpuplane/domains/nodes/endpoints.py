"""HTTP of nodes: list, cordon, drain and uncordon."""

from typing import Annotated

from fastapi import APIRouter, Path

from gpuplane.core.amounts import MIB_PER_GIB
from gpuplane.core.ids import ClusterId
from gpuplane.db import ReadSession
from gpuplane.db.calls import CallDep
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.nodes import service
from gpuplane.domains.nodes.schemas import (
    ConditionOut,
    DrainIn,
    GpuOut,
    NodeOut,
    NodesOut,
    TaintOut,
)
from gpuplane.domains.nodes.service import Gpu, Node
from gpuplane.kit.access import Permission, requires

router = APIRouter(tags=["nodes"])

ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]
NodeKey = Annotated[str, Path(min_length=1, max_length=253, description="Id or name.")]


@router.get("/clusters/{cluster}/nodes")
@requires(Permission.CLUSTER_READ)
async def list_nodes(call: CallDep, cluster: ClusterKey) -> NodesOut:
    """List the nodes of a cluster with their GPUs, those that are gone last seen as they were."""
    found = await call.read(lambda s: service.list_nodes(s, _cluster_id(s, cluster)))
    return NodesOut.model_construct(items=[_node_body(each) for each in found])


@router.get("/clusters/{cluster}/nodes/{node}")
@requires(Permission.CLUSTER_READ)
async def get_node(call: CallDep, cluster: ClusterKey, node: NodeKey) -> NodeOut:
    """Return one node with its GPUs."""
    return _node_body(await call.read(lambda s: service.get_node(s, _cluster_id(s, cluster), node)))


@router.post("/clusters/{cluster}/nodes/{node}/cordon")
@requires(Permission.NODE_MANAGE)
async def cordon_node(call: CallDep, cluster: ClusterKey, node: NodeKey) -> NodeOut:
    """Let nothing new start on a node; what runs there goes on."""
    return await call.write(
        "nodes.cordon",
        lambda s: service.cordon(s, _cluster_id(s, cluster), node, call.principal.name, call.now),
        _node_body,
    )


@router.post("/clusters/{cluster}/nodes/{node}/drain")
@requires(Permission.NODE_MANAGE)
async def drain_node(
    call: CallDep, cluster: ClusterKey, node: NodeKey, body: DrainIn | None = None
) -> NodeOut:
    """Cordon a node and move its work: a checkpoint signal, a wait, then the move."""
    wait_s = (body or DrainIn()).wait_s
    return await call.write(
        "nodes.start_drain",
        lambda s: service.start_drain(
            s, _cluster_id(s, cluster), node, wait_s, call.principal.name, call.now
        ),
        _node_body,
    )


@router.post("/clusters/{cluster}/nodes/{node}/uncordon")
@requires(Permission.NODE_MANAGE)
async def uncordon_node(call: CallDep, cluster: ClusterKey, node: NodeKey) -> NodeOut:
    """Let work start on a node again; ends a drain."""
    return await call.write(
        "nodes.uncordon",
        lambda s: service.uncordon(s, _cluster_id(s, cluster), node, call.principal.name, call.now),
        _node_body,
    )


def _cluster_id(session: ReadSession, key: str) -> ClusterId:
    return clusters.get_cluster(session, key).id


def _node_body(node: Node) -> NodeOut:
    details = node.details
    return NodeOut.model_construct(
        id=node.id,
        cluster_id=node.cluster_id,
        name=node.name,
        ready=node.ready,
        present=node.present,
        message=node.message,
        cordoned=node.cordoned,
        draining=node.drain_started_at is not None,
        drain_started_at=node.drain_started_at,
        drain_wait_s=node.drain_wait_s,
        cpu_cores=node.cpu_milli / 1000,
        memory_gb=node.memory_mib / MIB_PER_GIB,
        ephemeral_storage_gb=node.ephemeral_mib / MIB_PER_GIB,
        labels=node.labels,
        taints=[
            TaintOut(key=key, value=value, effect=effect) for key, value, effect in node.taints
        ],
        topology=node.topology,
        rack=node.rack,
        block=node.block,
        rdma_fabric=node.rdma_fabric,
        type=details.kind,
        internal_ip=details.internal_ip,
        schedulable=node.present
        and node.ready
        and not node.cordoned
        and not details.unschedulable
        and details.is_counted,
        unschedulable=details.unschedulable,
        is_counted=details.is_counted,
        total_workers=max(1, sum(gpu.present for gpu in node.gpus)) if details.is_counted else 0,
        threads_per_core=details.threads_per_core,
        core_count=details.core_count,
        hardware_info=details.hardware,
        conditions=[
            ConditionOut(type=kind, status=status, reason=reason, message=message)
            for kind, status, reason, message in details.conditions
        ],
        nfd_detected=details.nfd_detected,
        nfd_labels=details.nfd_labels,
        detection_method=details.detection_method,
        kernel_info=details.kernel,
        driver_info=details.driver,
        status_sync_at=node.status_sync_at,
        gpus=[_gpu_body(each) for each in node.gpus],
        updated_at=node.updated_at,
        resource_version=node.version,
    )


def _gpu_body(gpu: Gpu) -> GpuOut:
    return GpuOut.model_construct(
        gpu_id=str(gpu.gpu_id),
        index=gpu.gpu_index,
        gpu_type=gpu.model,
        product=gpu.product,
        memory_gb=gpu.memory_mib / MIB_PER_GIB,
        healthy=gpu.healthy,
        message=gpu.message,
        numa=gpu.numa,
        mig_enabled=gpu.mig_enabled,
        mig_instances=[f"{profile}@{start}" for profile, start in gpu.mig_instances],
    )
