"""Nodes of the rig as real clusters show them: Node objects for six kinds of machines.

Labels are those that Node Feature Discovery, GPU feature discovery and the GPU operator write,
annotations those of HAMi's device plug-in and ours for topology. A node is either fake (KWOK says
that its pods run) or a process node (its pods' commands run on this machine).

Sources: product names, memory and compute capability as `nvidia-smi` and GPU feature discovery
print them (NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery, tests/expected-output*.txt, and
internal/lm/resource_test.go for `replicas`);
`pci-<class>_<vendor>.present` and its short form of the GPU operator's NFD settings (vendor 10de
NVIDIA, 1da3 Habana Labs; PCI ID repository); NVLink counts from NVIDIA's architecture papers (V100
6, A100 12, H100 18); HAMi's annotation: Project-HAMi/HAMi pkg/device/devices.go, DeviceInfo.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuplane.core.topology.named import named_topology

Object = dict[str, Any]
KIND_LABEL = "rig.gpuplane.io/kind"
TOPOLOGY = "gpuplane.io/topology"
KWOK = {"kwok.x-k8s.io/node": "fake"}
DRIVER = ("570", "133", "20")
CUDA = ("12", "8")
ZONE = "rig-a"
HAMI_SPLIT = 10  # HAMi's default deviceSplitCount
SOCKETS = 2
MANAGER = "manager"
"""The rig's first cluster; the GPUs of its nodes are told apart by the names of the nodes alone."""


@dataclass(frozen=True)
class Machine:
    """One kind of machine.

    Attributes:
        gpu_count: Accelerators in it.
        product: `nvidia.com/gpu.product`, empty where it has no NVIDIA GPU.
        family: `nvidia.com/gpu.family`.
        compute: Compute capability, major and minor.
        memory_mib: Memory of one GPU, as the driver shows it.
        link: The word of `nvidia-smi topo -m` between any two GPUs, `cube mesh` for the links of
            a DGX-1, empty for PCIe alone.
        mig: Whether the GPU can be cut.
        resource: The resource its device plug-in offers.
        pci: NFD's PCI label parts, class and vendor.
        cpu_milli: CPU of the machine.
        memory_gib: Memory of the machine.
        machine: `nvidia.com/gpu.machine`, the product name that the firmware gives.
    """

    gpu_count: int
    product: str = ""
    family: str = ""
    compute: tuple[int, int] = (0, 0)
    memory_mib: int = 0
    link: str = ""
    mig: bool = False
    resource: str = "nvidia.com/gpu"
    pci: tuple[str, str] = ("0302", "10de")
    cpu_milli: int = 96_000
    memory_gib: int = 1_024
    machine: str = "rig"


MACHINES = {
    "h100": Machine(
        *(8, "NVIDIA-H100-80GB-HBM3", "hopper", (9, 0), 81_559, "NV18", True),
        cpu_milli=192_000,
        memory_gib=2_048,
        machine="DGXH100",
    ),
    "a100": Machine(
        *(8, "NVIDIA-A100-SXM4-80GB", "ampere", (8, 0), 81_920, "NV12", True),
        cpu_milli=128_000,
        machine="DGXA100-920-23687-2530-000",
    ),
    "a100-mig": Machine(
        *(8, "NVIDIA-A100-SXM4-40GB", "ampere", (8, 0), 40_960, "NV12", True),
        cpu_milli=128_000,
        machine="DGXA100-920-23687-2530-000",
    ),
    "v100": Machine(
        *(8, "Tesla-V100-SXM2-32GB", "volta", (7, 0), 32_768, "cube mesh"),
        cpu_milli=80_000,
        memory_gib=512,
        machine="DGX-1-with-V100-32",
    ),
    "l4": Machine(
        *(4, "NVIDIA-L4", "ada-lovelace", (8, 9), 23_034), cpu_milli=64_000, memory_gib=256
    ),
    "gaudi": Machine(8, memory_mib=98_304, resource="habana.ai/gaudi", pci=("1200", "1da3")),
    "cpu": Machine(0, cpu_milli=64_000, memory_gib=256),
}
"""Machines by the short name that `--nodes` and `add_nodes` take."""

# One A100 40 GB cut into 1g.5gb, 2g.10gb and 3g.20gb uses all seven slices; MIG instances of a
# machine are so many times its GPUs. Multiprocessors: NVIDIA, MIG User Guide, A100 profiles.
MIG_PROFILES = {"1g.5gb": (2, 4_864, 14), "2g.10gb": (1, 9_856, 28), "3g.20gb": (1, 19_968, 42)}

