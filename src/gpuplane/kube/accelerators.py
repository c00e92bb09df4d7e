"""Which accelerators a Kubernetes node has, and by which of its traces that is known.

Owns the order in which traces are believed and the words of `detection_method`; pure: a Node
object in, facts out. Never asks a cluster. What a trace does not say is left unknown, not guessed.

Sources: labels of GPU feature discovery (NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery),
feature labels of Node Feature Discovery (docs/usage/features.md), HAMi's device register
(docs/develop/protocol.md), labels of the AMD and Intel device plug-ins, vendor and device ids of
the PCI ID repository.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuplane.core.hardware import find_model
from gpuplane.core.quantities import BadQuantity, count_of, mib_of
from gpuplane.kube.instances import Accelerators, find_accelerators

NFD = "feature.node.kubernetes.io/"
HAMI_REGISTER = "hami.io/node-nvidia-register"
MOST_DEVICES = 64
"""More devices than any node has: beyond it a label is a mistake."""

RESOURCES = {
    "nvidia": "nvidia.com/gpu",
    "habana": "habana.ai/gaudi",
    "amd": "amd.com/gpu",
    "intel": "gpu.intel.com/i915",
}
"""The extended resource that asks for whole devices of a vendor."""
INTEL_XE = "gpu.intel.com/xe"
PCI_VENDORS = {"10de": "nvidia", "1da3": "habana", "1002": "amd", "8086": "intel"}
"""PCI vendor ids; Gaudi's is Habana's own, and Intel's counts only for accelerators."""
_ACCELERATOR_CLASSES = ("0300", "0302", "0380", "0b40", "1200")

PCI_DEVICES = {
    ("10de", "15f8"): "nvidia-p100-16gb",
    ("10de", "1db1"): "nvidia-v100-16gb",
    ("10de", "1db5"): "nvidia-v100-32gb",
    ("10de", "1db4"): "nvidia-v100-16gb-pcie",
    ("10de", "1db6"): "nvidia-v100-32gb-pcie",
    ("10de", "1eb8"): "nvidia-t4",
    ("10de", "2236"): "nvidia-a10",
    ("10de", "2237"): "nvidia-a10g",
    ("10de", "20b7"): "nvidia-a30",
    ("10de", "2235"): "nvidia-a40",
    ("10de", "20b0"): "nvidia-a100-40gb",
    ("10de", "20b2"): "nvidia-a100-80gb",
    ("10de", "20f1"): "nvidia-a100-40gb-pcie",
    ("10de", "20b5"): "nvidia-a100-80gb-pcie",
    ("10de", "27b8"): "nvidia-l4",
    ("10de", "26b5"): "nvidia-l40",
    ("10de", "26b9"): "nvidia-l40s",
    ("10de", "2204"): "nvidia-rtx-3090",
    ("10de", "2684"): "nvidia-rtx-4090",
    ("10de", "2230"): "nvidia-rtx-a6000",
    ("10de", "26b1"): "nvidia-rtx-6000-ada",
    ("10de", "2330"): "nvidia-h100-80gb",
    ("10de", "2331"): "nvidia-h100-80gb-pcie",
    ("10de", "2321"): "nvidia-h100-94gb-nvl",
    ("10de", "2329"): "nvidia-h20-96gb",
    ("10de", "2335"): "nvidia-h200-141gb",
    ("10de", "2342"): "nvidia-gh200-96gb",
    ("10de", "2901"): "nvidia-b200",
    ("10de", "2941"): "nvidia-gb200",
    ("1da3", "1020"): "intel-gaudi2",
    ("1da3", "1060"): "intel-gaudi3",
    ("1002", "740c"): "amd-mi250x",
    ("1002", "7408"): "amd-mi250x",
    ("1002", "74a1"): "amd-mi300x",
}
_PCI = re.compile(r"pci-(?:([0-9a-f]{4})[_-])?([0-9a-f]{4})(?:[_-]([0-9a-f]{4}))?\.present")
_CLOUD_LABELS = ("cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator")
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_UNKNOWN = {
    "nvidia": "nvidia-gpu",
    "habana": "habana-gaudi",
    "amd": "amd-gpu",
    "intel": "intel-gpu",
}
"""What a device is called whose model nothing tells."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One whole device of a node.

    Attributes:
        gpu_id: Its NVML UUID where the node tells it, else made of the node's uid and its index:
            stable for as long as the node object lives.
        index: Position on the node, from 0.
        product: What the node calls it; `core.hardware.find_model` knows the canonical name.
        memory_mib: Total memory; 0 where nothing tells.
        healthy: False where the device plugin does not offer it.
        numa: NUMA node, where told.
    """

    gpu_id: str
    index: int
    product: str
    memory_mib: int
    healthy: bool = True
    message: str = ""
    numa: int | None = None

    @property
    def model(self) -> str:
        """Return the canonical model name, or the product where it is none that is known."""
        found = find_model(self.product)
        return found.name if found is not None else self.product


