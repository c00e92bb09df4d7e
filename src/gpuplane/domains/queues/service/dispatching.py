"""MultiKueue: which clusters a manager dispatches to, in which order, and for which queues."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from gpuplane.core.runs.plans import OnFailure, Retry, RunPlan, StepPlan
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterRole
from gpuplane.domains.queues.errors import BadQueue
from gpuplane.domains.queues.service.declared import (
    load_declared,
)
from gpuplane.domains.queues.service.seeing import admits_itself
from gpuplane.domains.queues.service.tenancies import STEP_MS, Caller
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import Run, RunPolicy

DISPATCH = "dispatch"
"""The key in a cluster's config: workers by name in order, and queues."""
CONNECT = "multikueue.connect"
CONNECT_HANDLER = "multikueue.connect_workers"


def dispatching_queues(cluster: Cluster) -> frozenset[str]:
    """Return the ClusterQueues of a cluster whose work goes to other clusters."""
    told = cluster.config.get(DISPATCH) or {}
    return frozenset(told.get("queues", ()))


def dispatch_workers(cluster: Cluster) -> tuple[str, ...]:
    """Return the names of the clusters that a manager sends work to."""
    return tuple(each for each in worker_places(cluster) if each)


def worker_places(cluster: Cluster) -> tuple[str, ...]:
    """Return the workers of a manager by their places, empty where one was deleted.

    Others keep their place then, and with it the name that the manager knows them by.
    """
    told = cluster.config.get(DISPATCH) or {}
    return tuple(told.get("workers", ()))


def manager_ids(cluster: Cluster, known: Iterable[Cluster]) -> tuple[str, ...]:
    """Return the ids of the clusters that may dispatch work to a cluster, or may have done so.

    What runs there is followed to its end, also when a manager names it no more.
    """
    if not admits_itself(cluster):
        return ()
    managers = [each for each in known if each.id != cluster.id and DISPATCH in each.config]
    return tuple(sorted(one for each in managers for one in each.known_ids))


def is_manager(cluster: Cluster) -> bool:
    """Return whether a cluster was registered as a manager and its Kueue admits."""
    return cluster.role == ClusterRole.MANAGER and admits_itself(cluster)


def join_manager(
    session: WriteSession, manager_id: UUID, worker: Cluster, actor: str, now: int
) -> list[str]:
    """Add a worker to those of a manager, after the others; return the ids of all, best first.

    The id of one that was deleted is empty: its place is kept.

    Again, or where it is one already, changes nothing.
    """
    manager = clusters.get_cluster(session, manager_id)
    told = manager.config.get(DISPATCH) or {"queues": []}
    names = list(worker_places(manager))
    if worker.name not in names:
        names.append(worker.name)
        config = {**manager.config, DISPATCH: {**told, "workers": names}}
        clusters.change(session, manager.id, {"config": config}, actor, now)
        session.wake("kueue", "scheduler")
    found = (clusters.find_cluster(session, each) if each else None for each in names)
    return ["" if each is None else str(each.id) for each in found]


def leave_managers(session: WriteSession, worker: str, actor: str, now: int) -> None:
    """Have no manager dispatch to a worker; again, changes nothing."""
    for manager in clusters.list_clusters(session):
        if worker not in dispatch_workers(manager):
            continue
        places = ["" if each == worker else each for each in worker_places(manager)]
        while places and not places[-1]:
            places.pop()
        config = {**manager.config, DISPATCH: {**manager.config[DISPATCH], "workers": places}}
        clusters.change(session, manager.id, {"config": config}, actor, now)
        session.wake("kueue", "scheduler")


def dispatch_again(
    session: WriteSession, manager_id: UUID, workers: Sequence[str], queues: Sequence[str], now: int
) -> bool:
    """Remember what a manager dispatched and to whom before its database was lost.

    What is said of it already stays.

    Returns:
        Whether it is news.
    """
    manager = clusters.get_cluster(session, manager_id)
    if not any(workers) or not queues or DISPATCH in manager.config:
        return False
    told = {"workers": list(workers), "queues": sorted(set(queues))}
    clusters.change(
        session, manager.id, {"config": {**manager.config, DISPATCH: told}}, "operator", now
    )
    session.wake("kueue", "scheduler")
    return True


def start_connecting(
    session: WriteSession,
    key: UUID | str,
    workers: Sequence[str],
    queues: Sequence[str],
    caller: Caller,
    policy: RunPolicy,
    now: int,
) -> Run:
    """Remember a manager's workers and queues, and start the run that connects them.

    Raises:
        BadQueue: If a cluster does not admit by Kueue, is its own worker, or a queue is not there.
    """
    manager = clusters.get_cluster(session, key)
    found = [clusters.get_cluster(session, each) for each in workers]
    for each in (manager, *found):
        if not admits_itself(each):
            raise BadQueue(
                f"{each.name} does not admit by Kueue.",
                field="workers" if each is not manager else "cluster",
                fix="Install Kueue there and set its admission to kueue.",
            )
    ids = [each.id for each in found]
    if manager.id in ids or len(set(ids)) != len(ids):
        raise BadQueue(
            "A worker is another cluster than its manager, and is named once.",
            field="workers",
            fix="Leave it out.",
        )
    known = {each.name for each in load_declared(session, manager.id).cluster_queues}
    for name in queues:
        if name not in known:
            raise BadQueue(
                f"There is no ClusterQueue {name!r} declared on {manager.name}.",
                field="queues",
                fix=f"There are: {', '.join(sorted(known)) or 'none'}.",
            )
    told = {"workers": [each.name for each in found], "queues": sorted(set(queues))}
    config = {**manager.config, DISPATCH: told}
    clusters.change(session, manager.id, {"config": config}, caller.name, now)
    session.wake("kueue", "scheduler")
    given = {"cluster_id": str(manager.id), "workers": [str(each) for each in ids]}
    step = StepPlan(
        key="connect",
        handler=CONNECT_HANDLER,
        input=given,
        name="Accounts on the workers, kubeconfigs on the manager",
        retry=Retry(attempts=4, delay_ms=5_000, factor=2.0, max_delay_ms=60_000),
        timeout_ms=STEP_MS,
    )
    plan = RunPlan(
        kind=CONNECT,
        name=f"connect the workers of {manager.name}",
        tenant_id=caller.tenant_id,
        project_id=caller.project_id,
        steps=(step,),
        source_id=manager.id,
        on_failure=OnFailure.FAIL_FAST,
        traceparent=caller.traceparent,
        created_by=caller.name,
    )
    return runs.start_run(session, plan, now, policy)
