"""Until when young running work is no victim, and what a decision is once it may be one.

Owns the instants at which the least run time of the policy ends for somebody, and whom a waiting
workload could have stopped then. Never decides who may be stopped: the cycle does.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.ids import JobId
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import NeedsPreemption
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.preemption import may_stop
from gpuplane.core.scheduling.workload import Workload

MAX_INSTANTS = 4
"""Decisions made for what waits to stop young work: bounds a forecast, most of which they cost."""


@dataclass(frozen=True, slots=True)
class Opening:
    """When a waiting workload may have others stopped that are too young now.

    Args:
        at: In ms since the epoch.
        victims: Whom it would have stopped.
    """

    at: int
    victims: tuple[JobId, ...]


def list_protection_ends(
    snapshot: Snapshot, waiting: Collection[Workload], policy: Policy, now: int
) -> list[int]:
    """Return when running work that one of those who wait may stop ceases to be too young."""
    limits = policy.preemption
    if not limits.enabled:
        return []
    # Who may stop whom follows from the classes: of those alike one is asked.
    asking = {(each.priority, each.preempts_others): each for each in waiting}.values()
    ends = set()
    for running in snapshot.running:
        at = running.started_at + limits.min_run_s * MS_PER_S
        if at <= now or running.stopping or at in ends:
            continue
        if any(may_stop(workload, running.workload) for workload in asking):
            ends.add(at)
    return sorted(ends)


def policy_at(policy: Policy, now: int, at: int) -> Policy:
    """Return the policy under which exactly those are protected now who will be at an instant."""
    limits = policy.preemption
    passed_s = -(-(at - now) // MS_PER_S)
    left_s = max(0, limits.min_run_s - passed_s)
    return replace(policy, preemption=replace(limits, min_run_s=left_s))


def find_opening(
    snapshot: Snapshot, workload: Workload, policy: Policy, now: int, seed: int
) -> tuple[Opening, NeedsPreemption] | None:
    """Return when a workload that waits alone may first have young work stopped, None if never.

    Args:
        snapshot: What runs and is free; what else waits is not considered.
        workload: What waits; it finds nobody to stop now.
        policy: The scheduler's policy.
        now: The instant of the question, in ms.
        seed: As for `decide`.
    """
    alone = replace(snapshot, pending=(workload,))
    ends = list_protection_ends(snapshot, (workload,), policy, now)
    found: tuple[Opening, NeedsPreemption] | None = None
    low, high = 0, len(ends) - 1
    while low <= high:  # the later, the fewer are protected
        middle = (low + high) // 2 if found is not None else high
        at = ends[middle]
        verdict = decide(alone, policy_at(policy, now, at), now, seed).verdicts[0]
        if isinstance(verdict, NeedsPreemption):
            found = Opening(at, verdict.victims), verdict
            high = middle - 1
        elif found is None:
            return None
        else:
            low = middle + 1
    return found


def find_openings(
    snapshot: Snapshot,
    waiting: Collection[JobId],
    policy: Policy,
    now: int,
    seed: int,
) -> dict[JobId, Opening]:
    """Return when those of the snapshot that wait may have young work stopped, for those who may.

    Looked at are a few instants, the last of all among them, so an opening may be told late: by
    no more than the distance of two of them.

    Args:
        snapshot: The installation now.
        waiting: Jobs that neither start now nor have others stopped now.
        policy: The scheduler's policy.
        now: The instant of the question, in ms.
        seed: As for `decide`.
    """
    asking = [each for each in snapshot.pending if each.job_id in waiting]
    ends = list_protection_ends(snapshot, asking, policy, now)
    step = max(1, -(-len(ends) // MAX_INSTANTS))
    openings: dict[JobId, Opening] = {}
    for at in sorted(ends[::-1][::step]):
        decision = decide(snapshot, policy_at(policy, now, at), now, seed)
        for verdict in decision.preempting:
            if verdict.job_id in waiting:
                openings.setdefault(verdict.job_id, Opening(at, verdict.victims))
    return openings
