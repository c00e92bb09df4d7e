"""Taking over what others made on a cluster: from then on it is declared here."""

from dataclasses import replace
from typing import Any
from uuid import UUID

from gpuplane.db.sessions import WriteSession
from gpuplane.domains.queues import repository
from gpuplane.domains.queues.errors import QueueNotFound
from gpuplane.domains.queues.rules import cluster_queue_of, cohort_of
from gpuplane.domains.queues.rules.seen import Seen, SeenKind
from gpuplane.domains.queues.service.declaring import (
    DeclaredQueues,
    announce,
    check_specs,
    load_declared,
)
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.kube.kueue.queues import cluster_queue_object, cohort_object


def adopt_cluster_queue(
    session: WriteSession, key: UUID | str, name: str, actor: str, now: int
) -> DeclaredQueues:
    """Declare a ClusterQueue as the cluster has it; what we declared of it before is let go.

    Raises:
        QueueNotFound: If the cluster shows none of that name.
        BadQueue: If it cannot be declared here.
    """
    known = load_declared(session, key)
    seen = _get(session, known, SeenKind.CLUSTER_QUEUE, name)
    spec = cluster_queue_of(name, seen.spec)
    others = tuple(each for each in known.specs().cluster_queues if each.name != name)
    check_specs(known, cluster_queues=(*others, spec))
    declared = next((each for each in known.cluster_queues if each.name == name), None)
    if declared is None:
        repository.insert_cluster_queue(session, known.cluster.id, spec, now)
    else:
        repository.update_cluster_queue(session, known.cluster.id, spec, declared.version, now)
    _take_over(session, known, seen, cluster_queue_object(spec, ApiVersion.V1BETA2))
    announce(session, known.cluster, "queue.adopted", "cluster_queue", name, actor, now)
    return load_declared(session, key)


def adopt_cohort(
    session: WriteSession, key: UUID | str, name: str, actor: str, now: int
) -> DeclaredQueues:
    """Declare a Cohort as the cluster has it; what we declared of it before is let go.

    Raises:
        QueueNotFound: If the cluster shows none of that name.
        BadQueue: If it cannot be declared here.
    """
    known = load_declared(session, key)
    seen = _get(session, known, SeenKind.COHORT, name)
    spec = cohort_of(name, seen.spec)
    others = tuple(each for each in known.specs().cohorts if each.name != name)
    check_specs(known, cohorts=(*others, spec))
    declared = next((each for each in known.cohorts if each.name == name), None)
    if declared is None:
        repository.insert_cohort(session, known.cluster.id, spec, now)
    else:
        repository.update_cohort(session, known.cluster.id, spec, declared.version, now)
    _take_over(session, known, seen, cohort_object(spec, ApiVersion.V1BETA2))
    announce(session, known.cluster, "queue.adopted", "cohort", name, actor, now)
    return load_declared(session, key)


def _take_over(
    session: WriteSession, known: DeclaredQueues, seen: Seen, made: dict[str, Any]
) -> None:
    """Keep what the cluster has as what was written last: it may be written over as it is now."""
    bare = {**made, "metadata": {"name": seen.name}}
    row = replace(seen, applied=bare, conflict=None)
    repository.store_seen(session, known.cluster.id, [row])


def _get(session: WriteSession, known: DeclaredQueues, kind: SeenKind, name: str) -> Seen:
    seen = repository.list_seen(session, known.cluster.id, kind)
    for each in seen:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in seen) or "none"
    raise QueueNotFound(
        f"{known.cluster.name} shows no {kind} {name!r}.", fix=f"It shows: {names}."
    )