CUBE_MESH = named_topology("nvlink-cube-mesh-8", 8).nvlinks
"""NVLinks between the GPUs of a DGX-1 with V100."""


def build_node(
    kind: str,
    name: str,
    *,
    processes: bool = False,
    rack: str = "rack-1",
    cluster: str = MANAGER,
) -> Object:
    """Return a Node object of a kind of machine.

    Nodes of one name in two clusters are two machines: their GPUs and machine ids differ.

    Raises:
        KeyError: If there is no such kind.
    """
    machine = MACHINES[kind]
    labels = _common_labels(name, machine, rack)
    annotations: dict[str, str] = {} if processes else dict(KWOK)
    if machine.product:
        labels |= _nvidia_labels(machine)
        annotations["hami.io/node-nvidia-register"] = _hami_devices(name, machine, cluster)
        annotations["hami.io/node-handshake"] = "Reported_2025.01.01 00:00:00"
        annotations[TOPOLOGY] = build_topology(machine)
    capacity = _capacity(machine)
    if kind == "a100-mig":
        labels |= _mig_labels(machine)
        capacity |= _mig_capacity(machine)
    if kind == "gaudi":
        labels |= {"habana.ai/hpu.hl-smi-version": "1.22.1", "habana.ai/hpu_type": "gaudi2"}
    labels[KIND_LABEL] = "process" if processes else "fake"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "nodeInfo": _node_info(name, cluster),
        },
    }


def gpu_ids(name: str, count: int, cluster: str = MANAGER) -> list[str]:
    """Return the GPU UUIDs of a node: the same for a name in a cluster whenever it is made."""
    found = []
    for index in range(count):
        digest = hashlib.sha256(f"{_machine(name, cluster)}/{index}".encode()).digest()
        found.append(f"GPU-{uuid.UUID(bytes=digest[:16], version=4)}")
    return found


def _machine(name: str, cluster: str) -> str:
    return name if cluster == MANAGER else f"{cluster}/{name}"


def build_topology(machine: Machine) -> str:
    """Return what `nvidia-smi topo -m` prints for a machine: two sockets, half the GPUs on each."""
    count, half = machine.gpu_count, (machine.gpu_count + 1) // SOCKETS
    names = [f"GPU{index}" for index in range(count)]
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    cores = machine.cpu_milli // 1000
    for row in range(count):
        cells = [_link(machine, row, column, half) for column in range(count)]
        socket = row // half
        first, last = socket * cores // SOCKETS, (socket + 1) * cores // SOCKETS - 1
        lines.append("\t".join([names[row], *cells, f"{first}-{last}", str(socket), "N/A"]))
    return "\n".join(lines) + "\n"


def _link(machine: Machine, row: int, column: int, half: int) -> str:
    if row == column:
        return " X "
    if machine.link == "cube mesh" and CUBE_MESH[row][column]:
        return f"NV{CUBE_MESH[row][column]}"
    if machine.link.startswith("NV"):
        return machine.link
    return "PHB" if row // half == column // half else "SYS"


def _common_labels(name: str, machine: Machine, rack: str) -> dict[str, str]:
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": ZONE,
        "topology.kubernetes.io/region": "rig",
        "gpuplane.io/rack": rack,
        "gpuplane.io/block": "block-1",
        "feature.node.kubernetes.io/cpu-model.vendor_id": "Intel",
        "feature.node.kubernetes.io/kernel-version.full": "6.1.0-31-amd64",
        "feature.node.kubernetes.io/kernel-version.major": "6",
        "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
        "feature.node.kubernetes.io/system-os_release.VERSION_ID": "22.04",
        "feature.node.kubernetes.io/memory-numa": "true",
    }
    if machine.gpu_count:
        device_class, vendor = machine.pci
        labels[f"feature.node.kubernetes.io/pci-{device_class}_{vendor}.present"] = "true"
        labels[f"feature.node.kubernetes.io/pci-{vendor}.present"] = "true"
    return labels


def _nvidia_labels(machine: Machine) -> dict[str, str]:
    major, minor, revision = DRIVER
    labels = {
        "cuda.driver-version.full": ".".join(DRIVER),
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.runtime-version.full": ".".join(CUDA),
        "cuda.runtime-version.major": CUDA[0],
        "cuda.runtime-version.minor": CUDA[1],
        "gfd.timestamp": "1735689600",
        "gpu.compute.major": str(machine.compute[0]),
        "gpu.compute.minor": str(machine.compute[1]),
        "gpu.count": str(machine.gpu_count),
        "gpu.family": machine.family,
        "gpu.machine": machine.machine,
        "gpu.memory": str(machine.memory_mib),
        "gpu.mode": "compute",
        "gpu.present": "true",
        "gpu.product": machine.product,
        "gpu.replicas": "1",  # how often each is offered: more than once where it is shared
        "gpu.sharing-strategy": "none",
        "mig.capable": str(machine.mig).lower(),
        "mig.strategy": "mixed" if machine.mig else "single",
        "mps.capable": "false",
        "vgpu.present": "false",
    }
    if machine.mig:
        labels |= {"mig.config": "all-disabled", "mig.config.state": "success"}
    if machine.family == "hopper":
        # GPUFabric cluster UUID and clique: Hopper and later with Fabric Manager running.
        labels["gpu.clique"] = f"{uuid.UUID(int=0)}.0"
    return {f"nvidia.com/{name}": value for name, value in labels.items()}


