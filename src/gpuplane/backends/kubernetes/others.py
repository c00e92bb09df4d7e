"""What pods of other people take of the nodes, so that nobody is placed on what is gone.

Owns the sums by node, of pods that are bound, not over, and not of this cluster's jobs. Of a pod a
key and a shared tuple of amounts is kept: fifty thousand pods are a few megabytes. Which GPU a
stranger's pod has no API tells, nor which MIG instance; as many as it asks for are taken out, those
first that no job of ours holds.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil

import msgspec

from gpuplane.backends.interface import GpuObservation, NodeObservation
from gpuplane.backends.kubernetes.manifests.devices import GPU_RESOURCES
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import GpuId
from gpuplane.core.mig.profiles import MIG_RESOURCE_PREFIX, resource_of_profile
from gpuplane.core.podrequests import effective_request, read_request
from gpuplane.core.reasons import TAKEN_BY_OTHERS
from gpuplane.kube.shapes import Resources

BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of pods that take something of a node."""

_MIB = 1 << 20


class _Meta(msgspec.Struct, rename="camel", gc=False):
    name: str
    namespace: str = ""
    resource_version: str = ""


class _Container(msgspec.Struct, rename="camel", gc=False):
    resources: Resources | None = None
    restart_policy: str = ""


class _Spec(msgspec.Struct, rename="camel", gc=False):
    node_name: str = ""
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    resources: Resources | None = None
    overhead: dict[str, str | int | float] | None = None


class OtherPod(msgspec.Struct, gc=False):
    """A pod as far as it takes something of its node."""

    metadata: _Meta
    spec: _Spec


@dataclass(frozen=True, slots=True)
class Amounts:
    """What one pod takes, or all of them on a node; rounded up, for what is taken is gone."""

    cpu_milli: int = 0
    memory_mib: int = 0
    ephemeral_mib: int = 0
    gpus: int = 0
    instances: tuple[tuple[str, int], ...] = ()
    """MIG instances by the resource of their profile, none that is 0, by name."""

    def plus(self, other: "Amounts", sign: int) -> "Amounts":
        """Return the sum, or with sign -1 the difference."""
        instances = dict(self.instances)
        for name, count in other.instances:
            instances[name] = instances.get(name, 0) + sign * count
        return Amounts(
            self.cpu_milli + sign * other.cpu_milli,
            self.memory_mib + sign * other.memory_mib,
            self.ephemeral_mib + sign * other.ephemeral_mib,
            self.gpus + sign * other.gpus,
            tuple(sorted((name, count) for name, count in instances.items() if count)),
        )


@dataclass(frozen=True, slots=True)
class Take:
    """A pod's node and what it takes there."""

    node: str
    amounts: Amounts


@lru_cache(maxsize=8_192)
def _shared(node: str, amounts: Amounts) -> Take:
    """Return one object for all pods that are alike: there are few kinds of pods on a node."""
    return Take(node, amounts)


def read_take(pod: OtherPod) -> Take:
    """Return what a pod takes of its node."""
    spec = pod.spec
    amount = effective_request(
        [_request_of(each.resources) for each in spec.containers],
        [
            (_request_of(each.resources), each.restart_policy == "Always")
            for each in spec.init_containers
        ],
        _request_of(spec.resources),
        read_request(spec.overhead),
    )
    return _shared(
        spec.node_name,
        Amounts(
            amount.get("cpu", 0),
            ceil(amount.get("memory", 0) / _MIB),
            ceil(amount.get("ephemeral-storage", 0) / _MIB),
            sum(amount.get(name, 0) for name in GPU_RESOURCES),
            tuple(
                (name, count)
                for name, count in sorted(amount.items())
                if name.startswith(MIG_RESOURCE_PREFIX) and count > 0
            ),
        ),
    )


def _request_of(resources: Resources | None) -> dict[str, int]:
    return {} if resources is None else read_request(resources.requests, resources.limits)


