"""One cycle: a snapshot in, a decision out.

Owns the order of steps and nothing else: gates, turns, quota, placement, victims, explanation.
It counts into the snapshot's fleets and quotas while it runs and undoes all of it at the end.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpuplane.core.reasons import Reason
from gpuplane.core.scheduling.decisions import Decision, Verdict, Waiting
from gpuplane.core.scheduling.gates import find_gate
from gpuplane.core.scheduling.judge import Judge
from gpuplane.core.scheduling.lineup import Lineup, line_up
from gpuplane.core.scheduling.memory import Memory
from gpuplane.core.scheduling.ordering import Entry
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.pools import GROUP, Numbers
from gpuplane.core.scheduling.trial import Trial
from gpuplane.core.scheduling.turns import Turns


def decide(
    snapshot: Snapshot, policy: Policy, now: int, seed: int, memory: Memory | None = None
) -> Decision:
    """Return one verdict for every pending workload of the snapshot.

    Pure: equal arguments give equal bytes, whatever the order of the workloads and whatever the
    memory has seen before; the snapshot is the same before and after.

    Args:
        snapshot: Pending and running workloads, fleets and quotas.
        policy: How to order, rank and preempt.
        now: The instant of the decision, in ms since the epoch.
        seed: Breaks ties of the policy `random`; kept for replay.
        memory: What the cycle before this one left behind, to be used again; None for none.

    Raises:
        ValueError: If a workload is given twice.
    """
    memory = Memory() if memory is None else memory
    try:
        with Trial(snapshot, policy, now, seed, memory) as trial:
            verdicts, counts = _run(trial, snapshot, now)
    except BaseException:
        memory.forget()
        raise
    return Decision(
        generation=snapshot.generation,
        now=now,
        seed=seed,
        policy=policy.placement.value,
        verdicts=verdicts,
        counts=counts,
    )


def _run(trial: Trial, snapshot: Snapshot, now: int) -> tuple[tuple[Verdict, ...], dict[str, int]]:
    shut, slots = _open_gates(trial, snapshot, now)
    judge, pool = Judge(trial), trial.memory.pool
    _consider(trial, judge, Lineup(pool, trial.answers, slots), pool.promised.values())
    gated = [
        Waiting(entry.workload.job_id, entry.workload.version, gate, (), 0) for entry, gate in shut
    ]
    gated.sort(key=lambda each: each.job_id.int)
    verdicts = (*gated, *judge.finish())
    counts = judge.counts
    for each in gated:
        counts[Waiting.__name__] += 1
        counts[each.reason.word.value] += 1
    return verdicts, dict(sorted(counts.items()))


def _open_gates(
    trial: Trial, snapshot: Snapshot, now: int
) -> tuple[list[tuple[Entry, Reason]], Numbers]:
    """Return who is not considered and why, and the slots of the others in their order."""
    pool = trial.memory.pool
    gates = {
        pool.group_number(group): gate
        for group, member in pool.groups.items()
        if (gate := find_gate(member, snapshot, trial.admission, now)) is not None
    }
    alone = {
        entry.slot: gate
        for entry in pool.alone.values()
        if (gate := find_gate(entry.workload, snapshot, trial.admission, now)) is not None
    }
    slots = pool.list_order()
    if not gates and not alone:
        return [], slots
    groups = pool.columns[GROUP]
    is_shut = np.isin(groups, list(gates))
    is_shut[list(alone)] = True
    shut = [
        (pool.entry_at(slot), alone[slot] if slot in alone else gates[int(groups[slot])])
        for slot in slots[is_shut[slots]].tolist()
    ]
    return shut, slots[~is_shut[slots]]


def take_turns(
    trial: Trial,
    judge: Judge,
    queues: Mapping[str, Sequence[Entry]],
    promised: Iterable[Entry] = (),
) -> None:
    """Consider every entry in its turn.

    Those for whom others were stopped come first, earlier promises before later ones: the room
    was made for them.

    Args:
        trial: What is counted into.
        judge: Who is asked.
        queues: The entries by queue, best first.
        promised: Those of them for whom others were stopped, however long ago.
    """
    _consider(trial, judge, line_up(queues, trial.answers, trial.memory.pool), promised)


def _consider(trial: Trial, judge: Judge, lineup: Lineup, promised: Iterable[Entry]) -> None:
    first = [
        (until, entry.key, entry)
        for entry in promised
        if (until := entry.workload.promised_until) is not None and until > trial.now
    ]
    first.sort(key=lambda each: each[:2])
    places = lineup.find_places(entry for _, _, entry in first)
    judge.consider_all(lineup, Turns(trial.admission.tree, lineup), places)
