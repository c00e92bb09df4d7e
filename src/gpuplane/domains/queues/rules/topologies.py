"""Topologies as values: node labels from the widest level down, and what Kueue refuses of them.

Source: kubernetes-sigs/kueue v0.15.0, apis/kueue/v1beta2/{topology,resourceflavor}_types.go.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

HOSTNAME = "kubernetes.io/hostname"
MAX_LEVELS = 16
MAX_LABEL = 316
_LABEL = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
)


@dataclass(frozen=True, slots=True)
class TopologySpec:
    """How nodes are laid out.

    Args:
        levels: Node labels, the widest first, such as block, rack and host.
        flavors: ResourceFlavors whose nodes are laid out so; a job asks for a level among them.
    """

    name: str
    levels: tuple[str, ...]
    flavors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyProblem:
    """What is wrong with a declaration: the field, a sentence, and what to do."""

    field: str
    sentence: str
    fix: str


def encode_topology(spec: TopologySpec) -> dict[str, Any]:
    """Return a Topology as it is kept."""
    return {"levels": list(spec.levels), "flavors": list(spec.flavors)}


def topology_of(name: str, kept: Mapping[str, Any]) -> TopologySpec:
    """Return a Topology from how it is kept."""
    return TopologySpec(name, tuple(kept.get("levels", ())), tuple(kept.get("flavors", ())))


def find_topology_problem(
    spec: TopologySpec, others: Iterable[TopologySpec], flavors: Mapping[str, Mapping[str, Any]]
) -> TopologyProblem | None:
    """Return what Kueue would refuse of a Topology, None where it takes it.

    Args:
        spec: What is to be declared.
        others: The other Topologies of the cluster.
        flavors: What its ResourceFlavors say, by name.
    """
    levels = spec.levels
    if not 1 <= len(levels) <= MAX_LEVELS:
        said = f"A Topology has 1 to {MAX_LEVELS} levels."
        return TopologyProblem("levels", said, "Name node labels, the widest level first.")
    for level in levels:
        if len(level) > MAX_LABEL or not _LABEL.fullmatch(level):
            said = f"{level!r} is no name of a node label."
            return TopologyProblem("levels", said, "Such as topology.kubernetes.io/zone.")
        if levels.count(level) > 1:
            return TopologyProblem("levels", f"{level} is named twice.", "Name each level once.")
    if HOSTNAME in levels[:-1]:
        said = f"{HOSTNAME} can only be the last level."
        return TopologyProblem("levels", said, "Move it to the end.")
    taken = {flavor: each.name for each in others for flavor in each.flavors}
    for flavor in spec.flavors:
        found = flavors.get(flavor)
        if found is None:
            known = ", ".join(sorted(flavors)) or "none"
            said = f"The cluster has no ResourceFlavor {flavor!r}."
            return TopologyProblem("flavors", said, f"It has: {known}.")
        if not found.get("nodeLabels"):
            said = f"Flavor {flavor} has no node label: Kueue lays out only nodes that it can tell."
            return TopologyProblem("flavors", said, "Name the flavor of a GPU model.")
        current = found.get("topologyName") or taken.get(flavor)
        if current not in (None, spec.name):
            said = f"Flavor {flavor} has the Topology {current}, and Kueue lets it have no other."
            return TopologyProblem("flavors", said, "Leave it out, or delete the flavor first.")
    return None
