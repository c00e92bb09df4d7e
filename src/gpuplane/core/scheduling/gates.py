"""What keeps a workload out of its queue altogether: it neither blocks others nor is counted.

Owns the gates, in order; what is short (quota, nodes) is no gate.
"""

from datetime import UTC, datetime
from zoneinfo import ZoneInfoNotFoundError

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.ids import ClusterId
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.admission import Admission
from gpuplane.core.scheduling.policy import Snapshot
from gpuplane.core.scheduling.windows import find_current_window, find_fitting_window
from gpuplane.core.scheduling.workload import Workload

GateGroup = tuple[str, str | None, tuple[ClusterId, ...] | None]
"""Queue, LocalQueue and clusters: what the gates look at in a workload without own gates."""


def has_own_gate(workload: Workload) -> bool:
    """Tell whether a gate looks at more of the workload than its group: its times."""
    return (
        workload.not_before is not None
        or workload.window is not None
        or (workload.deadline is not None and workload.is_cancelled_at_deadline)
    )


def gate_group(workload: Workload) -> GateGroup:
    """Return what decides the gates of every workload that has none of its own."""
    return workload.queue, workload.local_queue, workload.clusters


def find_gate(
    workload: Workload, snapshot: Snapshot, admission: Admission, now: int
) -> Reason | None:
    """Return why the workload is not even considered now, or None."""
    if snapshot.frozen:
        note = f": {snapshot.frozen_note}" if snapshot.frozen_note else ""
        return Reason(Word.FROZEN, f"Scheduling is frozen{note}.", "Wait for the thaw.")
    if workload.not_before is not None and workload.not_before > now:
        return Reason(Word.SCHEDULED_START, "Its start is scheduled for later.")
    in_time = _find_time_gate(workload, now)
    if in_time is not None:
        return in_time
    clusters = workload.clusters
    if clusters is not None and not any(f.cluster_id in clusters for f in snapshot.fleets):
        sentence = "None of the clusters that it may use can be scheduled on now."
        return Reason(Word.NO_CLUSTER, sentence, "Allow another cluster, or wait.")
    if not snapshot.fleets:
        return Reason(Word.NO_CLUSTER, "There is no cluster to schedule on.", "Add a cluster.")
    if not admission.knows(workload.queue):
        return Reason(
            Word.NO_QUEUE, f"There is no queue {workload.queue}.", "Have a queue made for you."
        )
    if not admission.knows_door(workload.local_queue, workload.queue):
        sentence = f"LocalQueue {workload.local_queue} does not lead to {workload.queue}."
        return Reason(Word.NO_QUEUE, sentence, "Have a queue made for you.")
    return None


def _find_time_gate(workload: Workload, now: int) -> Reason | None:
    """Return why this is not the time for it: its window, or a deadline that it would miss.

    Both are the same on every node, because one duration is known and not one a GPU model, so
    they are asked once and not as filters over nodes.
    """
    duration_s = workload.estimated_duration_s
    if workload.window is not None:
        try:
            current = find_current_window(workload.window, now)
            fitting = find_fitting_window(workload.window, now, duration_s)
        except ZoneInfoNotFoundError:
            zone = workload.window.zone
            return Reason(Word.TIME_WINDOW, f"The zone {zone} of its time window is not known.")
        if current is None:
            return Reason(Word.TIME_WINDOW, "Its time window is closed.", "Wait for the window.")
        if fitting is not None and fitting[0] > now:
            return Reason(
                Word.WINDOW_TOO_SHORT,
                f"It is expected to run {duration_s} s, and its time window closes at "
                f"{_clock_text(current[1])}.",
                "Wait for the next window, state a shorter duration, or let it be checkpointed "
                "at the end of the window.",
            )
    if workload.deadline is None or not workload.is_cancelled_at_deadline or duration_s is None:
        return None
    if now + duration_s * MS_PER_S <= workload.deadline:
        return None
    return Reason(
        Word.DEADLINE,
        f"It is expected to run {duration_s} s and would be cancelled at its deadline, "
        f"{_clock_text(workload.deadline)}, before it ends.",
        "Give it a later deadline, a shorter duration, or the deadline action warn.",
    )


def _clock_text(at: int) -> str:
    return f"{datetime.fromtimestamp(at // MS_PER_S, UTC):%Y-%m-%dT%H:%MZ}"
