"""From the facts of Node objects to what the product keeps of nodes: pure."""

from gpuplane.backends.interface import GpuObservation, NodeObservation
from gpuplane.core.ids import GpuId
from gpuplane.core.mig.profiles import find_table
from gpuplane.core.mig.spreading import Instances, spread_instances
from gpuplane.kube.nodefacts import NodeFacts

CORDONED = ("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint that a cordoned node has; set here too, for the moment before the cluster sets it."""


def observe_node(facts: NodeFacts) -> NodeObservation:
    """Return a node with its devices as the scheduler is to see it."""
    taints = facts.taints
    if facts.unschedulable and not any(key == CORDONED[0] for key, _, _ in taints):
        taints = (*taints, CORDONED)
    instances = _instances_of(facts)
    gpus = tuple(
        GpuObservation(
            gpu_id=GpuId(each.gpu_id),
            index=each.index,
            model=each.model,
            memory_mib=each.memory_mib,
            healthy=each.healthy,
            message=each.message,
            numa=each.numa,
            mig_enabled=each.index in instances,
            mig_instances=instances.get(each.index, ()),
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


def _instances_of(facts: NodeFacts) -> dict[int, Instances]:
    """Return the MIG instances of each GPU that is cut, by its index.

    A node tells how many there are of each profile; which GPU has which is the same to a pod, and
    is laid out here so that each is counted and priced once.
    """
    cut = facts.accelerators.cut
    table = find_table(facts.gpus[0].model) if cut else None
    if table is None:
        return {}
    spread = spread_instances(table, cut, facts.accelerators.mig)
    return {gpu.index: found for gpu, found in zip(facts.gpus[-cut:], spread, strict=True)}
