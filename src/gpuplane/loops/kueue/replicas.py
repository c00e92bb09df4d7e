"""What the Workloads of a service's pods say together: Kueue admits each pod by itself.

Owns the reading of several Workloads as one. How a replica ends, its pod tells: here nothing stops.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpuplane.core.ids import AttemptId
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.db.database import Database
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Attempt
from gpuplane.kube.kueue.names import WorkloadCondition
from gpuplane.loops.kueue.workloads import Followed


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
    """

    reason: str
    message: str
    admitted_at: int | None
    usage: Mapping[FlavorResource, int]
    cluster_queue: str
    waiting: str = ""

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
    return Said(*first.explain(), min(since, default=None), usage, queue, why)


def group_pods(seen: Iterable[Followed]) -> dict[AttemptId, list[Followed]]:
    """Return the Workloads of pods by the attempt of their service."""
    found: dict[AttemptId, list[Followed]] = {}
    for each in seen:
        if each.attempt_id is not None and each.is_pod:
            found.setdefault(each.attempt_id, []).append(each)
    return found


async def take_in_replicas(
    database: Database, running: Iterable[Attempt], pods: Mapping[AttemptId, Sequence[Followed]]
) -> int:
    """Store why replicas of running services wait and what the others count; return the news."""
    news = 0
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
