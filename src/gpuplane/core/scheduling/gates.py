"""What keeps a workload out of its queue altogether: it neither blocks others nor is counted.

Owns the gates, in order; what is short (quota, nodes) is no gate. A gate is the same on every node:
one duration is known and not one a GPU model, so windows and deadlines are asked once and not as
filters over nodes, and no nodes are counted for them.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple
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


class Scene(NamedTuple):
    """What a gate looks at besides the workload."""

    snapshot: Snapshot
    admission: Admission
    now: int


class Gate(NamedTuple):
    """A condition that is the same on every node, and the word for work that fails it.

    Args:
        find: (workload, scene) -> why it is not considered, or None.
        words: Every word that it says.
    """

    words: tuple[Word, ...]
    find: Callable[[Workload, Scene], Reason | None]


def is_thawed(workload: Workload, scene: Scene) -> Reason | None:
    """Pass everything while scheduling is not frozen."""
    snapshot = scene.snapshot
    if not snapshot.frozen:
        return None
    note = f": {snapshot.frozen_note}" if snapshot.frozen_note else ""
    return Reason(Word.FROZEN, f"Scheduling is frozen{note}.", "Wait for the thaw.")


def is_past_its_start(workload: Workload, scene: Scene) -> Reason | None:
    """Pass work whose earliest start has come."""
    if workload.not_before is None or workload.not_before <= scene.now:
        return None
    return Reason(Word.SCHEDULED_START, "Its start is scheduled for later.")


def is_in_its_window(workload: Workload, scene: Scene) -> Reason | None:
    """Pass work whose time window is open and, by its estimate, long enough."""
    if workload.window is None:
        return None
    duration_s = workload.estimated_duration_s
    try:
        current = find_current_window(workload.window, scene.now)
        fitting = find_fitting_window(workload.window, scene.now, duration_s)
    except ZoneInfoNotFoundError:
        zone = workload.window.zone
        return Reason(Word.TIME_WINDOW, f"The zone {zone} of its time window is not known.")
    if current is None:
        return Reason(Word.TIME_WINDOW, "Its time window is closed.", "Wait for the window.")
    if fitting is None or fitting[0] <= scene.now:
        return None
    return Reason(
        Word.WINDOW_TOO_SHORT,
        f"It is expected to run {duration_s} s, and its time window closes at "
        f"{_clock_text(current[1])}.",
        "Wait for the next window, state a shorter duration, or let it be checkpointed "
        "at the end of the window.",
    )


def meets_its_deadline(workload: Workload, scene: Scene) -> Reason | None:
    """Pass work that, by its estimate, ends before the deadline that would cancel it."""
    duration_s = workload.estimated_duration_s
    if workload.deadline is None or not workload.is_cancelled_at_deadline or duration_s is None:
        return None
    if scene.now + duration_s * MS_PER_S <= workload.deadline:
        return None
    return Reason(
        Word.DEADLINE,
        f"It is expected to run {duration_s} s and would be cancelled at its deadline, "
        f"{_clock_text(workload.deadline)}, before it ends.",
        "Give it a later deadline, a shorter duration, or the deadline action warn.",
    )


def has_a_cluster(workload: Workload, scene: Scene) -> Reason | None:
    """Pass work of whose clusters some can be scheduled on."""
    clusters, fleets = workload.clusters, scene.snapshot.fleets
    if clusters is not None and not any(each.cluster_id in clusters for each in fleets):
        sentence = "None of the clusters that it may use can be scheduled on now."
        return Reason(Word.NO_CLUSTER, sentence, "Allow another cluster, or wait.")
    if not fleets:
        return Reason(Word.NO_CLUSTER, "There is no cluster to schedule on.", "Add a cluster.")
    return None


def has_a_queue(workload: Workload, scene: Scene) -> Reason | None:
    """Pass work whose queue exists and is where its LocalQueue leads."""
    admission = scene.admission
    if not admission.knows(workload.queue):
        return Reason(
            Word.NO_QUEUE, f"There is no queue {workload.queue}.", "Have a queue made for you."
        )
    if not admission.knows_door(workload.local_queue, workload.queue):
        sentence = f"LocalQueue {workload.local_queue} does not lead to {workload.queue}."
        return Reason(Word.NO_QUEUE, sentence, "Have a queue made for you.")
    return None


GATES = (
    Gate((Word.FROZEN,), is_thawed),
    Gate((Word.SCHEDULED_START,), is_past_its_start),
    Gate((Word.TIME_WINDOW, Word.WINDOW_TOO_SHORT), is_in_its_window),
    Gate((Word.DEADLINE,), meets_its_deadline),
    Gate((Word.NO_CLUSTER,), has_a_cluster),
    Gate((Word.NO_QUEUE,), has_a_queue),
)
"""Every gate, in the order in which they are asked; the first that refuses is told."""


def find_gate(
    workload: Workload, snapshot: Snapshot, admission: Admission, now: int
) -> Reason | None:
    """Return why the workload is not even considered now, or None."""
    scene = Scene(snapshot, admission, now)
    for gate in GATES:
        reason = gate.find(workload, scene)
        if reason is not None:
            return reason
    return None


def _clock_text(at: int) -> str:
    return f"{datetime.fromtimestamp(at // MS_PER_S, UTC):%Y-%m-%dT%H:%MZ}"
