"""The specification of a cluster to make: one frozen value, and the document it is written as.

Owns what a specification may say. Never says how a cloud spells it: `eks`, `aks`, `gke` and
`joining` do. `document_of` writes what `parse_cluster_spec` reads, and reading it again gives the
same value.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

API_VERSION = "gpuplane.io/v1"
KIND = "ClusterSpecification"
GPU_TAINT_KEY = "nvidia.com/gpu"
"""What keeps work without GPUs off GPU nodes; GKE sets the same key by itself, value `present`."""


class Platform(StrEnum):
    """Where a cluster is made."""

    EKS = "eks"
    AKS = "aks"
    GKE = "gke"
    K3S = "k3s"
    KUBEADM = "kubeadm"

    @property
    def is_cloud(self) -> bool:
        """Return whether a cloud makes it, rather than scripts on machines that are there."""
        return self in (Platform.EKS, Platform.AKS, Platform.GKE)


class Effect(StrEnum):
    """What a taint does, in Kubernetes' words."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a pool's nodes."""

    key: str
    value: str
    effect: Effect


@dataclass(frozen=True, slots=True)
class NodePool:
    """Nodes of one kind.

    Attributes:
        name: Unique in the cluster.
        instance_type: As the cloud spells it.
        gpu_model: Canonical name, None where the type has no GPU.
        gpu_count: GPUs of a node.
        minimum: Nodes at least.
        maximum: Nodes at most.
        spot: Whether the cloud may take the nodes back at any time.
        disk_gib: Root disk.
        zones: Where the nodes are; those of the cluster where empty.
        placement_group: Whether nodes are put close to one another, in one zone.
        efa: Whether nodes have Elastic Fabric Adapters (EKS).
        labels: Sorted pairs.
        taints: Besides the one that GPU nodes have anyway.
    """

    name: str
    instance_type: str
    gpu_model: str | None = None
    gpu_count: int = 0
    minimum: int = 0
    maximum: int = 1
    spot: bool = False
    disk_gib: int = 100
    zones: tuple[str, ...] = ()
    placement_group: bool = False
    efa: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()

    @property
    def all_taints(self) -> tuple[Taint, ...]:
        """Return its taints, that of GPU nodes among them."""
        if not self.gpu_count or any(each.key == GPU_TAINT_KEY for each in self.taints):
            return self.taints
        return (Taint(GPU_TAINT_KEY, "present", Effect.NO_SCHEDULE), *self.taints)


@dataclass(frozen=True, slots=True)
class Network:
    """The network of a cluster: made with this range, or there already.

    Attributes:
        cidr: Of a network that is made; empty where one is given.
        subnets: Subnets that are there, as sorted pairs of zone and id (EKS).
        subnet: The one subnet that is there (AKS: its resource id, GKE: its name).
    """

    cidr: str = "10.40.0.0/16"
    subnets: tuple[tuple[str, str], ...] = ()
    subnet: str = ""


@dataclass(frozen=True, slots=True)
class Machines:
    """What join scripts need to know of machines that are there already (k3s, kubeadm).

    Attributes:
        endpoint: Name or address by which nodes reach the API server.
        sha256: Of the k3s binary, sorted pairs of architecture (amd64, arm64) and digest.
        ca_cert_hash: Of the kubeadm cluster's authority, `sha256:…`; not a secret.
        pod_cidr: Range of pods.
        service_cidr: Range of services.
        nvidia_toolkit: Package version of the NVIDIA container toolkit; empty for none.
        labels: Of agents, sorted pairs.
        taints: Of agents.
    """

    endpoint: str
    sha256: tuple[tuple[str, str], ...] = ()
    ca_cert_hash: str = ""
    pod_cidr: str = "10.42.0.0/16"
    service_cidr: str = "10.43.0.0/16"
    nvidia_toolkit: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster to make.

    Attributes:
        name: Of the cluster and the beginning of what belongs to it.
        platform: Where.
        kubernetes_version: `1.33` for clouds, an exact release for machines.
        region: Of the cloud; empty for machines.
        zones: In that region, in the order of the document.
        pools: In the order of the document; the first without GPUs and taints carries the system.
        network: Of a cloud cluster.
        public_cidrs: Who reaches the API server from outside; nobody where empty.
        kms_key: A key that is there; one is made (EKS) or the cloud's own is used where empty.
        project: Of Google Cloud.
        admin_groups: Entra ID groups that administer an AKS cluster instead of local accounts.
        host_encryption: Whether AKS encrypts disks on the host as well.
        owner: Whom it belongs to, a label of everything made.
        tags: Further labels of everything made, sorted pairs.
        machines: For k3s and kubeadm.
    """

    name: str
    platform: Platform
    kubernetes_version: str
    region: str = ""
    zones: tuple[str, ...] = ()
    pools: tuple[NodePool, ...] = ()
    network: Network = Network()
    public_cidrs: tuple[str, ...] = ()
    kms_key: str = ""
    project: str = ""
    admin_groups: tuple[str, ...] = ()
    host_encryption: bool = True
    owner: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    machines: Machines | None = None

    @property
    def system_pool(self) -> NodePool:
        """Return the pool that carries the cluster's own pods.

        Raises:
            ValueError: If there is none; parsed specifications of a cloud have one.
        """
        for pool in self.pools:
            if is_system_pool(pool):
                return pool
        raise ValueError(f"{self.name} has no pool for the cluster's own pods")

    def all_tags(self) -> dict[str, str]:
        """Return the labels of everything that is made for it."""
        tags = dict(self.tags) | {"gpuplane-cluster": self.name, "managed-by": "gpuplane"}
        return dict(sorted((tags | ({"owner": self.owner} if self.owner else {})).items()))


