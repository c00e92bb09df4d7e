"""How many replicas a service that scales has, wants and may have: pure.

A replica that is wanted beyond those there are is a piece of its job: one replica with the job's
class, filters and queue, which the scheduler admits and places as any other work.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from uuid import uuid5

from gpuplane.core.ids import JobId
from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import (
    JobSpec,
    JobType,
    PlacementRequest,
    ReplicaRequest,
    Spreading,
)
from gpuplane.domains.jobs.rules.attempts import OVER
from gpuplane.domains.jobs.rules.values import Attempt, Job, Replica

Usage = tuple[tuple[str, str, int], ...]
"""(flavor, resource, amount) that count against a queue."""

RANKS_TOLD = 100
"""Of so many replicas that are gone, the latest, the output is told when none is named."""

GROWING = frozenset({"starting", "running"})
"""States of attempts to which replicas may be added: they were started and are not to stop."""


def find_bounds(spec: JobSpec) -> tuple[int, int] | None:
    """Return the fewest and the most replicas that a job may be scaled to, None where it is fixed.

    A Helm release says itself how many pods it has.
    """
    asked = spec.replicas
    if spec.job_type is not JobType.SERVICE or spec.execution.chart is not None:
        return None
    return (asked.fewest, asked.most) if asked.most > asked.fewest else None


def list_ranks(attempt: Attempt) -> tuple[int, ...]:
    """Return the ranks whose output is an attempt's: those there are, else the last there were.

    A service whose replicas all left, or were taken away, has none of them any more, and what they
    wrote is kept all the same.
    """
    if attempt.replicas:
        return tuple(sorted(each.rank for each in attempt.replicas))
    return tuple(range(max(0, attempt.next_rank - RANKS_TOLD), attempt.next_rank))


def list_staying(attempt: Attempt) -> tuple[Replica, ...]:
    """Return the replicas of an attempt that were not asked to leave."""
    return tuple(each for each in attempt.replicas if each.leaving_at is None)


def count_ready(attempt: Attempt) -> int:
    """Return how many replicas of an attempt run and stay, and are ready as far as is asked."""
    return sum(
        each.phase == "running" and each.ready is not False for each in list_staying(attempt)
    )


def choose_leaving(attempt: Attempt, wanted: int) -> tuple[Replica, ...]:
    """Return the replicas to stop so that so many stay: those that came last."""
    staying = sorted(list_staying(attempt), key=lambda each: each.rank)
    return tuple(staying[wanted:])


def has_left(attempt: Attempt, replica: Replica) -> bool:
    """Return whether a replica is over and its service goes on without it: fewer are wanted.

    Where Kueue admits each replica, another comes for one that ended however it did, unless
    somebody took away what makes them.
    """
    if replica.phase not in OVER:
        return False
    if replica.leaving_at is not None or replica.reason == Word.SCALED_DOWN:
        return True
    return attempt.by_pod and replica.reason != Word.DELETED


def count_missing(attempt: Attempt) -> int:
    """Return how many replicas are wanted beyond those that an attempt has."""
    if attempt.replicas_wanted is None or attempt.state not in GROWING:
        return 0
    return max(0, attempt.replicas_wanted - len(list_staying(attempt)))


def is_bare(attempt: Attempt) -> bool:
    """Return whether a service is to have replicas and has none, each of which Kueue admits.

    One that was scaled to none is none: it runs on.
    """
    wants = attempt.replicas_wanted is not None and attempt.replicas_wanted > 0
    return attempt.by_pod and wants and not attempt.replicas and attempt.state in GROWING


def waiting_of(attempt: Attempt, message: str) -> tuple[str, str]:
    """Return (reason, message) of why the next replica of an attempt waits, told what Kueue says.

    Args:
        attempt: One whose replicas are admitted one by one.
        message: Why Kueue does not admit the next; empty where none waits for it.
    """
    if message and count_missing(attempt):
        return str(Word.OFFERED), message
    if attempt.growth_reason == Word.OFFERED:
        return "", ""
    return attempt.growth_reason, attempt.growth_message


def growth_of(job: Job, attempt: Attempt) -> Job | None:
    """Return the next replica that a service wants as a job of one replica; None without one.

    Its version is the attempt's, so that what was decided on an attempt that has moved on since is
    stale. It stops nobody: what it waits for is room, as an autoscaler asks again at any moment.
    """
    if attempt.by_pod:
        return None  # its cluster's Kueue decides
    if not count_missing(attempt) or job.condition is Condition.STOPPING:
        return None
    name = attempt.local_queue.rpartition("/")[2]  # kept as `cluster/name` for people
    spec = replace(
        job.spec,
        replicas=ReplicaRequest(),
        placement=_placement_beside(job, attempt),
        queue=name or job.spec.queue,
        preempts_others=False,
        deadline=None,
        window=None,
    )
    return replace(
        job,
        id=growth_id(attempt),
        spec=spec,
        status=JobStatus.QUEUED,
        requested_cluster_id=attempt.cluster_id,
        queued_at=attempt.wanted_at or attempt.admitted_at,
        promised_until=None,
        version=attempt.version,
    )


def _placement_beside(job: Job, attempt: Attempt) -> PlacementRequest:
    """Return where the next replica may lie, by how the job wants its replicas over nodes.

    Nodes are told by where the job is: the replicas that hold devices, those among them that leave.
    """
    asked = job.spec.placement
    if asked.spreading is Spreading.SPREAD:
        return replace(asked, separate_from=(*asked.separate_from, job.id))
    if asked.spreading is Spreading.SAME_NODE and attempt.replicas:
        return replace(asked, co_locate_with=(*asked.co_locate_with, job.id))
    return asked


def growth_id(attempt: Attempt) -> JobId:
    """Return the name under which the scheduler knows the next replica of an attempt."""
    return JobId(uuid5(attempt.id, f"replica {attempt.next_rank}"))


def number_next(attempt: Attempt, now: int) -> int:
    """Return the number of the next change of an attempt's replicas.

    Instants, so that a database that was lost and made again goes on above what backends know.
    """
    return max(attempt.scale_number + 1, now)


def share_usage(usage: Iterable[tuple[str, str, int]], replicas: int) -> Usage:
    """Return what each of some replicas alike counts against their queue."""
    return tuple((flavor, resource, amount // replicas) for flavor, resource, amount in usage)


def sum_usage(replicas: Sequence[Replica]) -> Usage:
    """Return what replicas count against their queue together."""
    found: dict[tuple[str, str], int] = {}
    for each in replicas:
        for flavor, resource, amount in each.quota_usage or ():
            key = flavor, resource
            found[key] = found.get(key, 0) + amount
    return tuple((*key, amount) for key, amount in sorted(found.items()))


def count_most(spans: Iterable[tuple[int, int | None]]) -> int:
    """Return how many of these lasted at one time at most.

    Args:
        spans: (beginning, end) of each, None where it lasts; what ends leaves room for what begins.
    """
    steps: list[tuple[int, int]] = []
    for begin, end in spans:
        steps.append((begin, 1))
        if end is not None:
            steps.append((end, -1))
    most = now = 0
    for _, change in sorted(steps):
        now += change
        most = max(most, now)
    return most
