"""What a Kubernetes Node object says, in the product's own terms.

Owns the one translation that backend, extender and operator share: pure, a Node as the API has it
in, facts out, equal bytes for equal input. Never asks a cluster; never keeps the object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpuplane.core.nodedetails import NodeDetails
from gpuplane.core.quantities import BadQuantity, mib_of, milli_of
from gpuplane.core.workloads import NetworkLevel
from gpuplane.kube.accelerators import (
    INSTANCE_TYPE,
    NFD,
    AcceleratorFacts,
    GpuFacts,
    read_accelerators,
    read_pci,
)

__all__ = [
    "LEVEL_LABELS",
    "AcceleratorFacts",
    "GpuFacts",
    "NodeFacts",
    "NodeKind",
    "read_node",
]

TOPOLOGY = "gpuplane.io/topology"
"""Label (a named topology) or annotation (text of `nvidia-smi topo -m`) of a node."""
CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
"""Labels, and keys of taints, of nodes that run the control plane."""
RACK_LABELS = (
    "gpuplane.io/rack",
    "cloud.provider.com/topology-rack",
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-3",
    "nvidia.com/gpu.clique",
)
"""Labels by which a node's rack is told, the first one that it has."""
BLOCK_LABELS = (
    "gpuplane.io/block",
    "cloud.provider.com/topology-block",
    "cloud.google.com/gce-topology-block",
    "topology.k8s.aws/network-node-layer-2",
)
"""The same of its block."""
LEVEL_LABELS = {NetworkLevel.RACK: RACK_LABELS, NetworkLevel.BLOCK: BLOCK_LABELS}
"""Labels that a level of the network has, for instance in a Topology."""
_DRIVER_LABELS = (
    "nvidia.com/cuda.driver-version.full",
    "amd.com/gpu.driver-version",
    "beta.amd.com/gpu.driver-version",
)