def is_system_pool(pool: NodePool) -> bool:
    """Return whether the cluster's own pods can rely on a pool."""
    return not pool.gpu_count and not pool.taints and not pool.spot and pool.minimum > 0


def document_of(spec: ClusterSpec) -> dict[str, Any]:
    """Return the document that says the same; what is as by default is left out."""
    body: dict[str, Any] = {
        "platform": spec.platform.value,
        "kubernetesVersion": spec.kubernetes_version,
    }
    if spec.machines is not None:
        body["machines"] = _machines_of(spec.machines)
    else:
        body |= {"region": spec.region, "zones": list(spec.zones)}
        body["nodePools"] = [_pool_of(pool) for pool in spec.pools]
        body["network"] = _network_of(spec.network)
    plain = {
        "endpoint": {"publicCidrs": list(spec.public_cidrs)} if spec.public_cidrs else None,
        "kmsKey": spec.kms_key,
        "project": spec.project,
        "adminGroups": list(spec.admin_groups),
        "hostEncryption": None if spec.host_encryption else False,
        "owner": spec.owner,
        "tags": dict(spec.tags),
    }
    body |= {key: value for key, value in plain.items() if value is False or value}
    metadata = {"name": spec.name}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": body}


def _network_of(network: Network) -> dict[str, Any]:
    if network.subnets:
        return {"subnets": dict(network.subnets)}
    return {"subnet": network.subnet} if network.subnet else {"cidr": network.cidr}


def _pool_of(pool: NodePool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": pool.name,
        "instanceType": pool.instance_type,
        "min": pool.minimum,
        "max": pool.maximum,
        "diskGiB": pool.disk_gib,
    }
    if pool.gpu_count:
        found["gpu"] = {"model": pool.gpu_model, "count": pool.gpu_count}
    plain = {
        "spot": pool.spot,
        "zones": list(pool.zones),
        "placementGroup": pool.placement_group,
        "efa": pool.efa,
        "labels": dict(pool.labels),
        "taints": _taints_of(pool.taints),
    }
    return found | {key: value for key, value in plain.items() if value}


def _machines_of(machines: Machines) -> dict[str, Any]:
    plain = {
        "endpoint": machines.endpoint,
        "sha256": dict(machines.sha256),
        "caCertHash": machines.ca_cert_hash,
        "podCidr": machines.pod_cidr,
        "serviceCidr": machines.service_cidr,
        "nvidiaToolkit": machines.nvidia_toolkit,
        "labels": dict(machines.labels),
        "taints": _taints_of(machines.taints),
    }
    return {key: value for key, value in plain.items() if value}


def _taints_of(taints: tuple[Taint, ...]) -> list[dict[str, str]]:
    return [{"key": each.key, "value": each.value, "effect": each.effect.value} for each in taints]
