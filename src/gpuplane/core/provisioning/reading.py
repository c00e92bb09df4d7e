"""Reads the specification of a cluster from its document; every refusal names field and fix.

Owns which fields there are, their forms and what must hold between them. Knows no file: the
document is a JSON value, and what an instance type has is asked of the caller.
"""

import ipaddress
import re
from collections.abc import Callable
from typing import Any

from gpuplane.core.hardware import find_model, nearest_models
from gpuplane.core.provisioning.instances import EFA_INTERFACES, find_gke_accelerator
from gpuplane.core.provisioning.networks import MAX_ZONES
from gpuplane.core.provisioning.problems import BadSpec, Fields, Problem
from gpuplane.core.provisioning.specs import (
    API_VERSION,
    KIND,
    ClusterSpec,
    Effect,
    Machines,
    Network,
    NodePool,
    Platform,
    Taint,
    is_system_pool,
)

FindGpus = Callable[[str], tuple[str, int] | None]
"""(instance type) -> (canonical GPU model, GPUs of a node), None where it has none."""

MAX_POOLS = 30
MAX_NODES = 5_000
MAX_TAINTS = 20

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")
_POOL = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")
_AKS_POOL = re.compile(r"[a-z][a-z0-9]{0,11}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_REGION = re.compile(r"[a-z][a-z0-9-]{2,30}")
_ZONE = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_AKS_ZONE = re.compile(r"[a-z0-9]{2,30}-[1-3]")
_MINOR = re.compile(r"1\.[0-9]{2}")
_K3S = re.compile(r"v1\.[0-9]{2}\.[0-9]{1,2}\+k3s[0-9]{1,2}")
_RELEASE = re.compile(r"1\.(3[1-9]|[4-9][0-9])\.[0-9]{1,2}")  # v1beta4 of kubeadm came with 1.31
_TAG_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_TAG = re.compile(r"[a-z0-9_-]{0,63}")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_EFFECT = re.compile("|".join(each.value for each in Effect))
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9:/._()-]{0,400}|/[A-Za-z0-9:/._()-]{1,400}")
_PROJECT = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CA_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_ARCH = re.compile(r"amd64|arm64")
_PACKAGE = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+-[0-9]+")
_CIDR_TEXT = re.compile(r"[0-9a-fA-F.:]{2,39}/[0-9]{1,3}")


def parse_cluster_spec(document: object, find_gpus: FindGpus) -> ClusterSpec:
    """Return the specification that a document is.

    Raises:
        BadSpec: With every field that cannot be meant.
    """
    problems: list[Problem] = []
    if not isinstance(document, dict):
        raise BadSpec([Problem("(document)", "It is no mapping.", f"Write a {KIND}.")])
    whole = Fields(document, "", problems)
    whole.text("apiVersion", re.compile(re.escape(API_VERSION)), API_VERSION, default=None)
    whole.text("kind", re.compile(KIND), KIND, default=None)
    metadata = whole.part("metadata")
    name = metadata.text(
        "name", _NAME, "lower case letters, digits and dashes, 30 at most", default=None
    )
    body = whole.part("spec")
    if not isinstance(document.get("spec"), dict):
        whole.wrong("spec", "It is missing.", "Write what the cluster is to be.")
        raise BadSpec(problems)
    words = [each.value for each in Platform]
    platform = body.text(
        "platform", re.compile("|".join(words)), f"one of {', '.join(words)}", default=None
    )
    if not platform:
        raise BadSpec(problems)
    owner = body.text("owner", _TAG, "lower case letters, digits, - and _")
    tags = body.pairs("tags", _TAG_KEY, _TAG, "lower case letters, digits, - and _")
    kind = Platform(platform)
    read = _read_cloud if kind.is_cloud else _read_machines
    found = read(kind, body, find_gpus)
    for fields in (whole, metadata, body):
        fields.refuse_rest()
    if problems:
        raise BadSpec(problems)
    return ClusterSpec(name=name, platform=kind, owner=owner, tags=tags, **found)


def _read_cloud(platform: Platform, body: Fields, find_gpus: FindGpus) -> dict[str, Any]:
    is_aks = platform is Platform.AKS
    known = len(body.problems)
    example = "westeurope-1" if is_aks else "eu-west-1a"
    zones = body.texts("zones", _AKS_ZONE if is_aks else _ZONE, f"a zone such as {example}")
    fewest = 2 if platform is Platform.EKS else 1
    if not fewest <= len(zones) <= MAX_ZONES and len(body.problems) == known:
        least = "2 (EKS spreads its control plane)" if platform is Platform.EKS else "1"
        body.wrong("zones", f"There are {len(zones)}.", f"Name {least} to {MAX_ZONES} zones.")
    endpoint = body.part("endpoint")
    pools = tuple(_read_pool(platform, each, zones, find_gpus)
                  for each in body.parts("nodePools", MAX_POOLS))  # fmt: skip
    _check_pools(body, pools)
    found = {
        "kubernetes_version": body.text("kubernetesVersion", _MINOR, "a minor version such as 1.33",
                                        default=None),
        "region": body.text("region", _REGION, "a region of the cloud", default=None),
        "zones": zones,
        "pools": pools,
        "network": _read_network(platform, body.part("network"), zones),
        "public_cidrs": _public_cidrs(endpoint),
        "kms_key": body.text("kmsKey", _REFERENCE, "the id of a key"),
    }  # fmt: skip
    endpoint.refuse_rest()
    if platform is Platform.GKE:
        found["project"] = body.text("project", _PROJECT, "a Google Cloud project", default=None)
    if is_aks:
        found["admin_groups"] = body.texts("adminGroups", _UUID, "the object id of a group")
        found["host_encryption"] = body.flag("hostEncryption", default=True)
    return found


