"""One cycle: a snapshot in, a decision out.

Owns the order of steps and nothing else: gates, turns, quota, placement, victims, explanation.
It counts into the snapshot's fleets and quotas while it runs and undoes all of it at the end.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpuplane.core.reasons import Reason
from gpuplane.core.scheduling.decisions import Decision, Verdict, Waiting
from gpuplane.core.scheduling.gates import find_gate, gate_group
from gpuplane.core.scheduling.judge import Judge
from gpuplane.core.scheduling.lineup import Lineup
from gpuplane.core.scheduling.memory import Memory
from gpuplane.core.scheduling.ordering import Entry
from gpuplane.core.scheduling.policy import Policy, Snapshot
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
    shut, queues = _open_gates(trial, snapshot, now)
    judge = Judge(trial)
    shut_out = {id(entry) for entry, _ in shut}
    promised = [entry for entry in trial.memory.pool.promised.values() if id(entry) not in shut_out]
    take_turns(trial, judge, queues, promised)
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
) -> tuple[list[tuple[Entry, Reason]], Mapping[str, Sequence[Entry]]]:
    """Return who is not considered and why, and the others by queue, best first."""
    pool = trial.memory.pool
    gates = {
        group: find_gate(member, snapshot, trial.admission, now)
        for group, member in pool.groups.items()
    }
    alone = {
        key: find_gate(entry.workload, snapshot, trial.admission, now)
        for key, entry in pool.alone.items()
    }
    queues = pool.list_queues()
    if not any(gates.values()) and not any(alone.values()):
        return [], queues
    shut: list[tuple[Entry, Reason]] = []
    opened: dict[str, list[Entry]] = {}
    for name, entries in queues.items():
        left = []
        for entry in entries:
            workload = entry.workload
            key = id(workload)
            gate = alone[key] if key in alone else gates[gate_group(workload)]
            if gate is None:
                left.append(entry)
            else:
                shut.append((entry, gate))
        if left:
            opened[name] = left
    return shut, opened


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
    lineup = Lineup(queues, trial.answers, trial.memory.pool)
    first = [
        (until, entry.key, entry)
        for entry in promised
        if (until := entry.workload.promised_until) is not None and until > trial.now
    ]
    places: list[int] = []
    if first:
        first.sort(key=lambda each: each[:2])
        place_of = {id(entry): place for place, entry in enumerate(lineup.entries)}
        places = [place_of[id(entry)] for _, _, entry in first]
    judge.consider_all(lineup, Turns(trial.admission.tree, lineup), places)