class NodeKind(StrEnum):
    """What a node is for."""

    MASTER = "MASTER"
    WORKER = "WORKER"
    GPU = "GPU"
    HPU = "HPU"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node; amounts are what it can give to pods (allocatable).

    Attributes:
        uid: The object's uid; another node of the same name has another one.
        message: Why it is not ready, or which pressure it reports; empty when all is well.
        taints: (key, value, effect), in order.
        conditions: (type, status, reason, message), by type.
        nfd_labels: Labels of Node Feature Discovery, without their prefix.
        driver: Version words of accelerator driver and runtime.
        kernel: Version words of kernel, operating system, runtime and kubelet.
        core_count: Physical cores where the threads of one are known, else logical ones.
        hardware: What was detected, for people and for affinity.
    """

    name: str
    uid: str
    kind: NodeKind
    is_control_plane: bool
    ready: bool
    unschedulable: bool
    message: str
    internal_ip: str
    cpu_milli: int
    memory_mib: int
    ephemeral_mib: int
    pods: int
    accelerators: AcceleratorFacts
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()
    conditions: tuple[tuple[str, str, str, str], ...] = ()
    nfd_detected: bool = False
    nfd_labels: dict[str, str] = field(default_factory=dict)
    kernel: dict[str, str] = field(default_factory=dict)
    driver: dict[str, str] = field(default_factory=dict)
    threads_per_core: int | None = None
    core_count: int = 0
    hardware: dict[str, Any] = field(default_factory=dict)
    topology: str | None = None
    rack: str = ""
    block: str = ""
    rdma_fabric: str = ""

    @property
    def gpus(self) -> tuple[GpuFacts, ...]:
        """Return its whole devices, by index."""
        return self.accelerators.gpus

    @property
    def detection_method(self) -> str:
        """Return by which trace its hardware is known."""
        if self.accelerators.method != "none":
            return self.accelerators.method
        return "nfd" if self.nfd_detected else "capacity"

    @property
    def details(self) -> NodeDetails:
        """Return what the inventory keeps beside the amounts."""
        return NodeDetails(
            uid=self.uid,
            kind=str(self.kind),
            internal_ip=self.internal_ip,
            unschedulable=self.unschedulable,
            threads_per_core=self.threads_per_core,
            core_count=self.core_count,
            hardware=self.hardware,
            conditions=self.conditions,
            nfd_detected=self.nfd_detected,
            nfd_labels=self.nfd_labels,
            detection_method=self.detection_method,
            kernel=self.kernel,
            driver=self.driver,
        )


def read_node(node: Mapping[str, Any]) -> NodeFacts:
    """Return the facts of a Node object; what is missing or odd in it is left out, never fatal."""
    metadata = node.get("metadata") or {}
    spec, status = node.get("spec") or {}, node.get("status") or {}
    labels = {str(k): str(v) for k, v in sorted((metadata.get("labels") or {}).items())}
    annotations = metadata.get("annotations") or {}
    capacity = status.get("capacity") or {}
    allocatable = status.get("allocatable") or capacity
    conditions = _conditions(status)
    accelerators = read_accelerators(node)
    is_control_plane = any(name in labels for name in CONTROL_PLANE)
    nfd_labels = {k.removeprefix(NFD): v for k, v in labels.items() if k.startswith(NFD)}
    threads = {"true": 2, "false": 1}.get(nfd_labels.get("cpu-hardware_multithreading", ""))
    logical = _amount(milli_of, capacity.get("cpu")) // 1000
    ready = any(kind == "Ready" and state == "True" for kind, state, _, _ in conditions)
    return NodeFacts(
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        kind=NodeKind.MASTER if is_control_plane else _kind(accelerators),
        is_control_plane=is_control_plane,
        ready=ready,
        unschedulable=bool(spec.get("unschedulable")),
        message=_message(conditions, accelerators) if ready else _complaint(conditions),
        internal_ip=_address(status),
        cpu_milli=_amount(milli_of, allocatable.get("cpu")),
        memory_mib=_amount(mib_of, allocatable.get("memory")),
        ephemeral_mib=_amount(mib_of, allocatable.get("ephemeral-storage")),
        pods=_amount(milli_of, allocatable.get("pods")) // 1000,
        accelerators=accelerators,
        labels=labels,
        taints=_taints(spec),
        conditions=conditions,
        nfd_detected=bool(nfd_labels),
        nfd_labels=nfd_labels,
        kernel=_kernel(status, nfd_labels),
        driver=_driver(labels),
        threads_per_core=threads,
        core_count=logical // (threads or 1),
        hardware=_hardware(labels, accelerators, capacity),
        topology=annotations.get(TOPOLOGY) or labels.get(TOPOLOGY) or None,
        rack=_first(labels, RACK_LABELS),
        block=_first(labels, BLOCK_LABELS),
        rdma_fabric=labels.get("gpuplane.io/rdma-fabric", "")[:100],
    )


def _kind(accelerators: AcceleratorFacts) -> NodeKind:
    if accelerators.vendor == "habana":
        return NodeKind.HPU
    return NodeKind.GPU if accelerators.vendor else NodeKind.WORKER


def _conditions(status: Mapping[str, Any]) -> tuple[tuple[str, str, str, str], ...]:
    rows = status.get("conditions") or []
    return tuple(
        sorted(
            (
                str(row.get("type", "")),
                str(row.get("status", "")),
                str(row.get("reason") or ""),
                str(row.get("message") or "")[:500],
            )
            for row in rows
            if isinstance(row, Mapping)
        )
    )


def _complaint(conditions: tuple[tuple[str, str, str, str], ...]) -> str:
    """Return why a node is not ready, in its kubelet's or its controller's words."""
    said = [f"{reason}: {text}" for kind, _, reason, text in conditions if kind == "Ready"]
    return said[0].strip(": ") if said else "It never reported the condition Ready."


def _message(
    conditions: tuple[tuple[str, str, str, str], ...], accelerators: AcceleratorFacts
) -> str:
    """Return what is amiss with a node that is ready."""
    pressures = [
        f"{kind} ({reason})"
        for kind, state, reason, _ in conditions
        if kind != "Ready" and state == "True"
    ]
    return "; ".join([*pressures, *accelerators.notes])


def _taints(spec: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (str(taint.get("key", "")), str(taint.get("value") or ""), str(taint.get("effect", "")))
        for taint in spec.get("taints") or []
        if isinstance(taint, Mapping)
    )


def _address(status: Mapping[str, Any]) -> str:
    for row in status.get("addresses") or []:
        if isinstance(row, Mapping) and row.get("type") == "InternalIP":
            return str(row.get("address") or "")
    return ""


def _kernel(status: Mapping[str, Any], nfd_labels: Mapping[str, str]) -> dict[str, str]:
    info = status.get("nodeInfo") or {}
    words = {
        "kernel": info.get("kernelVersion") or nfd_labels.get("kernel-version.full"),
        "os": info.get("osImage") or nfd_labels.get("system-os_release.ID"),
        "architecture": info.get("architecture"),
        "container_runtime": info.get("containerRuntimeVersion"),
        "kubelet": info.get("kubeletVersion"),
    }
    return {name: str(value) for name, value in words.items() if value}


def _driver(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the driver's and runtime's versions, from newer or older labels."""
    driver = _first(labels, _DRIVER_LABELS)
    if not driver:
        parts = [labels.get(f"nvidia.com/cuda.driver.{p}", "") for p in ("major", "minor", "rev")]
        driver = ".".join(part for part in parts if part)
    runtime = labels.get("nvidia.com/cuda.runtime-version.full", "")
    if not runtime:
        parts = [labels.get(f"nvidia.com/cuda.runtime.{part}", "") for part in ("major", "minor")]
        runtime = ".".join(part for part in parts if part)
    found = {"version": driver, "cuda": runtime}
    return {name: value for name, value in found.items() if value}


def _hardware(
    labels: Mapping[str, str], accelerators: AcceleratorFacts, capacity: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what was detected, as one object that can be stored and matched."""
    gpus = accelerators.gpus
    found: dict[str, Any] = {
        "vendor": accelerators.vendor,
        "resource": accelerators.resource,
        "product": gpus[0].product if gpus else "",
        "model": gpus[0].model if gpus else "",
        "count": len(gpus),
        "memory_mib": gpus[0].memory_mib if gpus else 0,
        "shares": accelerators.shares if accelerators.shares > 1 else 0,
        "mig": accelerators.mig,
        "mig_strategy": labels.get("nvidia.com/mig.strategy", ""),
        "clique": labels.get("nvidia.com/gpu.clique", ""),
        "pci": ["-".join(filter(None, row)) for row in sorted(read_pci(labels))],
        "cpu_vendor": labels.get(f"{NFD}cpu-model.vendor_id", ""),
        "instance_type": labels.get(INSTANCE_TYPE, ""),
        "zone": labels.get("topology.kubernetes.io/zone", ""),
        "region": labels.get("topology.kubernetes.io/region", ""),
        "rdma": f"{NFD}rdma.available" in labels or f"{NFD}custom-rdma.available" in labels,
        "huge_pages": any(name.startswith("hugepages-") and str(value) != "0"
                          for name, value in capacity.items()),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name][:100] for name in names if labels.get(name)), "")


def _amount(read: Any, value: object) -> int:
    try:
        return max(0, int(read(value))) if value is not None else 0
    except BadQuantity:
        return 0
