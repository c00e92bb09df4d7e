"""In which order the pending workloads of a queue are considered: by effective priority.

Owns the boosts and their explanations. Whose turn it is across queues is `turns`'.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import NEVER
from gpuplane.core.scheduling.kinds import Owners, asker_of, kind_of, rank_of
from gpuplane.core.scheduling.policy import Boosts
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import PRIORITY_VALUES, Priority

BOOST_UNIT = 1000
"""Effective priorities are class values times this, so that boosts have room between classes."""

Key = tuple[int, int, str]
"""Less of the effective priority, instant of queueing, id: smaller goes first."""

NO_OWNERS: Owners = frozenset()

_BY_VALUE = sorted(PRIORITY_VALUES.values())


@dataclass(slots=True, eq=False)
class Entry:
    """A pending workload with its place in its queue.

    Attributes:
        effective: Effective priority in `BOOST_UNIT`ths of a class value.
        key: Orders the entries of a queue, best first.
        due: From when on `effective` may be another one, in ms.
        kind: What makes two workloads of a queue equal for a place, None when nothing does.
        place: Queue and kind: who shares it finds no place either, for the same reason.
        rank: That, class and tenant: who shares it finds no victims either. None if each is asked.
        asker: Who shares it just waits from some point of a cycle on. None if each is asked.
        is_numbered: The four before are numbers that stand for their values.
        slot: Where the pool keeps its columns, -1 outside of a pool.
    """

    workload: Workload
    effective: int
    key: Key
    due: int
    kind: Hashable | None = None
    place: Hashable | None = None
    rank: Hashable | None = None
    asker: Hashable | None = None
    is_numbered: bool = False
    slot: int = -1


def compute_entry(
    workload: Workload, boosts: Boosts, now: int, owners: Owners = NO_OWNERS
) -> Entry:
    """Return the workload with its effective priority.

    A boost lifts at most to the value of the next class, and never to CRITICAL: then age decides
    among equals, so waiting work moves on, and the order of classes stays what people expect. It
    grows in whole percents of the way, so that an order holds until somebody's next step is due.
    """
    effective, due = compute_effective(workload, boosts, now)
    key = (-effective, workload.queued_at, str(workload.job_id))
    kind = kind_of(workload, owners)
    place = None if kind is None else (workload.queue, kind)
    rank = rank_of(workload, place)
    return Entry(workload, effective, key, due, kind, place, rank, asker_of(workload, kind))


def compute_effective(workload: Workload, boosts: Boosts, now: int) -> tuple[int, int]:
    """Return the effective priority of a workload, and when it may change next."""
    value = PRIORITY_VALUES[_base_class(workload)]
    gap = _ROOM_ABOVE[value]
    effective = value * BOOST_UNIT
    if not gap:
        return effective, NEVER
    percent, due = _starvation_percent(workload, boosts, now)
    lift = gap * percent // 100
    if workload.deadline is not None:
        part, deadline_due = _deadline_part(workload, boosts, now)
        lift = max(lift, round(gap * part))
        due = min(due, deadline_due)
    return effective + lift, due


def describe_boosts(workload: Workload, boosts: Boosts, now: int) -> list[str]:
    """Return one sentence for each boost that acts on the workload now."""
    notes: list[str] = []
    base = _base_class(workload)
    if base is not workload.priority:
        notes.append(f"Counts as {base.value}: a {base.value} job waits for it.")
    if not _ROOM_ABOVE[PRIORITY_VALUES[base]]:
        return notes
    percent, _ = _starvation_percent(workload, boosts, now)
    if percent:
        target = boosts.wait_target_s[workload.priority]
        notes.append(
            f"Waits {(now - workload.queued_at) // MS_PER_S} s, its class's target is "
            f"{target} s: {percent} % of the way to the next class."
        )
    part, _ = _deadline_part(workload, boosts, now)
    if part > 0:
        notes.append(f"Its deadline nears: {round(100 * part)} % of the way to the next class.")
    return notes


def _base_class(workload: Workload) -> Priority:
    inherited = workload.inherited_priority
    if inherited is None or PRIORITY_VALUES[inherited] <= PRIORITY_VALUES[workload.priority]:
        return workload.priority
    return inherited


def _room_above(value: int) -> int:
    """Return how far a boost may lift a class, in effective units; 0 for the highest."""
    higher = [each for each in _BY_VALUE if each > value]
    if not higher:
        return 0
    ceiling = higher[0] * BOOST_UNIT
    if higher[0] == PRIORITY_VALUES[Priority.CRITICAL]:
        ceiling -= 1
    return ceiling - value * BOOST_UNIT


_ROOM_ABOVE = {value: _room_above(value) for value in _BY_VALUE}


def _starvation_percent(workload: Workload, boosts: Boosts, now: int) -> tuple[int, int]:
    """Return how far waiting has lifted it, in percent of the way, and when that changes next."""
    target = boosts.wait_target_s.get(workload.priority)
    span = round(1000 * boosts.starved_ratio) - 500
    if not target or span <= 0:
        return 0, NEVER
    target_ms = target * MS_PER_S
    waited = now - workload.queued_at
    percent = (1000 * waited - 500 * target_ms) * 100 // (span * target_ms)
    if percent >= 100:
        return 100, NEVER
    percent = max(0, percent)
    next_wait = -(-(50_000 + (percent + 1) * span) * target_ms // 100_000)
    return percent, workload.queued_at + next_wait


def _deadline_part(workload: Workload, boosts: Boosts, now: int) -> tuple[float, int]:
    """Return how far its deadline has lifted it, as part of the way, and when that changes."""
    if workload.deadline is None:
        return 0.0, NEVER
    budget = max(0, workload.deadline - workload.submitted_at)
    part, due = 0.0, NEVER
    for step, lift in boosts.deadline_steps:
        at = workload.submitted_at + math.ceil(step * budget)
        if now >= at:
            part = max(part, lift)
        else:
            due = min(due, at)
    return part, due


def group_entries(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the entries by queue, best first."""
    queues: dict[str, list[Entry]] = {}
    for entry in entries:
        queues.setdefault(entry.workload.queue, []).append(entry)
    for queue in queues.values():
        queue.sort(key=lambda entry: entry.key)
    return queues