@dataclass(frozen=True, slots=True)
class AcceleratorFacts:
    """What is known of a node's accelerators and by which trace.

    Attributes:
        vendor: `nvidia`, `habana`, `amd`, `intel`, or empty where it has none.
        resource: The extended resource of whole devices, empty where it has none.
        method: `hami`, `gpu-feature-discovery`, `vendor-labels`, `nfd-pci`, `cloud-label`,
            `instance-type`, `capacity`, or `none`.
        gpus: Its devices, by index.
        mig: Allocatable MIG instances, profile to count (strategy `mixed`).
        cut: How many of its devices these lie on: the last ones, as nothing tells which.
        shares: How many the device plugin offers of each device (time-slicing, HAMi), at least 1.
        notes: What is amiss, in sentences.
    """

    vendor: str = ""
    resource: str = ""
    method: str = "none"
    gpus: tuple[GpuFacts, ...] = ()
    mig: dict[str, int] = field(default_factory=dict)
    shares: int = 1
    cut: int = 0
    notes: tuple[str, ...] = ()


def read_accelerators(node: Mapping[str, Any]) -> AcceleratorFacts:
    """Return what a Node object tells of its accelerators."""
    metadata, status = node.get("metadata") or {}, node.get("status") or {}
    labels = metadata.get("labels") or {}
    capacity = status.get("capacity") or {}
    allocatable = status.get("allocatable") or capacity
    told = read_hami((metadata.get("annotations") or {}).get(HAMI_REGISTER, ""))
    vendor, resource = _vendor(labels, capacity, told)
    if not vendor:
        return AcceleratorFacts()
    product, method, guess = _product(labels, vendor)
    offered, usable = _count(capacity.get(resource)), _count(allocatable.get(resource))
    mig = _mig(allocatable)
    if told:
        cut = (_cut_count(mig) if offered else len(told)) if mig else 0
        shares = max(1, offered // max(1, len(told) - cut))
        return AcceleratorFacts(vendor, resource, "hami", told, mig, shares, min(cut, len(told)))
    shares = max(1, _number(labels.get("nvidia.com/gpu.replicas"), 1))
    listed = _number(labels.get("nvidia.com/gpu.count"), 0)
    whole = offered // shares
    count = max(listed, whole + _cut_count(mig)) if mig else whole or (0 if offered else listed)
    notes: tuple[str, ...] = ()
    if not offered and not mig:
        count = count or (guess.count if guess is not None else 0)
        notes = (f"It has devices of {vendor}, but no device plugin offers {resource}.",)
    memory = _memory(labels, product)
    sound = count if mig else usable // shares
    uid = str(metadata.get("uid") or metadata.get("name") or "")
    gpus = tuple(
        GpuFacts(
            gpu_id=f"{uid}-gpu-{index}",
            index=index,
            product=product,
            memory_mib=memory,
            healthy=index < sound,
            message="" if index < sound else f"The device plugin offers {sound} of {count}.",
        )
        for index in range(min(count, MOST_DEVICES))
    )
    cut = max(0, len(gpus) - whole) if mig else 0
    return AcceleratorFacts(vendor, resource, method, gpus, mig, shares, cut, notes)


def read_pci(labels: Mapping[str, str]) -> set[tuple[str, str, str]]:
    """Return (class, vendor, device) of NFD's PCI labels; what a label leaves out is empty."""
    found: set[tuple[str, str, str]] = set()
    for name, value in labels.items():
        match = _PCI.fullmatch(name.removeprefix(NFD)) if name.startswith(NFD) else None
        if match is None or value != "true":
            continue
        first, second, third = match.groups()
        if third is not None:
            found.add((first or "", second, third))
        elif first in PCI_VENDORS:  # pci-<vendor>-<device>, as NVIDIA's rule writes it
            found.add(("", first, second))
        else:
            found.add((first or "", second, ""))
    return found


def read_hami(register: str) -> tuple[GpuFacts, ...]:
    """Return the devices that HAMi's device plugin wrote on the node, none where it wrote none.

    Both forms are read: the lines `id,count,memory,cores,type,numa,healthy:` and, since 2.6, JSON.
    """
    text = register.strip()
    try:
        if text.startswith("["):
            rows = [
                (d["id"], d["devmem"], d["type"], d.get("numa"), d.get("health", True))
                for d in json.loads(text)
            ]
        else:
            parts = [part.split(",") for part in text.split(":") if part.count(",") >= 6]
            rows = [(p[0], p[2], p[4], p[5], p[6].lower() == "true") for p in parts]
        return tuple(
            GpuFacts(
                gpu_id=str(gpu_id),
                index=index,
                product=str(kind).removeprefix("NVIDIA-"),
                memory_mib=int(memory),
                healthy=bool(healthy),
                message="" if healthy else "HAMi's device plugin says that it is not healthy.",
                numa=int(numa) if numa is not None and int(numa) >= 0 else None,
            )
            for index, (gpu_id, memory, kind, numa, healthy) in enumerate(rows[:MOST_DEVICES])
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _vendor(
    labels: Mapping[str, str], capacity: Mapping[str, Any], registered: tuple[GpuFacts, ...]
) -> tuple[str, str]:
    """Return whose devices a node has, by the resources it offers, else by its labels."""
    if registered:
        return "nvidia", RESOURCES["nvidia"]
    for vendor, resource in RESOURCES.items():
        if _count(capacity.get(resource)):
            return vendor, resource
    if _count(capacity.get(INTEL_XE)):
        return "intel", INTEL_XE
    if _mig(capacity):
        return "nvidia", RESOURCES["nvidia"]
    if "nvidia.com/gpu.product" in labels or labels.get("nvidia.com/gpu.present") == "true":
        return "nvidia", RESOURCES["nvidia"]
    if labels.get("intel.feature.node.kubernetes.io/gaudi") == "true":
        return "habana", RESOURCES["habana"]
    for vendor in (_pci_vendor(row) for row in sorted(read_pci(labels))):
        if vendor:
            return vendor, RESOURCES[vendor]
    guess = find_accelerators(labels.get(INSTANCE_TYPE, ""))
    if guess is not None:
        return "nvidia", RESOURCES["nvidia"]
    return "", ""


def _pci_vendor(row: tuple[str, str, str]) -> str:
    """Return whose accelerator a PCI device is, empty for what is none.

    Intel and AMD make displays and much else: their class must be one of accelerators, and
    Intel's processing accelerators are Gaudi.
    """
    kind, vendor, _ = row
    if vendor == "8086":
        return {"1200": "habana", "0380": "intel"}.get(kind, "")
    if vendor == "1002":
        return "amd" if kind in ("", "0380", "1200", "0b40") else ""
    return PCI_VENDORS.get(vendor, "") if not kind or kind in _ACCELERATOR_CLASSES else ""


def _product(labels: Mapping[str, str], vendor: str) -> tuple[str, str, Accelerators | None]:
    """Return (product, method, what the instance type says) by the best trace there is."""
    guess = find_accelerators(labels.get(INSTANCE_TYPE, ""))
    if vendor == "nvidia" and labels.get("nvidia.com/gpu.product"):
        return labels["nvidia.com/gpu.product"], "gpu-feature-discovery", guess
    for name in ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"):
        if vendor == "amd" and labels.get(name):
            return labels[name].replace("_", " "), "vendor-labels", guess
    if vendor == "intel" and labels.get("gpu.intel.com/product"):
        return labels["gpu.intel.com/product"], "vendor-labels", guess
    if vendor == "habana" and labels.get("habana.ai/hpu_type"):
        return labels["habana.ai/hpu_type"], "vendor-labels", guess
    pci = sorted(read_pci(labels))
    for _, maker, device in pci:
        if PCI_VENDORS.get(maker) == vendor and (maker, device) in PCI_DEVICES:
            return PCI_DEVICES[maker, device], "nfd-pci", guess
    for name in _CLOUD_LABELS:
        if labels.get(name) and find_model(labels[name]) is not None:
            return labels[name], "cloud-label", guess
    if guess is not None:
        return guess.model, "instance-type", guess
    seen = any(_pci_vendor(row) == vendor for row in pci)
    return _UNKNOWN[vendor], "nfd-pci" if seen else "capacity", guess


def _memory(labels: Mapping[str, str], product: str) -> int:
    """Return MiB of one device; feature discovery's own sample says MiB where it writes Mb."""
    told = _number(labels.get("nvidia.com/gpu.memory"), 0)
    if not told:
        for name in ("amd.com/gpu.vram", "beta.amd.com/gpu.vram"):
            try:
                told = mib_of(f"{labels[name]}i") if name in labels else told
            except BadQuantity:
                told = 0
    shared = labels.get("nvidia.com/gpu.product", "")
    model = find_model(product)
    if model is not None and (not told or "-MIG-" in shared):
        return model.memory_mib
    return told


def _mig(resources: Mapping[str, Any]) -> dict[str, int]:
    """Return MIG instances by profile, as strategy `mixed` offers them."""
    prefix = "nvidia.com/mig-"
    found = {
        name.removeprefix(prefix): _count(value)
        for name, value in sorted(resources.items())
        if name.startswith(prefix)
    }
    return {profile: count for profile, count in found.items() if count}


def _cut_count(mig: Mapping[str, int]) -> int:
    """Return the fewest GPUs of seven slices that can hold these instances."""
    slices = sum(_number(profile.partition("g.")[0], 1) * n for profile, n in mig.items())
    return -(-slices // 7)


def _count(value: object) -> int:
    try:
        return max(0, count_of(value)) if value is not None else 0
    except BadQuantity:
        return 0


def _number(value: object, otherwise: int) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else otherwise
