"""Which GPUs are given away: kept up to date change by change, so that nobody lists pods.

Owns the sums of pods and of what was promised to workloads whose pods are not bound yet. Not
thread-safe; one event loop owns it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuplane.operator.names import RESOURCES, Vendor
from gpuplane.operator.rules.seen import Pod

_VENDOR_OF = {name: vendor for vendor, names in RESOURCES.items() for name in names}


@dataclass(frozen=True, slots=True)
class Hold:
    """GPUs of a node that are promised to a workload."""

    node: str
    vendor: Vendor
    gpus: int


class Room:
    """The GPUs in use by node and vendor."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], Pod] = {}
        self._by_node: dict[Vendor, dict[str, int]] = {vendor: {} for vendor in Vendor}
        self._ids: dict[str, dict[tuple[str, str], tuple[str, ...]]] = {}
        self._holds: dict[str, Hold] = {}
        self._bound_jobs: dict[tuple[str, str], int] = {}
        self._job_of: dict[str, tuple[str, str]] = {}
        self._uid_of: dict[tuple[str, str], str] = {}

    def used(self, vendor: Vendor) -> Mapping[str, int]:
        """Return by node how many GPUs of a vendor are given away; a live view."""
        return self._by_node[vendor]

    def busy_ids(self) -> Mapping[str, tuple[str, ...]]:
        """Return by node the ids of GPUs that are in use, of pods that name theirs."""
        return {node: tuple(i for ids in pods.values() for i in ids)
                for node, pods in self._ids.items()}  # fmt: skip

    def set_pod(self, pod: Pod) -> bool:
        """Take note of a pod; True where GPUs became free."""
        freed = self.remove_pod(pod.namespace, pod.name, over=pod.is_over)
        if pod.is_over or not pod.node or not pod.gpus:
            return freed
        key = (pod.namespace, pod.name)
        self._pods[key] = pod
        for resource, count in pod.gpus.items():
            self._add(pod.node, _VENDOR_OF[resource], count)
        if pod.gpu_ids:
            self._ids.setdefault(pod.node, {})[key] = pod.gpu_ids
        if pod.job:
            self._mark((pod.namespace, pod.job), 1)
        return False

    def remove_pod(self, namespace: str, name: str, *, over: bool = True) -> bool:
        """Forget a pod; True where GPUs became free for good."""
        pod = self._pods.pop((namespace, name), None)
        if pod is None:
            return False
        for resource, count in pod.gpus.items():
            self._add(pod.node, _VENDOR_OF[resource], -count)
        ids = self._ids.get(pod.node)
        if ids is not None:
            ids.pop((namespace, name), None)
            if not ids:
                del self._ids[pod.node]
        if pod.job:
            self._mark((namespace, pod.job), -1)
        return over

    def hold(self, uid: str, job: tuple[str, str], hold: Hold) -> None:
        """Promise GPUs to a workload until a pod of its Job is bound, then the pod counts.

        Args:
            job: (namespace, name) of the Job whose pods take the promise over.
        """
        self.release(uid)
        self._holds[uid] = hold
        self._job_of[uid] = job
        self._uid_of[job] = uid
        if not self._bound_jobs.get(job):
            self._add(hold.node, hold.vendor, hold.gpus)

    def release(self, uid: str) -> bool:
        """Take a promise back; True where GPUs became free."""
        hold = self._holds.pop(uid, None)
        if hold is None:
            return False
        job = self._job_of.pop(uid)
        self._uid_of.pop(job, None)
        if self._bound_jobs.get(job):
            return False
        self._add(hold.node, hold.vendor, -hold.gpus)
        return True

    def find_hold(self, uid: str) -> Hold | None:
        """Return what is promised to a workload."""
        return self._holds.get(uid)

    def holds(self) -> Iterable[tuple[str, Hold]]:
        """Return every promise by the uid of its workload."""
        return self._holds.items()

    def _mark(self, job: tuple[str, str], change: int) -> None:
        """Count a Job's bound pods, and let its promise stand only while there is none."""
        before = self._bound_jobs.get(job, 0)
        after = before + change
        if after:
            self._bound_jobs[job] = after
        else:
            self._bound_jobs.pop(job, None)
        if bool(before) == bool(after):
            return
        uid = self._uid_of.get(job)
        if uid is not None:
            hold = self._holds[uid]
            self._add(hold.node, hold.vendor, -hold.gpus if after else hold.gpus)

    def _add(self, node: str, vendor: Vendor, change: int) -> None:
        amounts = self._by_node[vendor]
        amounts[node] = amounts.get(node, 0) + change
        if not amounts[node]:
            del amounts[node]