def _mig_labels(machine: Machine) -> dict[str, str]:
    labels = {"nvidia.com/mig.config": "all-balanced"}
    for profile, (each, memory_mib, multiprocessors) in MIG_PROFILES.items():
        prefix = f"nvidia.com/mig-{profile}"
        slices = profile.partition("g")[0]
        labels |= {
            f"{prefix}.count": str(each * machine.gpu_count),
            f"{prefix}.product": f"{machine.product}-MIG-{profile}",
            f"{prefix}.memory": str(memory_mib),
            f"{prefix}.multiprocessors": str(multiprocessors),
            f"{prefix}.replicas": "1",
            f"{prefix}.sharing-strategy": "none",
            f"{prefix}.slices.gi": slices,
            f"{prefix}.slices.ci": slices,
        }
    return labels


def _mig_capacity(machine: Machine) -> dict[str, str]:
    counts = {
        f"nvidia.com/mig-{profile}": str(each * machine.gpu_count)
        for profile, (each, _, _) in MIG_PROFILES.items()
    }
    return {machine.resource: "0", **counts}  # a GPU that is cut is not offered whole


def _capacity(machine: Machine) -> dict[str, str]:
    capacity = {
        "cpu": str(machine.cpu_milli // 1000),
        "memory": f"{machine.memory_gib}Gi",
        "ephemeral-storage": "1000Gi",
        "pods": "110",
    }
    if machine.gpu_count:
        capacity[machine.resource] = str(machine.gpu_count)
    return capacity


def _hami_devices(name: str, machine: Machine, cluster: str) -> str:
    half = (machine.gpu_count + 1) // SOCKETS
    devices = [
        {
            "id": gpu_id,
            "index": index,
            "count": HAMI_SPLIT,
            "devmem": machine.memory_mib,
            "devcore": 100,
            "type": "NVIDIA-" + machine.product.removeprefix("NVIDIA-").replace("-", " "),
            "numa": index // half,
            "mode": "hami-core",
            "health": True,
        }
        for index, gpu_id in enumerate(gpu_ids(name, machine.gpu_count, cluster))
    ]
    return json.dumps(devices, separators=(",", ":"))


def _node_info(name: str, cluster: str) -> dict[str, str]:
    machine_id = hashlib.sha256(_machine(name, cluster).encode()).hexdigest()[:32]
    return {
        "architecture": "amd64",
        "bootID": str(uuid.UUID(machine_id)),
        "containerRuntimeVersion": "containerd://2.0.4",
        "kernelVersion": "6.1.0-31-amd64",
        "kubeProxyVersion": "",
        "kubeletVersion": "v1.34.4",
        "machineID": machine_id,
        "operatingSystem": "linux",
        "osImage": "Ubuntu 22.04.5 LTS",
        "systemUUID": str(uuid.UUID(machine_id)),
    }


def parse_nodes(text: str) -> list[tuple[str, int]]:
    """Read `h100=4,l4=2` into kinds and counts.

    Raises:
        ValueError: If a kind is not known or a count is none.
    """
    found = []
    for part in filter(None, text.split(",")):
        kind, _, count = part.partition("=")
        if kind not in MACHINES:
            raise ValueError(f"no machine {kind!r}: one of {', '.join(MACHINES)}")
        if not count.isdigit():
            raise ValueError(f"{part!r}: write <machine>=<count>")
        found.append((kind, int(count)))
    return found


def build_nodes(
    kinds: Sequence[tuple[str, int]], *, processes: bool, cluster: str = MANAGER
) -> list[Object]:
    """Return named nodes of several kinds: `h100-1` …, or `process-h100-1` …, four to a rack."""
    prefix = "process-" if processes else ""
    return [
        build_node(
            *(kind, f"{prefix}{kind}-{number}"),
            processes=processes,
            rack=f"rack-{(number + 3) // 4}",
            cluster=cluster,
        )
        for kind, count in kinds
        for number in range(1, count + 1)
    ]
