"""Services whose pods Kueue admits one by one: who gets which rank, and how each rank ends. Pure.

Kueue makes a Workload of each pod of a Deployment, and the Deployment makes another pod for each
that goes. So a rank is given to a pod once it is bound to a node, and never again; it ends with its
pod, whoever took that away, and the attempt goes on until it is evicted or its Deployment is gone.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from gpuplane.backends.interface import Phase, ReplicaObservation
from gpuplane.backends.kubernetes import causes, names
from gpuplane.backends.kubernetes.observing import find_main_trouble, find_wanted, observe_attempt
from gpuplane.backends.kubernetes.outcomes import compute_outcomes
from gpuplane.backends.kubernetes.records import NEVER, STARTED, Outcome
from gpuplane.backends.kubernetes.shapes import Condition, Pod, instant_ms
from gpuplane.backends.kubernetes.sights import (
    DELETED,
    SECOND_MS,
    VANISHED_MS,
    Sight,
    gpus_of,
    pods_by_rank,
    started_at,
)
from gpuplane.core.ids import AttemptId
from gpuplane.core.reasons import Word
from gpuplane.kube.kueue.states import find_preemptor

STOPPED = "TerminationTarget"
"""Condition that Kueue puts on a pod before it deletes it, with why (pkg/controller/jobs/pod)."""
PREEMPTED = "Preempted"
"""How Kueue's sentence begins where others needed the quota."""
REPLACED = "its pod was deleted, and its cluster runs another in its place"


def list_unranked(sight: Sight) -> list[Pod]:
    """Return the pods that are bound and have no rank yet, the oldest first."""
    record = sight.record
    if not record.by_pod:
        return []
    known = {given.uid for given in record.pods.values()} | set(record.past)
    found = [
        pod for pod in _there(sight) if pod.spec.node_name and pod.metadata.uid not in known
    ]  # fmt: skip - the call reads as one line
    return sorted(found, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))


def list_unlabelled(sight: Sight) -> list[tuple[Pod, int]]:
    """Return the pods that have a rank in the record and not as a label, each with its rank."""
    if not sight.record.by_pod or sight.record.evict_reason:
        return []
    given = {each.uid: int(rank) for rank, each in sight.record.pods.items()}
    found = [
        (pod, rank)
        for pod in _there(sight)
        if (rank := given.get(pod.metadata.uid)) is not None
        and not pod.is_over
        and pod.metadata.labels.get(names.RANK) != str(rank)
    ]
    return sorted(found, key=lambda each: each[1])


def observe(sight: Sight) -> tuple[ReplicaObservation, ...]:
    """Return what is seen of every rank of an attempt, by rank; of whatever kind it is.

    Where Kueue admits each pod, pods without a node stand under the next rank, without a node.
    """
    seen = observe_attempt(sight)
    record = sight.record
    if not record.by_pod or record.fate == NEVER:
        return seen
    ranked = tuple(replace(each, by_pod=True) for each in seen)
    waiting = _observe_waiting(sight)
    return ranked if waiting is None else (*ranked, waiting)


def compute_ends(sight: Sight, now: int) -> dict[int, Outcome]:
    """Return the ends that are seen and not recorded yet, by rank; of whatever kind it is.

    Args:
        sight: What is seen of the attempt.
        now: For an end that nothing dates, ms since the epoch.
    """
    record = sight.record
    if not record.by_pod or record.evict_reason:
        return compute_outcomes(sight, now)
    if record.fate != STARTED or record.is_over:
        return {}
    by_rank = pods_by_rank(sight)
    ended = [rank for rank in record.open_ranks if _has_gone(sight, rank, by_rank, now)]
    if sight.main is None:
        return _deleted(sight, ended, by_rank, now)
    wanted = find_wanted(sight)
    surplus = 0 if wanted is None else max(0, len(record.open_ranks) - wanted)
    found = {}
    for rank in sorted(ended, reverse=True):  # a controller takes the newest first
        pod = by_rank.get(rank)
        cause = _cause_of(sight, pod)
        if cause is None and surplus:
            cause = Word.SCALED_DOWN, "fewer replicas are wanted"
            surplus -= 1
        found[rank] = _outcome_of(pod, cause or (Word.EVICTED, REPLACED), now)
    return dict(sorted(found.items()))