def _check_pools(body: Fields, pools: tuple[NodePool, ...]) -> None:
    names = [pool.name for pool in pools]
    for index, name in enumerate(names):
        if name and name in names[:index]:
            body.wrong(f"nodePools[{index}].name", f"{name!r} stands twice.", "Choose another.")
    if not any(is_system_pool(pool) for pool in pools):
        body.wrong(
            "nodePools",
            "No pool can carry the cluster's own pods.",
            "Add one without GPUs, taints and spot, with min of 1 or more.",
        )


def _read_pool(
    platform: Platform, fields: Fields, zones: tuple[str, ...], find_gpus: FindGpus
) -> NodePool:
    is_aks = platform is Platform.AKS
    name = fields.text(
        "name",
        _AKS_POOL if is_aks else _POOL,
        "at most 12 lower case letters and digits" if is_aks
        else "at most 20 lower case letters, digits and dashes",
        default=None,
    )  # fmt: skip
    instance = fields.text("instanceType", _WORD, "an instance type of the cloud", default=None)
    model, count = _gpus_of(fields, instance, find_gpus)
    minimum = fields.number("min", 0, MAX_NODES, default=0)
    maximum = fields.number("max", 1, MAX_NODES, default=max(minimum, 1))
    if minimum > maximum:
        fields.wrong("min", f"{minimum} is more than max {maximum}.", "Lower it or raise max.")
    own = fields.texts("zones", _ZONE, "a zone of the cluster")
    for zone in own:
        if zone not in zones:
            fields.wrong("zones", f"{zone} is none of the cluster's.", "Name one of spec.zones.")
    pool = NodePool(
        name=name,
        instance_type=instance,
        gpu_model=model,
        gpu_count=count,
        minimum=minimum,
        maximum=maximum,
        spot=fields.flag("spot", default=False),
        disk_gib=fields.number("diskGiB", 20, 16_000, default=100),
        zones=own,
        placement_group=fields.flag("placementGroup", default=False),
        efa=fields.flag("efa", default=False),
        labels=fields.pairs("labels", _LABEL_KEY, _LABEL, "a label of Kubernetes"),
        taints=_read_taints(fields),
    )
    if pool.placement_group and len(own or zones) != 1:
        fields.wrong("zones", "A placement group is in one zone.", "Name exactly one zone.")
    if pool.efa and (platform is not Platform.EKS or instance not in EFA_INTERFACES):
        types = ", ".join(EFA_INTERFACES)
        fields.wrong("efa", f"{instance} has none on {platform}.", f"EKS has them on {types}.")
    if pool.efa and len(own or zones) != 1:
        fields.wrong("zones", "EFA does not leave its zone.", "Name exactly one zone.")
    if platform is Platform.GKE and model is not None and not find_gke_accelerator(instance, model):
        fields.wrong("instanceType", f"GKE has no {model} on {instance}.",
                     "Use a machine type with GPUs, or n1 with one that is attached.")  # fmt: skip
    fields.refuse_rest()
    return pool


def _gpus_of(fields: Fields, instance: str, find_gpus: FindGpus) -> tuple[str | None, int]:
    """Return what the tables know of the type; a document may say it of a type they do not know."""
    known = find_gpus(instance) if instance else None
    given = fields.part("gpu")
    if not given.values:
        return known if known is not None else (None, 0)
    word = given.text("model", _WORD, "a GPU model", default=None)
    count = given.number("count", 1, 16, default=1)
    given.refuse_rest()
    model = find_model(word) if word else None
    if word and model is None:
        near = ", ".join(nearest_models(word))
        given.wrong("model", f"There is no GPU model {word!r} known here.", f"Nearest: {near}.")
        return None, 0
    name = model.name if model is not None else None
    if model is not None and model.vendor != "nvidia":
        given.wrong(
            "model",
            f"{name} needs images and taints of {model.vendor}.",
            "Make pools of NVIDIA GPUs here; add others by the cloud's own means.",
        )
        return None, 0
    if known is not None and name is not None and known != (name, count):
        given.wrong(
            "model",
            f"{instance} has {known[1]} {known[0]}, not {count} {name}.",
            "Leave `gpu` out: the type says it.",
        )
    return name, count