@dataclass(slots=True)
class Others:
    """The sums by node, followed change by change."""

    by_node: dict[str, Amounts] = field(default_factory=dict)
    _with_gpus: dict[str, dict[str, None]] = field(default_factory=dict)
    _marked: dict[str, tuple[GpuId, ...]] = field(default_factory=dict)
    _cut: dict[str, tuple[MigPlacement, ...]] = field(default_factory=dict)

    def change(self, name: str, old: Take | None, new: Take | None) -> bool:
        """Follow one change of one pod; return whether a node's sum changed."""
        if old == new:
            return False
        nodes = [take.node for take in (old, new) if take is not None]
        before = [self.by_node.get(node) for node in nodes]
        for take, sign in ((old, -1), (new, 1)):
            if take is None:
                continue
            total = self.by_node.get(take.node, Amounts()).plus(take.amounts, sign)
            if total == Amounts():
                self.by_node.pop(take.node, None)
            else:
                self.by_node[take.node] = total
            if take.amounts.gpus:
                pods = self._with_gpus.setdefault(take.node, {})
                if sign > 0:
                    pods[name] = None
                else:
                    pods.pop(name, None)
        return before != [self.by_node.get(node) for node in nodes]

    def without(
        self,
        node: NodeObservation,
        held: Collection[GpuId],
        held_instances: Collection[MigPlacement] = (),
    ) -> NodeObservation:
        """Return a node without what others take of it.

        Args:
            node: What it has in all.
            held: GPUs that jobs of ours have or are given: others' are not those.
            held_instances: The same of MIG instances.
        """
        taken = self.by_node.get(node.name)
        if taken is None:
            self._marked.pop(node.name, None)
            self._cut.pop(node.name, None)
            return node
        node = self._without_instances(node, taken, held_instances)
        gone = self._choose(node, taken.gpus, held)
        message = f"{TAKEN_BY_OTHERS} {', '.join(self._with_gpus.get(node.name, {}))[:200]}"
        return replace(
            node,
            cpu_milli=max(0, node.cpu_milli - taken.cpu_milli),
            memory_mib=max(0, node.memory_mib - taken.memory_mib),
            ephemeral_mib=max(0, node.ephemeral_mib - taken.ephemeral_mib),
            gpus=tuple(
                replace(gpu, healthy=False, message=message) if gpu.gpu_id in gone else gpu
                for gpu in node.gpus
            ),
        )

    def _without_instances(
        self, node: NodeObservation, taken: Amounts, held: Collection[MigPlacement]
    ) -> NodeObservation:
        """Return a node without so many MIG instances that nobody of ours is known to hold.

        Those on its last GPUs go first; what was chosen before stays chosen where it can.
        """
        before, gone = self._cut.get(node.name, ()), []
        everything = [
            MigPlacement(gpu.gpu_id, profile, start)
            for gpu in sorted(node.gpus, key=lambda gpu: -gpu.index)
            for profile, start in sorted(gpu.mig_instances, key=lambda each: -each[1])
        ]
        for resource, count in taken.instances:
            free = [
                each
                for each in everything
                if resource_of_profile(each.profile) == resource and each not in held
            ]
            gone += sorted(free, key=lambda each: each not in before)[:count]
        self._cut[node.name] = tuple(gone)
        if not gone:
            return node
        return replace(
            node,
            gpus=tuple(
                replace(
                    gpu,
                    mig_instances=tuple(
                        (profile, start)
                        for profile, start in gpu.mig_instances
                        if MigPlacement(gpu.gpu_id, profile, start) not in gone
                    ),
                )
                for gpu in node.gpus
            ),
        )

    def _choose(
        self, node: NodeObservation, count: int, held: Collection[GpuId]
    ) -> frozenset[GpuId]:
        """Return so many GPUs that nobody of ours holds; the same ones as before where it can."""
        before = self._marked.get(node.name, ())

        def order(gpu: GpuObservation) -> tuple[bool, int]:
            return (gpu.gpu_id not in before, -gpu.index)

        whole = [gpu for gpu in node.gpus if gpu.healthy and not gpu.mig_enabled]
        free = [gpu for gpu in whole if gpu.gpu_id not in held]
        chosen = tuple(gpu.gpu_id for gpu in sorted(free, key=order)[:count])
        self._marked[node.name] = chosen
        return frozenset(chosen)
