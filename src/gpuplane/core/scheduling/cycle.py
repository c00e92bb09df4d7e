"""One cycle: a snapshot in, a decision out.

Owns the order of steps and nothing else: gates, turns, quota, placement, victims, explanation.
It counts into the snapshot's fleets and quotas while it runs and undoes all of it at the end.
"""

from collections import Counter
from collections.abc import Iterable

from gpuplane.core.ids import JobId
from gpuplane.core.scheduling.decisions import Decision, Verdict, Waiting
from gpuplane.core.scheduling.gates import find_gate
from gpuplane.core.scheduling.judge import Judge
from gpuplane.core.scheduling.ordering import Entry, Turns, compute_entry
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.trial import Trial


def decide(snapshot: Snapshot, policy: Policy, now: int, seed: int) -> Decision:
    """Return one verdict for every pending workload of the snapshot.

    Pure: equal arguments give equal bytes, whatever the order of the workloads; the snapshot is
    the same before and after.

    Args:
        snapshot: Pending and running workloads, fleets and quotas.
        policy: How to order, rank and preempt.
        now: The instant of the decision, in ms since the epoch.
        seed: Breaks ties of the policy `random`; kept for replay.

    Raises:
        ValueError: If a workload is given twice.
    """
    ids = Counter(workload.job_id for workload in snapshot.pending)
    if len(ids) != len(snapshot.pending):
        raise ValueError("a pending workload is given twice")
    with Trial(snapshot, policy, now, seed) as trial:
        verdicts = _run(trial, snapshot, policy, now)
    return Decision(
        generation=snapshot.generation,
        now=now,
        seed=seed,
        policy=policy.placement.value,
        verdicts=verdicts,
        counts=_count(verdicts),
    )


def _run(trial: Trial, snapshot: Snapshot, policy: Policy, now: int) -> tuple[Verdict, ...]:
    verdicts: list[Verdict] = []
    entries = []
    for workload in sorted(snapshot.pending, key=lambda each: each.job_id.int):
        gate = find_gate(workload, snapshot, trial.admission, now)
        if gate is not None:
            verdicts.append(Waiting(workload.job_id, workload.version, gate, (), 0))
        else:
            entries.append(compute_entry(workload, policy.boosts, now))
    judge = Judge(trial)
    considered = take_turns(trial, judge, entries)
    waiting = judge.finish()
    for job_id, verdict in considered.items():
        verdicts.append(waiting[job_id] if verdict is None else verdict)
    return tuple(verdicts)


def take_turns(trial: Trial, judge: Judge, entries: Iterable[Entry]) -> dict[JobId, Verdict | None]:
    """Consider every entry in its turn; return where each goes, None for those who wait.

    Those for whom others were stopped come first, earlier promises before later ones: the room
    was made for them.
    """
    promised: list[tuple[int, tuple[int, int, str], Entry]] = []
    others: list[Entry] = []
    for entry in entries:
        until = entry.workload.promised_until
        if until is not None and until > trial.now:
            promised.append((until, entry.key, entry))
        else:
            others.append(entry)
    considered: dict[JobId, Verdict | None] = {}
    for _, _, entry in sorted(promised, key=lambda each: each[:2]):
        considered[entry.workload.job_id] = judge.consider(entry, len(considered))
    turns = Turns(trial.admission.tree, others, trial.admission.first_choice)
    while (turn := turns.next()) is not None:
        considered[turn.workload.job_id] = judge.consider(turn, len(considered))
    return considered


def _count(verdicts: tuple[Verdict, ...]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        counts[type(verdict).__name__] += 1
        if isinstance(verdict, Waiting):
            counts[verdict.reason.word.value] += 1
    return dict(sorted(counts.items()))
