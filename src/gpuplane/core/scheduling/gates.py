"""What keeps a workload out of its queue altogether: it neither blocks others nor is counted.

Owns the gates, in order; what is short (quota, nodes) is no gate.
"""

from zoneinfo import ZoneInfoNotFoundError

from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.admission import Admission
from gpuplane.core.scheduling.policy import Snapshot
from gpuplane.core.scheduling.windows import find_current_window
from gpuplane.core.scheduling.workload import Workload


def find_gate(
    workload: Workload, snapshot: Snapshot, admission: Admission, now: int
) -> Reason | None:
    """Return why the workload is not even considered now, or None."""
    if snapshot.frozen:
        note = f": {snapshot.frozen_note}" if snapshot.frozen_note else ""
        return Reason(Word.FROZEN, f"Scheduling is frozen{note}.", "Wait for the thaw.")
    if workload.not_before is not None and workload.not_before > now:
        return Reason(Word.SCHEDULED_START, "Its start is scheduled for later.")
    if workload.window is not None:
        try:
            is_open = find_current_window(workload.window, now) is not None
        except ZoneInfoNotFoundError:
            zone = workload.window.zone
            return Reason(Word.TIME_WINDOW, f"The zone {zone} of its time window is not known.")
        if not is_open:
            return Reason(Word.TIME_WINDOW, "Its time window is closed.", "Wait for the window.")
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