def _read_taints(fields: Fields) -> tuple[Taint, ...]:
    found = []
    for each in fields.parts("taints", MAX_TAINTS):
        key = each.text("key", _LABEL_KEY, "a key of Kubernetes", default=None)
        value = each.text("value", _LABEL, "a value of Kubernetes")
        effect = each.text("effect", _EFFECT, "NoSchedule, PreferNoSchedule or NoExecute",
                           default=None)  # fmt: skip
        each.refuse_rest()
        if effect:
            found.append(Taint(key, value, Effect(effect)))
    return tuple(found)


def _read_network(platform: Platform, fields: Fields, zones: tuple[str, ...]) -> Network:
    subnets: tuple[tuple[str, str], ...] = ()
    subnet = ""
    if platform is Platform.EKS:
        subnets = fields.pairs("subnets", _ZONE, _REFERENCE, "the id of a subnet")
        if subnets and [zone for zone, _ in subnets] != sorted(zones):
            fields.wrong("subnets", "They are not one a zone.", "Name one subnet for each zone.")
    else:
        subnet = fields.text("subnet", _REFERENCE, "a subnet that is there")
    if (subnets or subnet) and fields.has("cidr"):
        fields.wrong("cidr", "A network that is there has its range.", "Leave one of them out.")
    cidr = fields.text("cidr", _CIDR_TEXT, "a range such as 10.40.0.0/16")
    if cidr and not _is_private_range(cidr):
        fields.wrong(
            "cidr", f"{cidr} is no private range of /16 to /20.", "Write one like 10.40.0.0/16."
        )
    fields.refuse_rest()
    if subnets or subnet:
        return Network("", subnets, subnet)
    return Network(cidr) if cidr else Network()


def _is_private_range(text: str) -> bool:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        return False
    return network.version == 4 and network.is_private and 16 <= network.prefixlen <= 20


def _public_cidrs(endpoint: Fields) -> tuple[str, ...]:
    found = endpoint.texts("publicCidrs", _CIDR_TEXT, "a range such as 203.0.113.0/24")
    for index, text in enumerate(found):
        try:
            network = ipaddress.ip_network(text)
        except ValueError:
            endpoint.wrong(f"publicCidrs[{index}]", f"{text} is no range.", "Write one like "
                           "203.0.113.0/24, without bits of the host.")  # fmt: skip
            continue
        if network.version != 4 or network.prefixlen < 8:
            endpoint.wrong(f"publicCidrs[{index}]", f"{text} lets nearly everyone in.",
                           "Name the IPv4 networks that need it, /8 or smaller.")  # fmt: skip
    return found


def _read_machines(platform: Platform, body: Fields, _find_gpus: FindGpus) -> dict[str, Any]:
    is_k3s = platform is Platform.K3S
    version = body.text(
        "kubernetesVersion",
        _K3S if is_k3s else _RELEASE,
        "a release such as v1.33.1+k3s1" if is_k3s else "a release from 1.31 on, such as 1.33.1",
        default=None,
    )
    known = len(body.problems)
    if not body.has("machines"):
        body.wrong("machines", "It is missing.", "Say how the machines reach the API server.")
    fields = body.part("machines")
    if len(body.problems) > known:
        return {"kubernetes_version": version}
    default = Machines("")
    machines = Machines(
        endpoint=fields.text("endpoint", _HOST, "a name or address", default=None),
        sha256=fields.pairs("sha256", _ARCH, _SHA256, "64 hexadecimal digits") if is_k3s else (),
        ca_cert_hash="" if is_k3s else fields.text("caCertHash", _CA_HASH, "sha256: and 64 digits"),
        pod_cidr=_range(fields, "podCidr", default.pod_cidr),
        service_cidr=_range(fields, "serviceCidr", default.service_cidr),
        nvidia_toolkit=fields.text("nvidiaToolkit", _PACKAGE, "a version such as 1.17.8-1"),
        labels=fields.pairs("labels", _LABEL_KEY, _LABEL, "a label of Kubernetes"),
        taints=_read_taints(fields),
    )
    if is_k3s and not machines.sha256:
        fields.wrong(
            "sha256",
            "The k3s binary is not run unseen.",
            "Give amd64 or arm64 its digest, from sha256sum-<arch>.txt of the release.",
        )
    fields.refuse_rest()
    return {"kubernetes_version": version, "machines": machines}


def _range(fields: Fields, name: str, default: str) -> str:
    text = fields.text(name, _CIDR_TEXT, "a range such as 10.42.0.0/16", default=default)
    try:
        ipaddress.IPv4Network(text)
    except ValueError:
        fields.wrong(name, f"{text} is no range.", "Write one like 10.42.0.0/16.")
        return default
    return text
