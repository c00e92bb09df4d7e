"""Nodes and pods as the API server has them, and questions as kube-scheduler writes them."""

import json
from typing import Any

import msgspec

from gpuplane.extender.answering import Answerer
from gpuplane.extender.nodes import NodeRecord, Topologies, read_record
from gpuplane.extender.pods import PodFacts, PodView, facts_of
from gpuplane.extender.state import ClusterState

NOW = 1_800_000_000_000
Object = dict[str, Any]
_VIEW = msgspec.json.Decoder(PodView)


def a_node(
    name: str,
    gpus: int = 8,
    *,
    topology: str = "nvswitch-8",
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """Return a node with NVIDIA GPUs, or without any."""
    amounts = {"cpu": "96", "memory": "1000Gi", "ephemeral-storage": "1000Gi", "pods": "110"}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    said = {"gpuplane.io/topology": topology} if gpus and topology else {}
    product = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"} if gpus else {}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {**product, **(labels or {})},
            "annotations": {**said, **(annotations or {})},
        },
        "spec": spec,
        "status": {"capacity": amounts, "allocatable": dict(amounts)},
    }


def a_record(node: Object) -> NodeRecord:
    """Return a node as it is kept."""
    known = Topologies()
    return read_record(node, lambda name, text, count: known.find(name, text, count, NOW))


def a_pod(
    name: str,
    gpus: int = 1,
    *,
    node: str = "",
    ids: str = "",
    created: int = 0,
    resource: str = "nvidia.com/gpu",
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    phase: str = "Pending",
    cpu: str = "1",
    **spec: Any,
) -> Object:
    """Return a pod that asks for GPUs."""
    requests = {"cpu": cpu, "memory": "1Gi"} | ({resource: str(gpus)} if gpus else {})
    said = {"gpuplane.io/gpu-ids": ids} if ids else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
            "labels": labels or {},
            "annotations": {**said, **(annotations or {})},
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": requests}}],
            **({"nodeName": node} if node else {}),
            **spec,
        },
        "status": {"phase": phase},
    }


def a_member(gang: str, rank: int, size: int, gpus: int = 8, **more: Any) -> Object:
    """Return a pod of a gang."""
    return a_pod(
        f"{gang}-{rank}",
        gpus,
        labels={"gpuplane.io/gang": gang, "gpuplane.io/rank": str(rank)},
        annotations={"gpuplane.io/gang-size": str(size)},
        **more,
    )


def facts(pod: Object) -> PodFacts:
    """Return a pod as it is kept."""
    found = facts_of(_VIEW.decode(json.dumps(pod)))
    assert found is not None
    return found


class Asked:
    """A cluster and its extender, asked as kube-scheduler asks."""

    def __init__(self, *nodes: Object, hold_ms: int = 60_000) -> None:
        self.now = NOW
        self.state = ClusterState(hold_ms=hold_ms)
        self.refused: dict[str, int] = {}
        self.answerer = Answerer(self.state, lambda: self.now, self._note)
        self.names = [node["metadata"]["name"] for node in nodes]
        for node in nodes:
            self.state.put_node(a_record(node))

    def _note(self, word: str, count: int) -> None:
        self.refused[word] = self.refused.get(word, 0) + count

    def show(self, node: Object) -> None:
        """Let the informer show a node as it is now."""
        self.state.put_node(a_record(node))

    def put(self, *pods: Object) -> None:
        """Let the informer show pods."""
        for pod in pods:
            self.answerer.put_pod(facts(pod))

    def filter(self, pod: Object, names: list[str] | None = None) -> Object:
        """Return the answer of filter."""
        body = {"Pod": pod, "Nodes": None, "NodeNames": self.names if names is None else names}
        found: Object = json.loads(self.answerer.filter(dump(body)))
        return found

    def prioritize(self, pod: Object, names: list[str] | None = None) -> dict[str, int]:
        """Return the points of each node."""
        body = {"Pod": pod, "Nodes": None, "NodeNames": self.names if names is None else names}
        rows = json.loads(self.answerer.prioritize(dump(body)))
        return {row["Host"]: row["Score"] for row in rows}

    def why(self, pod: Object, node: str) -> str:
        """Return why a node is refused, empty when it is not."""
        answer = self.filter(pod)
        reasons = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
        found: str = reasons.get(node, "")
        return found


def dump(value: object) -> bytes:
    """Return JSON as Go writes it: without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()
