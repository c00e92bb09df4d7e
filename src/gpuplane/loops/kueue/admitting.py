"""What the Workloads of a cluster mean for jobs here, and what jobs here mean for Workloads.

Towards the database: what Kueue says of offers, and evictions of what runs. Towards the cluster:
priorities and the state of our AdmissionCheck, each guarded by the version that was read.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial

from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.policy import Boosts
from gpuplane.db.database import Database
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer, OfferStanding
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict, KubeError, NotThere
from gpuplane.kube.kinds import JOB, JOB_SET, POD, WORKLOAD
from gpuplane.kube.kueue.names import (
    PRIORITY_CLASSES,
    PRIORITY_LABEL,
    ApiVersion,
    WorkloadCondition,
)
from gpuplane.kube.kueue.states import Told
from gpuplane.loops.kueue.holding import give_hold
from gpuplane.loops.kueue.replicas import Said, group_pods, read_one, read_pods, take_in_replicas
from gpuplane.loops.kueue.workloads import AGE_MARK, BY_CHECK, Followed, find_age, instant_text

log = logging.getLogger("gpuplane.kueue")

AGE_MS = 2_000
"""Ages that differ by less are the same: Kubernetes tells whole seconds."""
DELETED = "Its Workload was deleted on the cluster by somebody else; it is not started again."
Reread = Callable[[Followed], Awaitable[Followed | None]]


async def take_in(
    database: Database,
    cluster_id: ClusterId,
    seen: Iterable[Followed],
    now: int,
    remembered: dict[AttemptId, str],
    reread: Reread,
    cut_off: Mapping[str, str],
    bare: MutableMapping[AttemptId, int],
) -> int:
    """Store what Kueue says of offers and stop what it evicted; return how much was news.

    Args:
        seen: The Workloads of the cluster.
        remembered: The uid of each attempt's Workload as first seen; kept up here.
        reread: Reads a Workload from the cluster itself: what is followed may lag behind.
        cut_off: Why a ClusterQueue dispatches to no worker just now; told in place of "it waits".
        bare: Since when services have no replica and none that could start; kept up here.
    """
    known = [each for each in seen if each.attempt_id is not None]
    ours = {each.attempt_id: each for each in known if not each.is_pod}
    pods = group_pods(known)
    by_job_uid = {each.state.job_uid: each.attempt_id for each in known if each.state.job_uid}
    found_offers = await database.read(lambda s: jobs.list_offers(s, cluster_id))
    # Of what was dispatched here, its manager tells.
    offers = [each for each in found_offers if each.cluster_id == cluster_id]
    running = await database.read(lambda s: jobs.list_running_on(s, cluster_id))
    kept = {each.attempt_id for each in offers} | {each.id for each in running}
    for gone in remembered.keys() - kept:
        del remembered[gone]
    for offer in offers:  # nothing of an offer was recorded: whichever Workload it has counts
        if offer.attempt_id in ours:
            remembered[offer.attempt_id] = ours[offer.attempt_id].state.uid
    news = 0
    for offer in offers:
        said = _read(offer, ours.get(offer.attempt_id), pods, cut_off)
        if said is not None:
            news += await _note(database, offer, said)
    news += await take_in_replicas(database, running, pods, bare, now)
    for attempt in running:
        found = ours.get(attempt.id)
        if found is None or attempt.stop_intent is not None:
            continue
        if await was_remade(found, attempt.id, remembered, reread):
            news += await database.write(
                "jobs.note_deleted",
                partial(jobs.note_deleted, attempt_id=attempt.id, message=DELETED, now=now),
            )
            continue
        if not found.is_evicted:
            found = await _find_taken_back(found, reread)
            if found is None:
                continue
        told_of = found.eviction
        assert told_of is not None, "either way of getting here asks for it"
        news += await database.write(
            "jobs.note_evicted",
            partial(
                jobs.note_evicted,
                attempt_id=attempt.id,
                reason=_reason_of(told_of),
                message=told_of.message,
                for_attempt=by_job_uid.get(found.preemptor_uid),
                now=now,
            ),
        )
    return news


async def _note(database: Database, offer: Offer, said: Said) -> bool:
    """Store what Kueue says of an offer, where it is news; return whether it was."""
    told = (said.reason, said.message, said.admitted_at, said.counted)
    if (offer.reason, offer.message, offer.admitted_at, offer.usage) == told:
        return False
    return await database.write(
        "jobs.note_admission",
        partial(
            jobs.note_admission,
            attempt_id=offer.attempt_id,
            reason=said.reason,
            message=said.message,
            admitted_at=said.admitted_at,
            usage_of=said.usage,
            cluster_queue=said.cluster_queue,
        ),
    )


def _read(
    offer: Offer,
    single: Followed | None,
    pods: Mapping[AttemptId, Sequence[Followed]],
    cut_off: Mapping[str, str],
) -> Said | None:
    """Return what Kueue says of an offer, or why its queue dispatches to nobody."""
    said = read_pods(pods.get(offer.attempt_id, ())) if single is None else read_one(single)
    why = cut_off.get(offer.cluster_queue, "")
    if said is None or not why or said.admitted_at is not None or offer.worker_id is not None:
        return said
    return replace(said, reason=str(Word.WORKER_NOT_CONNECTED), message=why)


async def was_remade(
    found: Followed, attempt_id: AttemptId, remembered: dict[AttemptId, str], reread: Reread
) -> bool:
    """Return whether the Workload of what runs is another one: somebody deleted the first.

    Kueue makes a new one for its Job, and would start the Job again under the same attempt. Where
    the first was never seen here, one that was never admitted tells it.
    """
    if remembered.setdefault(attempt_id, found.state.uid) != found.state.uid:
        return True
    if _has_run(found):
        return False
    fresh = await reread(found)
    return fresh is not None and fresh.attempt_id == attempt_id and not _has_run(fresh)


async def _find_taken_back(found: Followed, reread: Reread) -> Followed | None:
    """Return the Workload of what runs as it is now, if it was evicted and has its quota again.

    Kueue takes its word of the eviction back then; what ran is over all the same.
    """
    if found.state.admitted_at is not None or not _was_evicted(found):
        return None
    fresh = await reread(found)
    if fresh is None or fresh.state.admitted_at is not None or not _was_evicted(fresh):
        return None
    return fresh


def _was_evicted(found: Followed) -> bool:
    is_over = found.state.find(WorkloadCondition.FINISHED) is not None
    return found.eviction is not None and not is_over


def _reason_of(told: Told) -> str:
    """Return why it was evicted; one that Kueue took back names it in its sentence alone."""
    if told.true:
        return told.reason
    return jobs.PREEMPTED if jobs.PREEMPTED in told.message else told.reason


def _has_run(found: Followed) -> bool:
    """Return whether a Workload was ever admitted, by what it says of itself."""
    ends = (WorkloadCondition.ADMITTED, WorkloadCondition.FINISHED)
    told = found.state.conditions
    return found.eviction is not None or any(str(kind) in told for kind in ends)


async def write_back(
    client: KubeClient,
    version: ApiVersion,
    seen: Iterable[Followed],
    standings: Mapping[AttemptId, OfferStanding],
    settled: set[AttemptId],
    now: int,
) -> None:
    """Give Workloads the priorities and the hold states that jobs here have now.

    Args:
        client: The cluster.
        version: Of Kueue's API.
        seen: Its Workloads.
        standings: What each offered job is to be there.
        settled: Attempts that were bound already.
        now: The instant.
    """
    found = list(seen)
    behind = list_behind(found, standings)
    for each in found:
        if each.state.find(WorkloadCondition.FINISHED) is not None:
            continue
        standing = None if each.attempt_id is None else standings.get(each.attempt_id)
        waits_for_others = each.state.admitted_at is None and each.attempt_id in behind
        try:
            if standing is not None and not waits_for_others:
                await _give_priority(client, version, each, standing)
                await _give_age(client, version, each, standing)
            await give_hold(client, version, each, standing, settled, now)
        except (Conflict, NotThere):
            continue  # it moved on meanwhile: the next turn sees how
        except KubeError as error:
            log.warning("workload %s was not written: %s", each.state.name, error)


def list_behind(
    seen: Iterable[Followed], standings: Mapping[AttemptId, OfferStanding]
) -> set[AttemptId]:
    """Return the services that have admitted pods of a lower class than they have now.

    Those are raised first: a pod that waits would else take the place of one that runs.
    """
    return {
        each.attempt_id
        for each in seen
        if each.attempt_id is not None and each.is_pod and each.state.admitted_at is not None
        if (standing := standings.get(each.attempt_id)) is not None
        and each.state.priority < standing.priority
    }


async def _give_priority(
    client: KubeClient, version: ApiVersion, each: Followed, standing: OfferStanding
) -> None:
    if each.state.priority == standing.priority:
        return
    if each.is_pod and each.state.priority > standing.priority:
        return  # its Deployment makes pods of the class it began with: they would take its place
    if each.is_dispatched or each.state.nominated or each.state.cluster_name:
        return  # MultiKueue deletes what it dispatched as soon as the two differ
    wanted = PRIORITY_CLASSES[standing.priority_class]
    for word, name, _ in each.state.owners:
        kind = {"Job": JOB, "JobSet": JOB_SET, "Pod": POD}.get(word)
        if kind is None:
            continue
        owner = await client.find(kind, name, each.state.namespace)
        labels = {} if owner is None else owner["metadata"].get("labels") or {}
        if owner is not None and labels.get(PRIORITY_LABEL, wanted) != wanted:
            # The class of the job object decides the class of its Workload.
            relabel = {"metadata": {"labels": {PRIORITY_LABEL: wanted}}}
            await client.patch(kind, name, relabel, each.state.namespace)
            return
    patch = {
        "metadata": {"resourceVersion": each.version},
        "spec": {"priority": standing.priority},
    }
    await client.patch(WORKLOAD.at(str(version)), each.state.name, patch, each.state.namespace)


async def _give_age(
    client: KubeClient, version: ApiVersion, each: Followed, standing: OfferStanding
) -> None:
    """Give the new Workload of a job that was preempted the age at which it stood in line before.

    Kueue keeps the Workload of what it preempts, and so its age. Here the next attempt has another
    one, whose age can be told by when it was evicted (v0.15, GetQueueOrderTimestamp); Kueue takes
    the condition back when it reserves quota.
    """
    if each.is_dispatched or each.state.find(WorkloadCondition.QUOTA_RESERVED) is not None:
        return
    since, known = standing.in_line_since, find_age(each)
    if since is None or known is None or known - since < AGE_MS:
        return
    kind = WORKLOAD.at(str(version))
    found = await client.find(kind, each.state.name, each.state.namespace)
    if found is None or found["metadata"].get("resourceVersion", "") != each.version:
        return  # it moved on meanwhile: the next turn sees how
    evicted = {
        "type": str(WorkloadCondition.EVICTED),
        "status": "True",
        "reason": BY_CHECK,
        "message": f"{AGE_MARK} {instant_text(since)}.",
        "lastTransitionTime": instant_text(since),
        "observedGeneration": found["metadata"].get("generation", 0),
    }
    told = (found.get("status") or {}).get("conditions") or ()
    others = [one for one in told if one["type"] != evicted["type"]]
    patch = {
        "metadata": {"resourceVersion": each.version},
        "status": {"conditions": [*others, evicted]},
    }
    await client.patch(kind, each.state.name, patch, each.state.namespace, subresource="status")


async def load_standings(
    database: Database, cluster_id: ClusterId, boosts: Boosts, now: int
) -> tuple[Mapping[AttemptId, OfferStanding], set[AttemptId]]:
    """Return what offered jobs are to be on their cluster, and the attempts that it has bound."""
    standings = await database.read(lambda s: jobs.load_offer_standings(s, cluster_id, boosts, now))
    running = await database.read(lambda s: jobs.list_running_on(s, cluster_id))
    # Of a service whose replicas are admitted one by one, more may start at any time.
    return standings, {each.id for each in running if not each.by_pod}
