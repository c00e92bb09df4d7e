"""What is known of a cluster's nodes and GPUs, and what is taken there, as plain frozen values.

Owns the row form that loaders fill in; the columns that decisions read are made from it by
`Fleet.from_nodes`. Never holds what is free: that follows from facts and allocations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.ids import GpuId, JobId, NodeId, ReservationId
from gpuplane.core.mig.profiles import MigTable, find_table
from gpuplane.core.topology.matrix import LinkMatrix

CLIQUE_LABEL = "nvidia.com/gpu.clique"
"""The label with the NVLink domain of a node: GPUs of nodes with the same value reach each other
over NVLink, as the 72 of an NVL72 rack do.

Source: NVIDIA k8s-device-plugin, GPU feature discovery (`<cluster UUID>.<clique id>`).
"""


class Taint(NamedTuple):
    """A Kubernetes taint; `NoSchedule` and `NoExecute` keep untolerating work away."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class MigSlot(NamedTuple):
    """One MIG instance of a GPU: its profile and the first memory slice it covers."""

    profile: str
    start: int


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU of a node.

    Args:
        model: Canonical model name (`core.hardware`).
        architecture: The maker's architecture word, such as `hopper`.
        mig_instances: The instances that exist; a GPU with MIG enabled gives only these.
        reserved_for: The reservation that holds this GPU now, or None.
        mig_table: How it can be cut as the device itself reports, or None.
    """

    gpu_id: GpuId
    index: int
    model: str
    memory_mib: int
    architecture: str = ""
    healthy: bool = True
    mig_enabled: bool = False
    mig_instances: tuple[MigSlot, ...] = ()
    reserved_for: ReservationId | None = None
    mig_table: MigTable | None = None

    @property
    def cuts(self) -> MigTable | None:
        """Return how it can be cut: as the device tells, else by its model, None for not at all."""
        return self.mig_table or find_table(self.model)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node: what it has in all, and what keeps work away from it.

    Args:
        version: The row version that the decision read; applying compares it.
        maintenance_at: When its next announced maintenance starts, in ms, or None.
        topology: What joins its GPUs, or None when that is not known; row i is GPU index i.
    """

    node_id: NodeId
    name: str
    version: int = 0
    ready: bool = True
    cordoned: bool = False
    maintenance_at: int | None = None
    cpu_milli: int = 0
    memory_mib: int = 0
    ephemeral_mib: int = 0
    gpus: tuple[GpuFacts, ...] = ()
    topology: LinkMatrix | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    rack: str = ""
    block: str = ""
    rdma_fabric: str = ""
    price_micro_per_gpu_hour: int = 0

    @property
    def clique(self) -> str:
        """Return the NVLink domain that its GPUs share with other nodes' GPUs, empty for none."""
        return self.labels.get(CLIQUE_LABEL, "")


class MigPlacement(NamedTuple):
    """The MIG instance that a replica holds."""

    gpu_id: GpuId
    profile: str
    start: int


def mig_device_of(instance: MigPlacement) -> str:
    """Return how a replica names its MIG instance; `parse_mig_device` reads it back."""
    return f"{instance.gpu_id}/{instance.profile}@{instance.start}"


def parse_mig_device(device: str | None) -> MigPlacement | None:
    """Return the MIG instance that a replica's `GPU/profile@start` names, or None."""
    if device is None:
        return None
    gpu_id, _, instance = device.partition("/")
    profile, _, start = instance.partition("@")
    return MigPlacement(GpuId(gpu_id), profile, int(start))


@dataclass(frozen=True, slots=True)
class MigChange:
    """How one GPU is to be cut anew: what goes, then what comes.

    Args:
        destroy: Instances that nobody holds.
        create: Instances on the slices that are free then.
    """

    node_id: NodeId
    node_name: str
    gpu_id: GpuId
    gpu_index: int
    destroy: tuple[MigSlot, ...]
    create: tuple[MigSlot, ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one replica holds on one node.

    Args:
        gpu_milli: Share of each GPU in `gpu_ids`; 1000 is a whole GPU. Ignored with `mig`.
    """

    job_id: JobId
    node_id: NodeId
    rank: int = 0
    gpu_ids: tuple[GpuId, ...] = ()
    gpu_milli: int = WHOLE_GPU_MILLI
    mig: MigPlacement | None = None
    cpu_milli: int = 0
    memory_mib: int = 0
    ephemeral_mib: int = 0
