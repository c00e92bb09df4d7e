"""From the facts of Node objects to what the product keeps of nodes: pure."""

from gpuplane.backends.interface import GpuObservation, NodeObservation
from gpuplane.core.ids import GpuId
from gpuplane.kube.nodefacts import NodeFacts

CORDONED = ("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint that a cordoned node has; set here too, for the moment before the cluster sets it."""


def observe_node(facts: NodeFacts) -> NodeObservation:
    """Return a node with its devices as the scheduler is to see it."""
    taints = facts.taints
    if facts.unschedulable and not any(key == CORDONED[0] for key, _, _ in taints):
        taints = (*taints, CORDONED)
    gpus = tuple(
        GpuObservation(
            gpu_id=GpuId(each.gpu_id),
            index=each.index,
            model=each.model,
            memory_mib=each.memory_mib,
            healthy=each.healthy,
            message=each.message,
            numa=each.numa,
        )
        for each in facts.gpus
    )
    return NodeObservation(
        name=facts.name,
        ready=facts.ready,
        cpu_milli=facts.cpu_milli,
        memory_mib=facts.memory_mib,
        ephemeral_mib=facts.ephemeral_mib,
        gpus=gpus,
        topology=facts.topology,
        labels=facts.labels,
        taints=taints,
        rack=facts.rack,
        block=facts.block,
        rdma_fabric=facts.rdma_fabric,
        message=facts.message,
        details=facts.details,
    )
