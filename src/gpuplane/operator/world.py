"""What the operator knows of the cluster, kept by the changes that informers tell.

Owns the indexes of nodes, GPUWorkloads, Jobs and pods, the room that is left, and whom a change
concerns. Never calls the API, and nobody lists anything for one decision.
"""

import bisect
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from gpuplane.operator.names import OVER, PRODUCT_LABEL
from gpuplane.operator.rules.nodes import detect_gpus
from gpuplane.operator.rules.profiles import KEPT_RUNS, Run
from gpuplane.operator.rules.room import Hold, Room
from gpuplane.operator.rules.seen import Job, Node, Pod, Workload

Key = tuple[str, str]
MAX_MODELS = 1_000
"""Models whose runs are remembered; the one that ran longest ago is forgotten first."""

MAX_GONE = 1_000
"""Jobs that are gone and remembered as such, by uid: an answer that still tells of one is late."""


class World:
    """The cluster as it was last told, and who is to be looked at because of it."""

    def __init__(
        self, wake: Callable[[Key], None], wake_first: Callable[[Key], None] | None = None
    ) -> None:
        """Know nothing yet.

        Args:
            wake: Has a workload looked at.
            wake_first: Has a new one looked at before all others.
        """
        self._wake = wake
        self._wake_first = wake_first or wake
        self.room = Room()
        self.nodes: dict[str, Node] = {}
        self.mix: Counter[int] = Counter()
        self._workloads: dict[Key, Workload] = {}
        self._key_of: dict[str, Key] = {}
        self._jobs: dict[str, dict[str, Job]] = {}
        self._uid_of_job: dict[Key, str] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._pods: dict[Key, dict[str, Pod]] = {}
        self._waiting: list[tuple[int, int, Key]] = []
        self._runs: OrderedDict[str, list[Run]] = OrderedDict()

    # What is asked

    def find_workload(self, key: Key) -> Workload | None:
        """Return a GPUWorkload as it was last seen or written."""
        return self._workloads.get(key)

    def keys(self) -> Collection[Key]:
        """Return the keys of every GPUWorkload."""
        return self._workloads.keys()

    def jobs_of(self, workload: Workload) -> tuple[Job, ...]:
        """Return the Jobs that carry a workload's uid, by name."""
        return tuple(job for _, job in sorted(self._jobs.get(workload.uid, {}).items()))

    def pods_of(self, jobs: Iterable[Job]) -> Mapping[str, Sequence[Pod]]:
        """Return the pods by the name of their Job."""
        return {
            job.name: tuple(self._pods.get((job.namespace, job.name), {}).values()) for job in jobs
        }

    def placed(self) -> Mapping[str, list[Workload]]:
        """Return by node the workloads that hold GPUs there."""
        found: dict[str, list[Workload]] = {}
        for uid, hold in self.room.holds():
            workload = self._workloads.get(self._key_of.get(uid, ("", "")))
            if workload is not None and workload.job:
                found.setdefault(hold.node, []).append(workload)
        return found

    def runs_of(self, model: str) -> Sequence[Run]:
        """Return the last runs of a model, oldest first."""
        return self._runs.get(model, ())

    # What is told

    def set_workload(self, workload: Workload) -> None:
        """Take note of a GPUWorkload, unless something newer of it is known."""
        before = self._workloads.get(workload.key)
        if before is not None and before.uid == workload.uid:
            if _is_older(workload, before):
                return
            self._count(before, -1)
        elif before is not None:
            self.remove_workload(before)
        self._workloads[workload.key] = workload
        self._key_of[workload.uid] = workload.key
        self._count(workload, 1)
        if before is None:
            self._wake_first(workload.key)
        elif before != workload:
            self._wake(workload.key)

    def remove_workload(self, workload: Workload) -> None:
        """Forget a GPUWorkload that is gone."""
        known = self._workloads.get(workload.key)
        if known is None or known.uid != workload.uid:
            return
        del self._workloads[workload.key]
        self._key_of.pop(workload.uid, None)
        self._count(known, -1)
        self.stop_waiting(known)
        self.let_go(known)

    def set_node(self, node: Node) -> None:
        """Take note of a node; what waits may fit now."""
        before = self.nodes.get(node.name)
        self.nodes[node.name] = node
        if before is None or _offers_more(before, node):
            self._offer(node.name)

    def remove_node(self, node: Node) -> None:
        """Forget a node that is gone."""
        self.nodes.pop(node.name, None)

    def set_job(self, job: Job) -> None:
        """Take note of a Job of ours, unless something newer of it is known."""
        self._gone.pop(job.uid, None)
        known = self._jobs.get(job.workload_uid, {}).get(job.name)
        if known is not None and known.uid == job.uid and _is_older(job, known):
            return
        self._jobs.setdefault(job.workload_uid, {})[job.name] = job
        self._uid_of_job[job.namespace, job.name] = job.workload_uid
        self.wake_owner(job.workload_uid)

    def note_answer(self, job: Job) -> None:
        """Take note of a Job that a call answered with; it may come later than what is told.

        Before the answer that a Job was made is read, Kueue may have let it go, or somebody may
        have deleted it.
        """
        if job.uid not in self._gone:
            self.set_job(job)

    def remove_job(self, job: Job) -> None:
        """Forget a Job that is gone."""
        self._gone[job.uid] = None
        if len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)
        jobs = self._jobs.get(job.workload_uid, {})
        known = jobs.get(job.name)
        if known is None or known.uid != job.uid:
            return
        del jobs[job.name]
        self._uid_of_job.pop((job.namespace, job.name), None)
        if not jobs:
            self._jobs.pop(job.workload_uid, None)
        self.wake_owner(job.workload_uid)

    def set_pod(self, pod: Pod) -> None:
        """Take note of a pod that asks for GPUs."""
        owner = (pod.namespace, pod.job)
        if pod.job:
            self._pods.setdefault(owner, {})[pod.name] = pod
            self._wake_owner(owner)
        if self.room.set_pod(pod):
            self._offer(pod.node)

    def remove_pod(self, pod: Pod) -> None:
        """Forget a pod that is gone."""
        owner = (pod.namespace, pod.job)
        pods = self._pods.get(owner)
        if pods is not None:
            pods.pop(pod.name, None)
            if not pods:
                del self._pods[owner]
            self._wake_owner(owner)
        if self.room.remove_pod(pod.namespace, pod.name):
            self._offer(pod.node)

    # What is promised

    def promise(self, workload: Workload, job: str, node: str) -> None:
        """Keep a node's GPUs for a workload until a pod of its Job is bound."""
        hold = Hold(node, workload.vendor, workload.gpus)
        if self.room.find_hold(workload.uid) != hold:
            self.room.hold(workload.uid, (workload.namespace, job), hold)

    def let_go(self, workload: Workload) -> None:
        """Take back what was kept for a workload."""
        hold = self.room.find_hold(workload.uid)
        if self.room.release(workload.uid) and hold is not None:
            self._offer(hold.node)

    def wait_for_room(self, workload: Workload) -> None:
        """Let a workload be looked at when GPUs become free, the highest priority first."""
        entry = (-workload.priority.rank, workload.created_s, workload.key)
        place = bisect.bisect_left(self._waiting, entry)
        if place == len(self._waiting) or self._waiting[place] != entry:
            self._waiting.insert(place, entry)

    def stop_waiting(self, workload: Workload) -> None:
        """Take a workload out of those who wait for room."""
        entry = (-workload.priority.rank, workload.created_s, workload.key)
        place = bisect.bisect_left(self._waiting, entry)
        if place < len(self._waiting) and self._waiting[place] == entry:
            del self._waiting[place]

    def remember_run(self, workload: Workload, job: Job, failure: str) -> None:
        """Keep what a run took, for the advice to later ones of its model."""
        runs = self._runs.setdefault(workload.model, [])
        self._runs.move_to_end(workload.model)
        if job.finished_s == 0 or any(run.workload == job.uid for run in runs):
            return
        node = self.nodes.get(workload.node)
        runs.append(
            Run(
                job.uid,
                workload.gpus,
                max(0, job.finished_s - job.started_s) if job.started_s else 0,
                "" if node is None else node.labels.get(PRODUCT_LABEL, ""),
                failure,
            )
        )
        del runs[:-KEPT_RUNS]
        if len(self._runs) > MAX_MODELS:
            self._runs.popitem(last=False)

    def _count(self, workload: Workload, change: int) -> None:
        if workload.phase in OVER:
            return
        self.mix[workload.gpus] += change
        if not self.mix[workload.gpus]:
            del self.mix[workload.gpus]

    def wake_owner(self, uid: str) -> None:
        """Have the workload of a uid looked at, if it is known."""
        key = self._key_of.get(uid)
        if key is not None:
            self._wake(key)

    def _wake_owner(self, owner: Key) -> None:
        self.wake_owner(self._uid_of_job.get(owner, ""))

    def _offer(self, name: str) -> None:
        """Wake those who wait, in their order, as far as the free GPUs of a node could serve."""
        node = self.nodes.get(name)
        if node is None or not self._waiting:
            return
        left: dict[object, int] = {}
        for _, _, key in self._waiting:
            workload = self._workloads.get(key)
            if workload is None:
                continue
            vendor = workload.vendor
            if vendor not in left:
                used = self.room.used(vendor).get(name, 0)
                left[vendor] = detect_gpus(node, vendor).total - used
            if workload.gpus <= left[vendor]:
                left[vendor] -= workload.gpus
                self._wake(key)
            if all(count <= 0 for count in left.values()):
                return


def _is_older(one: Workload | Job, other: Workload | Job) -> bool:
    """Return whether a resourceVersion is older; versions that are no numbers never are."""
    first, second = one.resource_version, other.resource_version
    return first.isdigit() and second.isdigit() and int(first) < int(second)


def _offers_more(before: Node, after: Node) -> bool:
    return (
        before.allocatable != after.allocatable
        or before.capacity != after.capacity
        or before.labels != after.labels
        or before.taints != after.taints
        or (after.is_ready and not before.is_ready)
        or (before.is_unschedulable and not after.is_unschedulable)
    )
