"""HTTP of nodes: list, cordon, drain and uncordon."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path

from gpuplane.core.amounts import MIB_PER_GIB
from gpuplane.core.ids import ClusterId
from gpuplane.db import ReadSession, WriteSession
from gpuplane.db.calls import Call, CallDep
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
from gpuplane.domains.nodes.service import Gpu, Held, Node
from gpuplane.kit.access import Permission, rate_limited, requires

router = APIRouter(tags=["nodes"])

ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]
NODE_READS = "node_reads"
"""The limit on lists of nodes with the places for work on them (5.1 of the design document)."""
NodeKey = Annotated[str, Path(min_length=1, max_length=253, description="Id or name.")]


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """How nodes are used; offered by the composition root as the port `device_use`.

    Args:
        load_held: What work holds on the nodes of a cluster, which another domain knows.
        threshold_percent: From where on a place that is in use takes no more work.
    """

    load_held: Callable[[ReadSession, ClusterId], Held]
    threshold_percent: int


@router.get("/clusters/{cluster}/nodes")
@requires(Permission.CLUSTER_READ)
@rate_limited(NODE_READS)
async def list_nodes(call: CallDep, cluster: ClusterKey) -> NodesOut:
    """List the nodes of a cluster with their GPUs, those that are gone last seen as they were."""

    def load(session: ReadSession) -> list[NodeOut]:
        cluster_id = _cluster_id(session, cluster)
        used = _load_used(call, session, cluster_id)
        return [_node_body(each, used) for each in service.list_nodes(session, cluster_id)]

    return NodesOut.model_construct(items=await call.read(load))


@router.get("/clusters/{cluster}/nodes/{node}")
@requires(Permission.CLUSTER_READ)
async def get_node(call: CallDep, cluster: ClusterKey, node: NodeKey) -> NodeOut:
    """Return one node with its GPUs."""

    def load(session: ReadSession) -> NodeOut:
        found = service.get_node(session, _cluster_id(session, cluster), node)
        return _node_body(found, _load_used(call, session, found.cluster_id))

    return await call.read(load)


@router.post("/clusters/{cluster}/nodes/{node}/cordon")
@requires(Permission.NODE_MANAGE)
async def cordon_node(call: CallDep, cluster: ClusterKey, node: NodeKey) -> NodeOut:
    """Let nothing new start on a node; what runs there goes on."""
    return await _marked(
        call,
        "nodes.cordon",
        lambda s: service.cordon(s, _cluster_id(s, cluster), node, call.principal.name, call.now),
    )


@router.post("/clusters/{cluster}/nodes/{node}/drain")
@requires(Permission.NODE_MANAGE)
async def drain_node(
    call: CallDep, cluster: ClusterKey, node: NodeKey, body: DrainIn | None = None
) -> NodeOut:
    """Cordon a node and move its work: a checkpoint signal, a wait, then the move."""
    wait_s = (body or DrainIn()).wait_s
    return await _marked(
        call,
        "nodes.start_drain",
        lambda s: service.start_drain(
            s, _cluster_id(s, cluster), node, wait_s, call.principal.name, call.now
        ),
    )


@router.post("/clusters/{cluster}/nodes/{node}/uncordon")
@requires(Permission.NODE_MANAGE)
async def uncordon_node(call: CallDep, cluster: ClusterKey, node: NodeKey) -> NodeOut:
    """Let work start on a node again; ends a drain."""
    return await _marked(
        call,
        "nodes.uncordon",
        lambda s: service.uncordon(s, _cluster_id(s, cluster), node, call.principal.name, call.now),
    )


def _cluster_id(session: ReadSession, key: str) -> ClusterId:
    return clusters.get_cluster(session, key).id


@dataclass(frozen=True, slots=True)
class _Used:
    """What is held on a cluster's nodes, by which figure a place is full, and whether it answers.

    Args:
        silence: Since when the cluster has not answered, as a sentence; empty where it does.
    """

    held: Held
    threshold_percent: int
    now: int
    not_seen_since: int | None
    silence: str


def _load_used(call: Call, session: ReadSession, cluster_id: ClusterId) -> _Used:
    port = call.port("device_use", DeviceUse)
    cluster = clusters.get_cluster(session, cluster_id)
    return _Used(
        port.load_held(session, cluster_id),
        port.threshold_percent,
        call.now,
        cluster.not_available_since,
        clusters.describe_silence(cluster),
    )


async def _marked(call: Call, name: str, work: Callable[[WriteSession], Node]) -> NodeOut:
    """Set an operator's mark and return the node with how it is used."""

    def unit(session: WriteSession) -> NodeOut:
        node = work(session)
        return _node_body(node, _load_used(call, session, node.cluster_id))

    return await call.write(name, unit, lambda made: made)


def _node_body(node: Node, used: _Used) -> NodeOut:
    details = node.details
    workers = service.compute_workers(
        node, used.held, threshold_percent=used.threshold_percent, now=used.now
    )
    return NodeOut.model_construct(
        id=node.id,
        cluster_id=node.cluster_id,
        name=node.name,
        ready=node.ready,
        present=node.present,
        message=" ".join(filter(None, (used.silence, node.message))),
        not_seen_since=used.not_seen_since,
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
        schedulable=service.is_schedulable(node) and used.not_seen_since is None,
        unschedulable=details.unschedulable,
        is_counted=details.is_counted,
        total_workers=workers.total,
        used_workers=workers.used,
        available_workers=workers.available,
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
        gpus=[_gpu_body(each, used) for each in node.gpus],
        created_at=node.created_at,
        updated_at=node.updated_at,
        resource_version=node.version,
    )


def _gpu_body(gpu: Gpu, used: _Used) -> GpuOut:
    return GpuOut.model_construct(
        gpu_id=str(gpu.gpu_id),
        index=gpu.gpu_index,
        gpu_type=gpu.model,
        product=gpu.product,
        memory_gb=gpu.memory_mib / MIB_PER_GIB,
        healthy=gpu.healthy,
        message=gpu.message,
        numa=gpu.numa,
        used_percent=service.compute_used_percent(gpu, used.held, used.now),
        mig_enabled=gpu.mig_enabled,
        mig_instances=[f"{profile}@{start}" for profile, start in gpu.mig_instances],
    )
