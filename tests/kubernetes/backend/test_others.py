"""A stranger's pod on a node takes its GPUs out of what the scheduler may give away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from gpuplane.backends.interface import NodeObservation, Observation
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.core.reasons import TAKEN_BY_OTHERS
from gpuplane.kube.kinds import POD
from tests.contract.factories import until
from tests.contract.kubernetes import KubernetesFactory


def a_stranger(namespace: str, node: str, limits: dict[str, str]) -> dict[str, Any]:
    """Return a pod of nobody here that takes so much of a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "stranger",
            "namespace": namespace,
            "annotations": {"rig.gpuplane.io/hold": "true"},
        },
        "spec": {
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}],
        },
    }


async def test_gpus_of_a_strangers_pod_are_not_offered_until_it_is_gone(
    factory: KubernetesFactory,
    backend: KubernetesBackend,
    namespace: str,
    add_nodes: Callable[..., list[str]],
) -> None:
    [name] = add_nodes("h100", 1, f"others-{namespace[-6:]}")

    def node_of(seen: Observation) -> NodeObservation | None:
        return next((each for each in seen.nodes if each.name == name), None)

    def left(seen: Observation) -> int:
        node = node_of(seen)
        return sum(gpu.healthy for gpu in node.gpus) if node is not None else -1

    before = await until(factory, backend, lambda now: left(now) == 8, "the node is seen")
    limits = {"nvidia.com/gpu": "3", "cpu": "2", "memory": "1Gi"}
    await backend.client.create(a_stranger(namespace, name, limits))
    seen = await until(factory, backend, lambda now: left(now) == 5, "three GPUs are taken")
    node, was = node_of(seen), node_of(before)
    assert node is not None
    assert was is not None
    assert (was.cpu_milli - node.cpu_milli, was.memory_mib - node.memory_mib) == (2000, 1024)
    messages = [gpu.message for gpu in node.gpus if not gpu.healthy]
    assert messages == [f"{TAKEN_BY_OTHERS} {namespace}/stranger"] * 3
    assert seen.generation > before.generation
    await backend.client.delete(POD, "stranger", namespace, grace_s=0)
    await until(factory, backend, lambda now: left(now) == 8, "they are free again")


async def test_mig_instances_of_a_strangers_pod_are_not_offered_until_it_is_gone(
    factory: KubernetesFactory,
    backend: KubernetesBackend,
    namespace: str,
    add_nodes: Callable[..., list[str]],
) -> None:
    [name] = add_nodes("a100-mig", 1, f"others-mig-{namespace[-6:]}")

    def left(seen: Observation) -> dict[str, int]:
        gpus = [gpu for node in seen.nodes if node.name == name for gpu in node.gpus]
        return Counter(profile for gpu in gpus for profile, _ in gpu.mig_instances)

    whole = {"1g.5gb": 16, "2g.10gb": 8, "3g.20gb": 8}
    await until(factory, backend, lambda now: left(now) == whole, "all instances are seen")
    limits = {"nvidia.com/mig-1g.5gb": "3", "nvidia.com/mig-3g.20gb": "1"}
    await backend.client.create(a_stranger(namespace, name, limits))
    less = {"1g.5gb": 13, "2g.10gb": 8, "3g.20gb": 7}
    await until(factory, backend, lambda now: left(now) == less, "four instances are taken")
    await backend.client.delete(POD, "stranger", namespace, grace_s=0)
    await until(factory, backend, lambda now: left(now) == whole, "they are free again")
