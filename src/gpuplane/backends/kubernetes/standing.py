"""Helm releases under Kueue: what follows from their Job being admitted, and suspended again.

    admitted   the Job says how many run, then pods are let go, each onto the nodes of its quota
    suspended  the release is taken off the cluster; the Job says that none run once none do

Kueue gives a quota back to others once the Job that had it says that nothing is active. Nobody
else says so of this Job, because Kubernetes' own controller leaves it alone. Every write names the
version that was read, so that what was suspended meanwhile is looked at again.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.charts import HELPER, REPLICA
from gpuplane.backends.kubernetes.manifests.standins import let_go
from gpuplane.backends.kubernetes.placing import waits
from gpuplane.backends.kubernetes.records import STARTED, Record
from gpuplane.backends.kubernetes.shapes import Main, Pod
from gpuplane.backends.kubernetes.sights import is_well, rank_of
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict, Forbidden, Invalid, NotThere
from gpuplane.kube.kinds import JOB, POD

log = logging.getLogger("gpuplane.kubernetes")


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done for one release.

    Args:
        counts: (active, ready) that its Job is to say, None where it says so.
        starts: Pods that may go, each with its rank, None for one that has none.
        withdraws: Whether the release is to be taken off the cluster.
    """

    counts: tuple[int, int] | None = None
    starts: tuple[tuple[Pod, int | None], ...] = ()
    withdraws: bool = False


def plan_step(record: Record | None, main: Main | None, pods: Sequence[Pod]) -> Step | None:
    """Return what is to be done for a release that a Job stands in line for, None for nothing.

    Args:
        pods: Those of the attempt that are there.
    """
    if record is None or main is None or not record.has_stand_in:
        return None
    if record.fate != STARTED or record.evict_reason or main.metadata.deletion_timestamp:
        return None
    alive = [pod for pod in pods if not pod.is_over]
    told = (main.status.active, main.status.ready or 0)
    if main.spec.suspend:
        if names.INSTALLED in main.metadata.annotations:
            return Step(withdraws=True)
        return Step(counts=(0, 0)) if not alive and told != (0, 0) else None
    if not alive:
        return None
    count = len(record.ranks)
    ready = sum(rank_of(pod) is not None and is_well(pod) for pod in alive)
    counts = (count, min(count, ready))
    starts = _plan_starts(record, alive)
    if told == counts and not starts:
        return None
    return Step(counts if told != counts else None, tuple(starts))


async def take_step(
    client: KubeClient,
    record: Record,
    step: Step,
    withdraw: Callable[[Record], Awaitable[None]],
) -> None:
    """Do one step; what changed meanwhile is left to the next look.

    Args:
        withdraw: Takes a release off the cluster and leaves its Job.

    Raises:
        KubeError: What the cluster refused.
    """
    if step.withdraws:
        await withdraw(record)
        return
    job = await client.find(JOB, record.name, record.namespace)
    if job is None or (step.starts and job["spec"].get("suspend")):
        return
    if step.counts is not None:
        active, ready = step.counts
        patch = {
            "metadata": {"resourceVersion": job["metadata"]["resourceVersion"]},
            "status": {"active": active, "ready": ready},
        }
        try:
            job = await client.patch(
                JOB, record.name, patch, record.namespace, subresource="status"
            )
        except (Conflict, NotThere):
            return
        except Forbidden:
            log.warning(
                "Jobs' status may not be written: %s gives its quota back early", record.name
            )
    for pod, rank in step.starts:
        name, namespace = pod.metadata.name, pod.metadata.namespace
        found = await client.find(POD, name, namespace)
        if found is None or found["metadata"]["uid"] != pod.metadata.uid:
            continue
        try:
            await client.patch(POD, name, let_go(job, found, rank), namespace)
        except (NotThere, Conflict) as error:
            log.debug("pod %s is let go at the next look: %s", name, error)
        except Invalid as error:
            log.warning("pod %s cannot be let go: %s", name, error)


def _plan_starts(record: Record, alive: Sequence[Pod]) -> list[tuple[Pod, int | None]]:
    """Return the waiting pods that may go, the oldest first; one with GPUs only with a rank."""
    taken = {rank_of(pod) for pod in alive}
    free = [rank for rank in record.ranks if rank not in taken]
    found: list[tuple[Pod, int | None]] = []
    oldest = sorted(alive, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
    for pod in filter(waits, oldest):
        part, rank = pod.metadata.labels.get(names.PART), rank_of(pod)
        if rank is None and part != HELPER and free:
            rank = free.pop(0)
        if rank is not None or part in (HELPER, REPLICA):
            found.append((pod, rank))
    return found
