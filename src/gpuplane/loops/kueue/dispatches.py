"""Where a manager's Kueue has dispatched offers of ours to, and from where it took them back.

Owns what is stored of that; the worker is told by the dispatcher, and holds its copy until then.
"""

from collections.abc import Iterable
from functools import partial

from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from gpuplane.kube.kueue.multikueue import cluster_of_worker
from gpuplane.kube.kueue.names import WorkloadCondition
from gpuplane.kube.kueue.states import WorkloadState
from gpuplane.loops.kueue.workloads import Followed, instant_text

TAKEN_BACK = "Kueue took it back from the cluster that it was dispatched to."


async def follow_dispatches(
    database: Database, manager_id: ClusterId, seen: Iterable[Followed], now: int
) -> int:
    """Store which worker each offer was dispatched to; take back what moved on from it.

    An offer may have started on the worker that it was dispatched to first. So it is not followed
    to another one: it is taken back from both, and its job is offered anew.

    Args:
        database: Where offers are kept.
        manager_id: The cluster whose Kueue dispatches.
        seen: Its Workloads.
        now: The instant.

    Returns:
        How much was news.
    """
    states = {each.attempt_id: each.state for each in seen if each.attempt_id is not None}
    offers = [
        each
        for each in await database.read(lambda s: jobs.list_offers(s, manager_id))
        if each.cluster_id == manager_id and not each.is_withdrawing
    ]
    news = 0
    away: list[AttemptId] = []
    for offer in offers:
        state = states.get(offer.attempt_id)
        if state is None or state.find(WorkloadCondition.FINISHED) is not None:
            continue
        name = cluster_of_worker(state.cluster_name)
        if offer.worker_id is not None:
            if await _has_moved_on(database, offer, state, name):
                away.append(offer.attempt_id)
            continue
        worker = await database.read(partial(clusters.find_cluster, key=name)) if name else None
        if worker is not None:
            reserved = state.find(WorkloadCondition.QUOTA_RESERVED)
            news += await database.write(
                "jobs.note_dispatched",
                partial(
                    jobs.note_dispatched,
                    attempt_id=offer.attempt_id,
                    worker_id=worker.id,
                    worker=worker.name,
                    now=now,
                    reserved_at=None if reserved is None else reserved.at,
                ),
            )
    if away:
        await database.write(
            "jobs.withdraw_offers",
            partial(jobs.withdraw_offers, attempt_ids=away, message=TAKEN_BACK),
        )
    return news + len(away)


async def follow_lost_workers(
    database: Database, manager: Cluster, known: Iterable[Cluster], lost_s: float, now: int
) -> int:
    """Offer anew what a lost worker cannot start, and say of the rest why it waits for it.

    Args:
        database: Where offers are kept.
        manager: The cluster whose Kueue dispatches.
        known: Every cluster, as it stands.
        lost_s: How long a worker may be out of reach.
        now: The instant.

    Returns:
        How much was news.
    """
    lost = {each.id: why_waiting(each) for each in known if is_lost(each, lost_s, now)}
    found = await database.read(lambda s: jobs.find_lost_work(s, manager.id, lost))
    if not (found.to_move or found.words):
        return 0
    return await database.write(
        "jobs.note_lost_work", lambda s: jobs.note_lost_work(s, manager.id, lost, now)
    )


def is_lost(worker: Cluster, lost_s: float, now: int) -> bool:
    """Return whether a worker has been out of reach for longer than it may be."""
    since = worker.not_available_since
    return since is not None and now - since >= lost_s * 1000


def why_waiting(worker: Cluster) -> str:
    """Return why what may run on a lost worker is not started elsewhere."""
    since = instant_text(worker.not_available_since or 0)
    return (
        f"It may run on {worker.name}, which cannot be reached since {since}. It is started "
        f"elsewhere once {worker.name} answers, or was deleted: "
        f"gpuplane clusters rm {worker.name} --force."
    )


async def _has_moved_on(database: Database, offer: Offer, state: WorkloadState, name: str) -> bool:
    if state.find(WorkloadCondition.QUOTA_RESERVED) is None:
        return True
    worker = await database.read(partial(clusters.find_cluster, key=name)) if name else None
    return worker is not None and worker.id != offer.worker_id
