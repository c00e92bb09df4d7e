"""The nodes and GPUs of the fleet as they are now: what is up, what has failed.

Owns the look-ups by node and GPU and the cached observation of all nodes, rebuilt only where a
scheduled failure begins or ends or a GPU is cut anew.
"""

from collections.abc import Iterable, Sequence

from gpuplane.backends.interface import (
    BackendError,
    GpuObservation,
    MigOrder,
    NodeObservation,
    ReplicaPlan,
)
from gpuplane.backends.simulated.cutting import Cut, cut_gpu, mig_device_name
from gpuplane.backends.simulated.fleet import (
    Failure,
    FailureKind,
    Fleet,
    Gpu,
    Node,
    find_next_change,
)
from gpuplane.backends.simulated.timeline import LABEL
from gpuplane.core.fleet.facts import CLIQUE_LABEL
from gpuplane.core.reasons import Word

NVL72_TRAY = "nvl72-node-4"
"""The trays of one NVL72 rack share an NVLink domain: that is what the machine is."""
SIMULATED_LABEL = "gpuplane.io/simulated"
"""Every simulated node wears it, so that a selector can ask for or avoid them."""


class Inventory:
    """What the fleet has, and which part of it works."""

    def __init__(self, fleet: Fleet, opened_at: int, cuts: Iterable[Cut] = ()) -> None:
        self.failures: dict[str, Sequence[Failure]] = {}
        for failure in fleet.failures:
            self.failures[failure.node] = (*self.failures.get(failure.node, ()), failure)
        self._nodes = {node.name: node for node in fleet.nodes}
        self.gpu_index: dict[str, int] = {
            gpu.gpu_id: gpu.index for node in fleet.nodes for gpu in node.gpus
        }
        cut_here: dict[str, Gpu] = {gpu.gpu_id: gpu for node in fleet.nodes for gpu in node.gpus}
        self._cuts: dict[str, Cut] = {
            cut.gpu_id: cut
            for cut in cuts
            # A fleet file that gives the GPU another layout since then wins.
            if cut.gpu_id in cut_here and cut_here[cut.gpu_id].mig == cut.base
        }
        self._observed = {node.name: self._observe_node(node, opened_at) for node in fleet.nodes}
        self._told = tuple(self._observed.values())
        self._fleet = fleet
        self.generation = max(1, opened_at)
        self.next_change = self._find_next_change(opened_at)

    @property
    def nodes(self) -> tuple[NodeObservation, ...]:
        """Return all nodes as last refreshed, in the order of the fleet."""
        return self._told

    def refresh(self, at: int) -> None:
        """Bring the nodes up to this fleet instant; the generation grows if any changed."""
        if self.next_change is None or at < self.next_change:
            return
        self._look_again({*self.failures, *(cut.node for cut in self._cuts.values())}, at)

    def _look_again(self, names: Iterable[str], at: int) -> None:
        changed = False
        for name in names:
            fresh = self._observe_node(self._nodes[name], at)
            if fresh != self._observed[name]:
                self._observed[name] = fresh
                changed = True
        if changed:
            self._told = tuple(self._observed.values())
            self.generation = max(self.generation + 1, at)
        self.next_change = self._find_next_change(at)

    def _find_next_change(self, at: int) -> int | None:
        ready = [cut.ready_at for cut in self._cuts.values() if cut.ready_at > at]
        failing = find_next_change(self._fleet.failures, at)
        return min([*ready, *([] if failing is None else [failing])], default=None)

    def plan_cut(self, order: MigOrder, at: int) -> Cut | None:
        """Return how a GPU is cut as ordered, or None when it is cut so already.

        Raises:
            BackendError: If the GPU is not there, does not work, is not in MIG mode or is being
                cut otherwise, or the instances cannot exist together.
        """
        node = self._nodes.get(order.node_name)
        gpu = None
        if node is not None:
            gpu = next((each for each in node.gpus if each.gpu_id == order.gpu_id), None)
        if gpu is None:
            message = f"node {order.node_name} has no GPU {order.gpu_id}"
            raise _refusal(Word.MIG_UNAVAILABLE, message)
        if self._is_broken(order.node_name, None, at) or self._is_broken(
            order.node_name, gpu.index, at
        ):
            raise _refusal(Word.GPU_FAILED, f"GPU {gpu.index} of {order.node_name} is down")
        known = self._cuts.get(gpu.gpu_id)
        after = gpu.mig if known is None else known.instances
        if set(order.create) <= set(after) and not set(order.destroy) & set(after):
            return None
        if known is not None and known.ready_at > at:
            message = f"GPU {gpu.index} of {order.node_name} is being cut already"
            raise _refusal(Word.MIG_UNAVAILABLE, message)
        return cut_gpu(order, gpu, after, at)

    def put_cut(self, cut: Cut, at: int) -> None:
        """Let a cut take effect: what it destroys is gone now, what it creates comes later."""
        self._cuts[cut.gpu_id] = cut
        self._look_again([cut.node], at)

    def has_node(self, name: str) -> bool:
        """Return whether the fleet has a node of this name."""
        return name in self._nodes

    def check_place(self, plan: ReplicaPlan, at: int) -> None:
        """Refuse a place that does not exist or does not work.

        Raises:
            BackendError: With the word and the sentence why nothing can start there.
        """
        node = self._nodes.get(plan.node_name)
        if node is None:
            raise _refusal(Word.START_FAILED, f"the fleet has no node {plan.node_name}")
        if self._is_broken(plan.node_name, None, at):
            raise _refusal(Word.NODE_LOST, f"node {plan.node_name} is down")
        own = {gpu.gpu_id: gpu for gpu in node.gpus}
        for gpu_id in plan.gpu_ids:
            gpu = own.get(gpu_id)
            if gpu is None:
                raise _refusal(Word.START_FAILED, f"node {node.name} has no GPU {gpu_id}")
            if self._is_broken(node.name, gpu.index, at):
                message = f"GPU {gpu.index} of node {node.name} has failed"
                raise _refusal(Word.GPU_FAILED, message)
            if plan.mig_device is not None:
                names = [mig_device_name(gpu_id, one) for one in self._instances(gpu, at)]
                if plan.mig_device not in names:
                    message = f"GPU {gpu.index} of node {node.name} has no {plan.mig_device}"
                    raise _refusal(Word.MIG_UNAVAILABLE, message)

    def _instances(self, gpu: Gpu, at: int) -> tuple[tuple[str, int], ...]:
        cut = self._cuts.get(gpu.gpu_id)
        return gpu.mig if cut is None else cut.instances_at(at)

    def _is_broken(self, node: str, gpu_index: int | None, at: int) -> bool:
        kind = FailureKind.NODE_DOWN if gpu_index is None else FailureKind.GPU_FAILED
        return any(
            failure.kind is kind and failure.gpu_index == gpu_index and failure.is_active(at)
            for failure in self.failures.get(node, ())
        )

    def _observe_node(self, node: Node, at: int) -> NodeObservation:
        ready = not self._is_broken(node.name, None, at)
        labels = {**node.labels, SIMULATED_LABEL: "true"}
        if node.gpus:
            labels.setdefault("nvidia.com/gpu.count", str(len(node.gpus)))
            labels.setdefault("nvidia.com/gpu.product", node.gpus[0].model)
            labels.setdefault("nvidia.com/gpu.memory", str(node.gpus[0].memory_mib))
        if node.topology == NVL72_TRAY and node.rack:
            labels.setdefault(CLIQUE_LABEL, f"{node.rack}.1")
        return NodeObservation(
            name=node.name,
            ready=ready,
            cpu_milli=node.cpu_milli,
            memory_mib=node.memory_mib,
            ephemeral_mib=node.ephemeral_mib,
            gpus=tuple(self._observe_gpu(node, gpu, at) for gpu in node.gpus),
            topology=node.topology,
            labels=labels,
            taints=node.taints,
            rack=node.rack,
            block=node.block,
            rdma_fabric=node.rdma_fabric,
            message=LABEL if ready else f"{LABEL} down by the fleet's schedule",
        )

    def _observe_gpu(self, node: Node, gpu: Gpu, at: int) -> GpuObservation:
        healthy = not self._is_broken(node.name, gpu.index, at)
        return GpuObservation(
            gpu_id=gpu.gpu_id,
            index=gpu.index,
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            healthy=healthy,
            message="" if healthy else f"{LABEL} failed by the fleet's schedule",
            numa=gpu.numa,
            mig_enabled=bool(gpu.mig),
            mig_instances=self._instances(gpu, at),
        )


def _refusal(word: Word, message: str) -> BackendError:
    return BackendError(word, f"{LABEL} {message}")