def name_winners(
    outcomes: Mapping[int, Outcome], find_owner: Callable[[str], AttemptId | None]
) -> dict[int, Outcome]:
    """Return ends with the attempt that each preempted rank made room for, where it is ours.

    Args:
        outcomes: Ends by rank.
        find_owner: The attempt whose workload or pod has a uid.
    """
    named = dict(outcomes)
    for rank, each in outcomes.items():
        uid = find_preemptor(each.message) if each.reason == Word.PREEMPTED else ""
        winner = find_owner(uid) if uid else None
        if winner is not None:
            named[rank] = msgspec.structs.replace(each, for_attempt=str(winner))
    return named


def _there(sight: Sight) -> list[Pod]:
    return [pod for pod in sight.pods if pod.metadata.uid not in sight.gone]


def _observe_waiting(sight: Sight) -> ReplicaObservation | None:
    """Return what is to be seen of pods without a rank; None where ranks tell all there is."""
    record = sight.record
    blank = ReplicaObservation(record.ref, record.next_rank, Phase.STARTING, by_pod=True)
    there = _there(sight)
    if record.evict_reason:
        if record.ranks:
            return None
        if there:
            return replace(blank, phase=Phase.STOPPING)
        return replace(
            blank,
            phase=Phase.EXITED,
            ended_at=record.evict_at,
            reason=record.evict_reason,
            message="was evicted",
        )
    if record.is_deleted:
        return None
    ranked = {given.uid for given in record.pods.values()}
    waiting = [
        pod
        for pod in sorted(there, key=lambda one: one.metadata.name)
        if pod.metadata.uid not in ranked
        and not pod.is_over
        and not pod.metadata.deletion_timestamp
    ]
    if record.open_ranks and not waiting:
        return None
    # Of a pod behind Kueue's gate Kueue itself tells why it waits.
    told = (causes.why_waiting(pod) for pod in waiting if not pod.spec.scheduling_gates)
    return replace(blank, message=next(filter(None, told), "") or find_main_trouble(sight))


def _has_gone(sight: Sight, rank: int, by_rank: Mapping[int, Pod], now: int) -> bool:
    pod = by_rank.get(rank)
    if pod is None:  # given by another process to a pod that is not heard of here yet, or is gone
        given = sight.record.pods.get(str(rank))
        return given is None or now - given.at > VANISHED_MS
    return pod.is_over or pod.metadata.uid in sight.gone


def _deleted(
    sight: Sight, ended: list[int], by_rank: Mapping[int, Pod], now: int
) -> dict[int, Outcome]:
    """Return the ends where somebody took the Deployment away: none comes in their place."""
    record = sight.record
    if now - record.at < VANISHED_MS:
        return {}
    ranks = ended
    if not record.open_ranks and not _there(sight):
        ranks = [record.next_rank]
    return {
        rank: msgspec.structs.replace(
            _outcome_of(by_rank.get(rank), (Word.DELETED, DELETED), now), phase=str(Phase.LOST)
        )
        for rank in ranks
    }


def _cause_of(sight: Sight, pod: Pod | None) -> tuple[Word, str] | None:
    """Return who took a pod away, None where it was deleted and nothing says why."""
    if pod is None:
        return None
    stopped = _find(pod, STOPPED)
    if stopped is not None:
        word = Word.PREEMPTED if stopped.message.startswith(PREEMPTED) else Word.EVICTED
        return word, stopped.message or stopped.reason
    # A pod that was deleted is brought to an end by its kubelet: that end is no cause.
    if _find(pod, "DisruptionTarget") is None and pod.metadata.deletion_timestamp:
        return None
    if not pod.is_over and _find(pod, "DisruptionTarget") is None:
        return None
    node = sight.nodes.get(pod.spec.node_name)
    cause = causes.why_ended(pod, node.conditions if node else (), node.annotations if node else {})
    return cause.word, cause.message


def _find(pod: Pod, kind: str) -> Condition | None:
    return next(
        (each for each in pod.status.conditions if each.type == kind and each.status == "True"),
        None,
    )


def _outcome_of(pod: Pod | None, cause: tuple[Word, str], now: int) -> Outcome:
    container = None if pod is None else pod.main
    ended = container.state.terminated if container is not None else None
    finished = instant_ms(ended.finished_at) if ended is not None else None
    return Outcome(
        phase=str(Phase.EXITED),
        reason=str(cause[0]),
        ended_at=now if finished is None else min(now, finished + SECOND_MS - 1),
        message=cause[1],
        started_at=None if pod is None else started_at(pod),
        exit_code=None if ended is None else ended.exit_code,
        restart_count=container.restart_count if container is not None else 0,
        node_name="" if pod is None else pod.spec.node_name,
        gpu_ids=() if pod is None else tuple(gpus_of(pod)),
    )
