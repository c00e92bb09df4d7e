"""Topologies of clusters with Kueue: declared here, kept beside what the cluster shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.queues import repository
from gpuplane.domains.queues.errors import BadQueue, QueueExists, QueueInUse, QueueNotFound
from gpuplane.domains.queues.rules.seen import Seen, SeenKind
from gpuplane.domains.queues.rules.topologies import (
    TopologySpec,
    encode_topology,
    find_topology_problem,
    topology_of,
)
from gpuplane.domains.queues.service.declaring import (
    announce,
)
from gpuplane.domains.queues.service.seeing import admits_itself

TOPOLOGIES = "topologies"
"""The key in a cluster's config: what is declared, by name."""


@dataclass(frozen=True, slots=True)
class ShownTopology:
    """A Topology as it is declared or, where nobody declared it here, as the cluster has it."""

    spec: TopologySpec
    is_declared: bool
    seen: Seen | None = None


def declared_topologies(cluster: Cluster) -> tuple[TopologySpec, ...]:
    """Return the Topologies that are declared on a cluster, by name."""
    told: Mapping[str, Any] = cluster.config.get(TOPOLOGIES) or {}
    return tuple(topology_of(name, kept) for name, kept in sorted(told.items()))


def list_topologies(session: ReadSession, key: UUID | str) -> list[ShownTopology]:
    """Return every Topology that is declared on a cluster or that it shows, by name."""
    cluster = clusters.get_cluster(session, key)
    seen = {
        each.name: each for each in repository.list_seen(session, cluster.id, SeenKind.TOPOLOGY)
    }
    shown = [
        ShownTopology(each, True, seen.pop(each.name, None))
        for each in declared_topologies(cluster)
    ]
    flavors = _flavors(session, cluster)
    for name, one in seen.items():
        levels = tuple(each["nodeLabel"] for each in one.spec.get("levels") or ())
        users = tuple(sorted(f for f, each in flavors.items() if each.get("topologyName") == name))
        shown.append(ShownTopology(TopologySpec(name, levels, users), False, one))
    return sorted(shown, key=lambda each: each.spec.name)


def get_topology(session: ReadSession, key: UUID | str, name: str) -> ShownTopology:
    """Return one Topology.

    Raises:
        QueueNotFound: If the cluster has none of that name.
    """
    shown = list_topologies(session, key)
    for each in shown:
        if each.spec.name == name:
            return each
    names = ", ".join(each.spec.name for each in shown) or "none"
    raise QueueNotFound(f"There is no Topology {name!r} on this cluster.", fix=f"It has: {names}.")


def create_topology(
    session: WriteSession, key: UUID | str, spec: TopologySpec, actor: str, now: int
) -> ShownTopology:
    """Declare a Topology.

    Raises:
        BadQueue: If the cluster does not admit by Kueue, or Kueue would refuse it.
        QueueExists: If the cluster has one of that name.
    """
    for each in list_topologies(session, key):
        if each.spec.name == spec.name:
            raise QueueExists(
                f"There is a Topology {spec.name!r} on this cluster already.",
                field="name",
                fix="Change it, or use another name.",
            )
    return store_topology(session, key, spec, "queue.created", actor, now)


def change_topology(
    session: WriteSession, key: UUID | str, spec: TopologySpec, actor: str, now: int
) -> ShownTopology:
    """Let more flavors have a Topology.

    Raises:
        QueueNotFound: If none of that name is declared.
        BadQueue: If its levels are other ones or a flavor is left out: Kueue lets neither change.
    """
    before = _get_declared(session, key, spec.name)
    if before.levels != spec.levels:
        raise BadQueue(
            "Kueue lets the levels of a Topology never change.",
            field="levels",
            fix="Declare another one.",
        )
    left = sorted(set(before.flavors) - set(spec.flavors))
    if left:
        raise BadQueue(
            f"Kueue lets a flavor never lose its Topology, as {left[0]} would.",
            field="flavors",
            fix="Name the flavors that have it as well.",
        )
    return store_topology(session, key, spec, "queue.changed", actor, now)


def delete_topology(
    session: WriteSession, key: UUID | str, name: str, actor: str, now: int
) -> None:
    """Withdraw a Topology that no flavor has.

    Raises:
        QueueNotFound: If none of that name is declared.
        QueueInUse: If a flavor has it.
    """
    _get_declared(session, key, name)
    cluster = clusters.get_cluster(session, key)
    found = _flavors(session, cluster).items()
    users = sorted(flavor for flavor, each in found if each.get("topologyName") == name)
    if users:
        raise QueueInUse(
            f"Flavor {users[0]} has it.",
            fix=f"Delete the flavor there first: kubectl delete resourceflavor {users[0]}.",
        )
    told = {each.name: encode_topology(each) for each in declared_topologies(cluster)}
    del told[name]
    clusters.change(
        session, cluster.id, {"config": {**cluster.config, TOPOLOGIES: told}}, actor, now
    )
    announce(session, cluster, "queue.deleted", "topology", name, actor, now)


def store_topology(
    session: WriteSession, key: UUID | str, spec: TopologySpec, event: str, actor: str, now: int
) -> ShownTopology:
    """Keep a Topology as declared, in the place of one of its name, and tell of it.

    Raises:
        BadQueue: If the cluster does not admit by Kueue, or Kueue would refuse it.
    """
    cluster = clusters.get_cluster(session, key)
    if not admits_itself(cluster):
        raise BadQueue(
            f"{cluster.name} does not admit by Kueue: nobody there would read it.",
            field="cluster",
            fix="Name a cluster with Kueue.",
        )
    others = [each for each in declared_topologies(cluster) if each.name != spec.name]
    problem = find_topology_problem(spec, others, _flavors(session, cluster))
    if problem is not None:
        raise BadQueue(problem.sentence, field=problem.field, fix=problem.fix)
    told = {each.name: encode_topology(each) for each in (*others, spec)}
    clusters.change(
        session, cluster.id, {"config": {**cluster.config, TOPOLOGIES: told}}, actor, now
    )
    announce(session, cluster, event, "topology", spec.name, actor, now)
    return get_topology(session, cluster.id, spec.name)


def _get_declared(session: ReadSession, key: UUID | str, name: str) -> TopologySpec:
    shown = get_topology(session, key, name)
    if not shown.is_declared:
        raise QueueExists(
            f"Somebody else made the Topology {name!r}; it is only shown.",
            field="name",
            fix="Change it with kubectl.",
        )
    return shown.spec


def _flavors(session: ReadSession, cluster: Cluster) -> dict[str, Mapping[str, Any]]:
    found = repository.list_seen(session, cluster.id, SeenKind.FLAVOR)
    return {each.name: each.spec for each in found}
