"""What the Workloads of a service's pods say together: Kueue admits each pod by itself.

Owns the reading of several Workloads as one. How a replica ends, its pod tells: here nothing stops.
"""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpuplane.core.ids import AttemptId
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.core.reasons import Word
from gpuplane.db.database import Database
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Attempt
from gpuplane.kube.kueue.names import WorkloadCondition
from gpuplane.loops.kueue.workloads import Followed

BARE_MS = 10_000
"""How long a service may be without a replica before it stands in line again: the quota and the
devices of a pod that went are free for the one that comes a moment later."""


@dataclass(frozen=True, slots=True)
class Said:
    """What Kueue says of an attempt, from its one Workload or from all of its pods'.

    Args:
        reason: Kueue's word for where it stands; of pods, of the first that is admitted or waits.
        message: Kueue's sentence.
        admitted_at: Since when it, or its first pod, is admitted; None while none is.
        usage: What is admitted of it counts, in the core's unit.
        cluster_queue: Through which queue.
        waiting: Of pods, why the first that is not admitted waits; empty where none does.
        refused: The same, once Kueue has looked at it and has no quota for it.
    """

    reason: str
    message: str
    admitted_at: int | None
    usage: Mapping[FlavorResource, int]
    cluster_queue: str
    waiting: str = ""
    refused: str = ""

    @property
    def counted(self) -> tuple[tuple[str, str, int], ...]:
        """Return the usage as (flavor, resource, amount), in order."""
        return tuple((pair.flavor, pair.resource, n) for pair, n in sorted(self.usage.items()))


def read_one(found: Followed) -> Said:
    """Return what a single Workload says of its attempt."""
    state = found.state
    return Said(*state.explain(), state.admitted_at, state.usage, state.cluster_queue)


def read_pods(found: Sequence[Followed]) -> Said | None:
    """Return what the Workloads of a service's pods say together; None where none speaks now.

    Those that were evicted or are over belong to pods that go: others come in their place.
    """
    states = [
        each.state
        for each in found
        if not each.is_evicted and each.state.find(WorkloadCondition.FINISHED) is None
    ]
    states.sort(key=lambda state: (state.created_at or 0, state.name))
    admitted = [state for state in states if state.admitted_at is not None]
    waiting = [state for state in states if state.admitted_at is None]
    if not states:
        return None
    usage: dict[FlavorResource, int] = {}
    for state in admitted:
        for pair, amount in state.usage.items():
            usage[pair] = usage.get(pair, 0) + amount
    first = (admitted or waiting)[0]
    since = [state.admitted_at for state in admitted if state.admitted_at is not None]
    queue = next((state.cluster_queue for state in admitted if state.cluster_queue), "")
    why = waiting[0].explain()[1] if waiting else ""
    told = waiting[0].conditions.get(str(WorkloadCondition.QUOTA_RESERVED)) if waiting else None
    refused = why if told is not None and not told.true else ""
    return Said(*first.explain(), min(since, default=None), usage, queue, why, refused)


def group_pods(seen: Iterable[Followed]) -> dict[AttemptId, list[Followed]]:
    """Return the Workloads of pods by the attempt of their service."""
    found: dict[AttemptId, list[Followed]] = {}
    for each in seen:
        if each.attempt_id is not None and each.is_pod:
            found.setdefault(each.attempt_id, []).append(each)
    return found


async def take_in_replicas(
    database: Database,
    running: Sequence[Attempt],
    pods: Mapping[AttemptId, Sequence[Followed]],
    bare: MutableMapping[AttemptId, int],
    now: int,
) -> int:
    """Store why replicas of running services wait and what the others count; return the news.

    Args:
        database: Where attempts are kept.
        running: The attempts of the cluster that run.
        pods: The Workloads of their pods.
        bare: Since when services have no replica and none that could start; kept up here.
        now: The instant.
    """
    news = await _requeue_bare(database, running, pods, bare, now)
    for attempt in running:
        if not attempt.by_pod:
            continue
        said = read_pods(pods.get(attempt.id, ()))
        message, counted = ("", ()) if said is None else (said.waiting, said.counted)
        known = attempt.growth_reason, attempt.growth_message, attempt.quota_usage
        if known == (*jobs.waiting_of(attempt, message), counted):
            continue
        news += await database.write(
            "jobs.note_replicas_waiting",
            partial(
                jobs.note_replicas_waiting, attempt_id=attempt.id, message=message, usage=counted
            ),
        )
    return news


async def _requeue_bare(
    database: Database,
    running: Sequence[Attempt],
    pods: Mapping[AttemptId, Sequence[Followed]],
    bare: MutableMapping[AttemptId, int],
    now: int,
) -> int:
    """Put services back in line that have had no replica for a while, and none that could start."""
    why = {
        each.id: said
        for each in running
        if jobs.is_bare(each) and (said := _why_none_starts(each, pods.get(each.id, ())))
    }
    for gone in bare.keys() - why.keys():
        del bare[gone]
    news = 0
    for attempt_id, message in why.items():
        if now - bare.setdefault(attempt_id, now) >= BARE_MS:
            news += await database.write(
                "jobs.note_bare",
                partial(jobs.note_bare, attempt_id=attempt_id, message=message, now=now),
            )
    return news


def _why_none_starts(attempt: Attempt, pods: Sequence[Followed]) -> str:
    """Return why no pod of a service starts just now; empty where one may."""
    said = read_pods(pods)
    if said is not None and said.admitted_at is None:
        return said.refused
    if attempt.growth_reason == Word.UNSCHEDULABLE:
        return attempt.growth_message
    return ""
