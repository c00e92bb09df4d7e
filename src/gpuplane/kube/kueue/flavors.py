"""ResourceFlavors, Topologies and WorkloadPriorityClasses: which nodes a flavor stands for.

Owns how a GPU model of ours becomes a flavor that matches its nodes, and the objects around it.
Never guesses a node label: the labels are those that the nodes of a model share.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuplane.kube.accelerators import RESOURCES
from gpuplane.kube.kueue.names import (
    MANAGED_LABEL,
    MANAGED_VALUE,
    PRIORITY_CLASS_VALUES,
    ApiVersion,
)

Object = dict[str, Any]
PRODUCT_LABEL = "nvidia.com/gpu.product"
"""Written by GPU feature discovery; the NVIDIA device's name with dashes."""
MAX_NODE_LABELS = 8
"""Kueue's limit on node labels of a flavor."""
HOSTNAME_LEVEL = "kubernetes.io/hostname"


_VENDORS = (("intel-gaudi", "habana"), ("habana", "habana"), ("amd-", "amd"), ("intel-", "intel"))
"""How the models of other vendors than NVIDIA begin."""


def resource_of(model: str) -> str:
    """Return the extended resource in which whole devices of a model are counted."""
    found = (vendor for head, vendor in _VENDORS if model.startswith(head))
    return RESOURCES[next(found, "nvidia")]


@dataclass(frozen=True, slots=True)
class FlavorSpec:
    """A ResourceFlavor: the nodes it stands for, and how work gets onto them.

    Args:
        node_labels: Labels that its nodes have; empty stands for every node.
        taints: (key, value, effect) that its nodes have, so that only those who tolerate them come.
        tolerations: What Kueue adds to admitted pods, as Kubernetes writes tolerations.
        topology: Name of the Topology by which its nodes are laid out, None without one.
    """

    name: str
    node_labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    topology: str | None = None


@dataclass(frozen=True, slots=True)
class LabelledGpus:
    """One node as flavors are made from: the canonical GPU model and the labels it has."""

    model: str
    labels: Mapping[str, str]


def plan_flavors(nodes: Iterable[LabelledGpus]) -> tuple[FlavorSpec, ...]:
    """Return one flavor for each model, by name, with the product label its nodes have.

    A model whose nodes have several products (an alias each) or none gets a flavor for all its
    nodes only if a label tells them apart from the others; else it stands for every node, which
    is right on a cluster with one model.
    """
    products: dict[str, set[str]] = {}
    for node in nodes:
        products.setdefault(node.model, set()).add(node.labels.get(PRODUCT_LABEL, ""))
    planned = []
    for model, found in sorted(products.items()):
        named = sorted(found - {""})
        if len(named) == 1:
            planned.append(FlavorSpec(model, {PRODUCT_LABEL: named[0]}))
        elif len(named) > 1:
            planned += [
                FlavorSpec(model if index == 0 else f"{model}-{index + 1}", {PRODUCT_LABEL: each})
                for index, each in enumerate(named)
            ]
        elif len(products) == 1:
            planned.append(FlavorSpec(model))
    return tuple(planned)


def flavor_object(spec: FlavorSpec, version: ApiVersion) -> Object:
    """Return a ResourceFlavor as Kueue has it."""
    body: Object = {}
    if spec.node_labels:
        body["nodeLabels"] = dict(sorted(spec.node_labels.items()))
    if spec.taints:
        body["nodeTaints"] = [_taint(*each) for each in spec.taints]
    if spec.tolerations:
        body["tolerations"] = [dict(each) for each in spec.tolerations]
    if spec.topology is not None:
        body["topologyName"] = spec.topology
    return _cluster_object(version, "ResourceFlavor", spec.name) | {"spec": body}


def read_flavor(found: Mapping[str, Any]) -> FlavorSpec:
    """Return what a ResourceFlavor of any served version says."""
    body = found.get("spec") or {}
    return FlavorSpec(
        name=found["metadata"]["name"],
        node_labels=dict(body.get("nodeLabels") or {}),
        taints=tuple(
            (each.get("key", ""), each.get("value", ""), each.get("effect", ""))
            for each in body.get("nodeTaints") or ()
        ),
        tolerations=tuple(dict(each) for each in body.get("tolerations") or ()),
        topology=body.get("topologyName"),
    )


def topology_object(name: str, levels: Sequence[str], version: ApiVersion) -> Object:
    """Return a Topology as Kueue has it: node labels from the widest level to the node itself."""
    spec = {"levels": [{"nodeLabel": level} for level in levels]}
    return _cluster_object(version, "Topology", name) | {"spec": spec}


def read_topology(found: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the name of a Topology and its levels, widest first."""
    levels = (found.get("spec") or {}).get("levels") or ()
    return found["metadata"]["name"], tuple(each["nodeLabel"] for each in levels)


def priority_class_objects(version: ApiVersion) -> tuple[Object, ...]:
    """Return the WorkloadPriorityClasses of our five classes."""
    return tuple(
        _cluster_object(version, "WorkloadPriorityClass", name)
        | {"value": value, "description": f"Class {name.removeprefix('gpuplane-')} of gpuplane."}
        for name, value in PRIORITY_CLASS_VALUES.items()
    )


def _cluster_object(version: ApiVersion, kind: str, name: str) -> Object:
    return {
        "apiVersion": version.group_version,
        "kind": kind,
        "metadata": {"name": name, "labels": {MANAGED_LABEL: MANAGED_VALUE}},
    }


def _taint(key: str, value: str, effect: str) -> Object:
    taint = {"key": key, "effect": effect}
    return {**taint, "value": value} if value else taint
