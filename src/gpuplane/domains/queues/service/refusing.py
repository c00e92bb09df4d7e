"""What a declaration is refused for, each refusal naming the field and the fix; writes nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gpuplane.core.hardware import nearest_models
from gpuplane.core.ids import TenantId
from gpuplane.core.quota.specs import (
    FlavorResource,
    SpecProblem,
    list_spec_problems,
)
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterState
from gpuplane.domains.identity import service as identity
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.queues import repository
from gpuplane.domains.queues.errors import (
    BadQueue,
    ClusterLeaves,
    QueueChanged,
    QueueExists,
    QueueInConflict,
    QueueInUse,
    QueueLeadsElsewhere,
)
from gpuplane.domains.queues.repository import Declared, Door
from gpuplane.domains.queues.rules import (
    QueueSpecs,
    find_misspelt_flavor,
    find_unknown_model,
)
from gpuplane.domains.queues.rules.seen import SeenKind
from gpuplane.domains.queues.service.declared import DeclaredQueues, local_spec
from gpuplane.domains.queues.service.seeing import admits_itself
from gpuplane.domains.queues.service.showing import find_seen_door
from gpuplane.kit.errors import FieldError
from gpuplane.kube.kueue.queues import find_untold, find_untold_door

T = TypeVar("T")

ADOPTERS = {
    SeenKind.CLUSTER_QUEUE: "quotas",
    SeenKind.LOCAL_QUEUE: "queues",
    SeenKind.COHORT: "cohorts",
}
"""The command under which each kind is adopted."""
KEPT_FOR_OTHERS = ("NotOurs", "FieldConflict")
"""Conflicts with what others made or changed, which no other declaration would end."""
NAMED_JOBS = 3
"""Jobs that a refusal names: enough to know whose work it is, few enough for one line."""
KUEUE_FIELDS = {
    "resource_groups": "resourceGroups",
    "quotas": "resourceGroups",
    "preemption": "preemption",
    "flavor_fungibility": "flavorFungibility",
    "fair_weight_milli": "fairSharing.weight",
    "parent": "parent",
    "cluster_queue": "clusterQueue",
    "limits": "limits",
    "covers_everything": "coversEverything",
    "name": "name",
}
"""The names people write for the fields that the core names."""


def refuse_users(jobs: Sequence[str], where: str) -> None:
    """Refuse to take away what jobs go through.

    Args:
        jobs: The names of those that hold devices or wait.
        where: Where they do, as the sentence goes on.

    Raises:
        QueueInUse: If there are any; names the first of them.
    """
    if not jobs:
        return
    noun = "job holds devices or waits" if len(jobs) == 1 else "jobs hold devices or wait"
    more = [f"{len(jobs) - NAMED_JOBS} more"] if len(jobs) > NAMED_JOBS else []
    *first, last = [*jobs[:NAMED_JOBS], *more]
    names = f"{', '.join(first)} and {last}" if first else last
    raise QueueInUse(
        f"{len(jobs)} {noun} {where}: {names}.",
        fix="Wait for their end, or cancel them: gpuplane cancel NAME.",
    )


def check_specs(known: DeclaredQueues, **changes: Any) -> None:
    """Refuse declarations that would not hold together, or that the cluster cannot keep.

    Raises:
        BadQueue: Naming the field.
        ClusterLeaves: If the cluster is being deleted.
    """
    if known.cluster.state in (ClusterState.DRAINING, ClusterState.DELETING):
        raise ClusterLeaves(
            f"{known.cluster.name} is {known.cluster.state}: nothing is declared on it any more.",
            field="cluster",
            fix="Name another cluster, or register it again once it is gone.",
        )
    specs = replace(known.specs(), **changes)
    _check(specs)
    if known.cluster.config.get("admission") != "kueue":
        return
    for queue in specs.cluster_queues:
        untold = find_untold(queue)
        if untold is not None:
            raise BadQueue(untold, field="coversEverything", fix="Declare resourceGroups.")
    for door in specs.local_queues:
        untold = find_untold_door(door)
        if untold is not None:
            raise BadQueue(untold, field="limits", fix="Leave the limits out.")


def _check(specs: QueueSpecs) -> None:
    flavors = [
        flavor
        for queue in specs.cluster_queues
        for group in queue.resource_groups
        for flavor in group.flavors
    ]
    misspelt = find_misspelt_flavor(flavors)
    if misspelt is not None:
        raise BadQueue(
            f"The flavor {misspelt[0]!r} means a GPU model in another spelling than its own.",
            field="resourceGroups",
            fix=f"Write {misspelt[1]}.",
        )
    problems = list_spec_problems(specs.cluster_queues, specs.cohorts, specs.local_queues)
    if problems:
        raise _refused(problems)


def require_models(
    session: ReadSession, cluster: Cluster, quotas: Iterable[FlavorResource]
) -> None:
    """Refuse quotas of GPU models that nobody makes and no cluster has.

    One that is known is taken ahead of its nodes. Where Kueue admits, a flavor may have a name of
    its own once the cluster has a ResourceFlavor of it, and a manager has those of its workers.

    Raises:
        BadQueue: Naming the nearest models.
    """
    admits = admits_itself(cluster)
    places = clusters.list_clusters(session) if admits else [cluster]
    here = set(nodes.count_models(session, [each.id for each in places]))
    if admits:
        seen = repository.list_seen(session, cluster.id, SeenKind.FLAVOR)
        here |= {each.name for each in seen}
    unknown = find_unknown_model(quotas, here)
    if unknown is not None:
        fix = f"Nearest models: {', '.join(nearest_models(unknown))}; `any` is every model."
        if admits:
            fix += f" Or make a ResourceFlavor {unknown!r} on {cluster.name} first."
        raise BadQueue(f"There is no GPU model {unknown!r}.", field="resourceGroups", fix=fix)


def check_door(session: ReadSession, known: DeclaredQueues, name: str, door: Door) -> None:
    """Refuse a door that would not hold together with the others.

    Raises:
        BadQueue: Naming the field.
    """
    tenants = identity.tenants_by_ids(session, {door.tenant_id})
    names = {**known.tenants, **{key: each.name for key, each in tenants.items()}}
    others = tuple(
        local_spec(each, names)
        for each in known.local_queues
        if (each.name, each.spec.tenant_id) != (name, door.tenant_id)
    )
    mine = local_spec(Declared(name, door, 1, 0, 0), names)
    check_specs(known, local_queues=(*others, mine))


def _refused(problems: Sequence[SpecProblem]) -> BadQueue:
    found = tuple(
        FieldError(KUEUE_FIELDS.get(each.field, each.field), f"{each.subject}: {each.sentence}.")
        for each in problems
    )
    first = found[0]
    return BadQueue(first.reason, field=first.field, fix="Change the field named.", errors=found)


def refuse_double(name: str, known: Sequence[str], kind: str) -> None:
    """Refuse a name that is declared already.

    Raises:
        QueueExists: Always then.
    """
    if name in known:
        raise QueueExists(
            f"There is a {kind} {name!r} on this cluster already.",
            field="name",
            fix="Change it, or use another name.",
        )  # fmt: skip - the refusal reads as one line


def refuse_others(
    session: ReadSession, known: DeclaredQueues, kind: SeenKind, name: str, namespace: str = ""
) -> None:
    """Refuse a name under which somebody else has an object on the cluster.

    Raises:
        QueueExists: Naming what adopts it.
    """
    for each in repository.list_seen(session, known.cluster.id, kind):
        if (each.name, each.namespace) == (name, namespace) and not each.ours:
            raise QueueExists(
                f"Somebody else made a {kind} {name!r} on this cluster.",
                field="name",
                fix=f"Adopt it: gpuplane {ADOPTERS[kind]} adopt {name}. Or use another name.",
            )


def require_own(
    session: ReadSession,
    known: DeclaredQueues,
    declared: Sequence[Declared[T]],
    kind: SeenKind,
    name: str,
) -> None:
    """Refuse to change what others made on the cluster."""
    if all(each.name != name for each in declared):
        refuse_others(session, known, kind, name)


def refuse_conflict(
    known: DeclaredQueues,
    kind: SeenKind,
    name: str,
    spec: T,
    read: Callable[[str, Mapping[str, Any]], T],
) -> None:
    """Refuse to change what the cluster would not take, because it keeps what others made of it.

    To declare what the cluster has is taken: that ends the conflict.

    Raises:
        QueueInConflict: Naming what takes over and what gives up.
    """
    seen = next((each for each in known.seen if each.key == (str(kind), "", name)), None)
    if seen is None or seen.conflict is None or seen.conflict.reason not in KEPT_FOR_OTHERS:
        return
    if "raw" not in seen.spec and read(name, seen.spec) == spec:
        return
    command, where = f"gpuplane {ADOPTERS[kind]}", f"{name} --cluster {known.cluster.name}"
    raise QueueInConflict(
        f"{kind} {name!r} is in conflict on {known.cluster.name}, so nothing was changed: "
        f"{seen.conflict.message}",
        field="name",
        fix=f"Take over what the cluster has, then change it: {command} adopt {where}. Or "
        f"undo there what others changed, or give it up here: {command} rm {where}.",
    )


def refuse_other_way(
    session: ReadSession, known: DeclaredQueues, name: str, tenant_id: TenantId, cluster_queue: str
) -> None:
    """Refuse to lead a LocalQueue that the cluster has to another ClusterQueue.

    Kueue does not let it change, so that what is declared would never be written.

    Source: kubernetes-sigs/kueue v0.15.0, apis/kueue/v1beta2/localqueue_types.go (`self ==
    oldSelf` of `spec.clusterQueue`).

    Raises:
        QueueLeadsElsewhere: Naming what opens it anew.
    """
    tenant = identity.tenants_by_ids(session, {tenant_id}).get(tenant_id)
    seen = None if tenant is None else find_seen_door(known, tenant.name, name)
    leads_to = "" if seen is None else seen.spec.get("clusterQueue", "")
    if seen is None or tenant is None or leads_to in ("", cluster_queue):
        return
    where = f"{name} --cluster {known.cluster.name} --tenant {tenant.name}"
    adopt = f"adopt it as it is: gpuplane queues adopt {where}."
    is_declared = any(
        (each.name, each.spec.tenant_id) == (name, tenant_id) for each in known.local_queues
    )
    fix = f"Delete it first: gpuplane queues rm {where}. Then declare it again."
    if not seen.ours:
        fix = f"Have whoever made it delete it, or {adopt}"
    elif not is_declared:
        fix = f"It was withdrawn: repeat this once it is gone from there. If it stays, {adopt}"
    raise QueueLeadsElsewhere(
        f"LocalQueue {name!r} of {tenant.name} leads to {leads_to} on {known.cluster.name}, and "
        "Kueue does not let a LocalQueue be led elsewhere.",
        field="clusterQueue",
        fix=fix,
    )


def require_done(name: str, *, done: bool) -> None:
    """Refuse a change of what is not as it was read.

    Raises:
        QueueChanged: If nothing was changed.
    """
    if not done:
        raise QueueChanged(
            f"{name} was changed by somebody else meanwhile.",
            fix="Read it again and repeat the change.",
        )
