"""Who may be stopped for whom, and which victims cost least.

Owns the product's rules on top of the queues' own policies: the table of classes, the least run
time, and the measured loss. The search over nodes is `victims`'.

    victim    may be stopped by
    critical  nobody
    high      critical
    normal    high, critical
    low       normal and above
    spot      low and above

Work that something higher waits for (`inherited_priority`) is a victim of that higher class: to
stop it would make the higher one wait longer.

`preemptible` and `preempts_others` narrow the table where they are set to false; nothing widens it.
"""

from dataclasses import dataclass

from gpuplane.core.amounts import MS_PER_S, WHOLE_GPU_MILLI
from gpuplane.core.fleet.facts import Allocation
from gpuplane.core.mig.profiles import find_compute_share
from gpuplane.core.quota.preemption import (
    AdmittedWorkload,
    Legality,
    PreemptionVariant,
    Preemptor,
)
from gpuplane.core.quota.specs import FlavorResource, WithinClusterQueue
from gpuplane.core.quota.tree import QuotaTree, Usage
from gpuplane.core.scheduling.policy import PreemptionLimits
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import PRIORITY_VALUES, Priority

NEARLY_DONE_RATIO = 0.9
"""Progress from which stopping is taken as throwing the whole run away (issue: costly)."""


LossKey = tuple[int, bool, int, int, str]
"""Class value, nearly done, GPU-seconds lost, less what remains, job id: cheapest first."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What stopping a running workload costs.

    Attributes:
        lost_gpu_s: GPU-seconds since its last checkpoint, or since its start.
        remaining_s: Seconds it would still run; None when nothing is known.
    """

    lost_gpu_s: int
    ran_s: int
    remaining_s: int | None
    is_nearly_done: bool


def may_stop(preemptor: Workload, victim: Workload) -> bool:
    """Tell whether the table lets one workload stop another."""
    if preemptor.preempts_others is False or victim.preemptible is False:
        return False
    if Priority.CRITICAL in (victim.priority, victim.inherited_priority):
        return False
    return PRIORITY_VALUES[preemptor.priority] > victim_value(victim)


def victim_value(victim: Workload) -> int:
    """Return the value of the class that a victim counts as: its own, or that lent to it."""
    lent = victim.inherited_priority
    own = PRIORITY_VALUES[victim.priority]
    return own if lent is None else max(own, PRIORITY_VALUES[lent])


def is_protected(running: RunningWorkload, limits: PreemptionLimits, now: int) -> bool:
    """Tell whether a running workload is no victim now, whoever asks."""
    ran_ms = now - running.started_at
    return running.stopping or ran_ms < limits.min_run_s * MS_PER_S


def compute_loss(running: RunningWorkload, now: int) -> Loss:
    """Return what stopping the workload now throws away."""
    since = max(running.started_at, running.checkpoint_at or 0)
    model = running.workload.resources.gpu_model
    gpu_milli = sum(_gpu_milli_of(each, model) for each in running.allocations)
    kept_s = max(0, now - since) // MS_PER_S
    remaining = None
    if running.expected_end is not None:
        remaining = max(0, running.expected_end - now) // MS_PER_S
    ran_s = max(0, now - running.started_at) // MS_PER_S
    return Loss(
        lost_gpu_s=kept_s * gpu_milli // WHOLE_GPU_MILLI,
        ran_s=ran_s,
        remaining_s=remaining,
        is_nearly_done=_is_nearly_done(running, ran_s),
    )


def _gpu_milli_of(held: Allocation, model: str | None) -> int:
    """Return how much of GPUs a replica holds; an instance counts by its compute slices."""
    if held.mig is None:
        return len(held.gpu_ids) * held.gpu_milli
    # Of a profile that no built-in table has nothing is known: it counts as the whole GPU.
    part, whole = find_compute_share(held.mig.profile, model) or (1, 1)
    return WHOLE_GPU_MILLI * part // whole


def _is_nearly_done(running: RunningWorkload, ran_s: int) -> bool:
    """Tell whether little is left: by what it reports, else by the length that was stated for it.

    Work that runs longer than was stated is not nearly done: the statement was wrong.
    """
    if running.progress_ratio is not None:
        return running.progress_ratio >= NEARLY_DONE_RATIO
    stated_s = running.workload.estimated_duration_s
    return stated_s is not None and NEARLY_DONE_RATIO * stated_s <= ran_s < stated_s


def loss_measure(loss: Loss) -> int:
    """Return a loss as one number for comparing workloads of one class, least first."""
    return (loss.is_nearly_done << 60) + min(loss.lost_gpu_s, (1 << 60) - 1)


def loss_key(running: RunningWorkload, loss: Loss) -> LossKey:
    """Return the order in which victims are taken: class first, then least loss, then id.

    Of equals the one with more still to run goes first: it would hold the place longest.
    """
    value = victim_value(running.workload)
    remaining = loss.remaining_s if loss.remaining_s is not None else 1 << 40
    return (
        value,
        loss.is_nearly_done,
        loss.lost_gpu_s,
        -remaining,
        str(running.workload.job_id),
    )


def as_preemptor(workload: Workload, usage: Usage) -> Preemptor:
    """Return the workload as the quotas see a preemptor."""
    return Preemptor(
        id=str(workload.job_id),
        cluster_queue=workload.queue,
        usage=usage,
        priority=PRIORITY_VALUES[workload.priority],
        queued_at_ms=workload.queued_at,
        local_queue=workload.local_queue,
    )


def as_admitted(
    running: RunningWorkload, local_queue: str | None, loss: int = 0
) -> AdmittedWorkload:
    """Return a running workload as the quotas see one that holds quota.

    Args:
        running: The workload.
        local_queue: The LocalQueue under which its usage is counted, or None.
        loss: What stopping it throws away (`loss_measure`); 0 leaves the order to Kueue's measure.
    """
    workload = running.workload
    return AdmittedWorkload(
        id=str(workload.job_id),
        cluster_queue=workload.queue,
        usage=running.usage,
        priority=PRIORITY_VALUES[workload.priority],
        queued_at_ms=workload.queued_at,
        admitted_at_ms=running.started_at,
        local_queue=local_queue,
        is_evicted=running.stopping,
        loss=loss,
    )


class NodeRights:
    """Whether the queues' policies let one workload take nodes from another.

    Quota has its own search; here the preemptor has quota and only devices are short. Within a
    queue its own policy rules, across queues reclaiming does. Where neither queue has quotas at
    all the table stands alone within a tenant; a tenant takes from another only in a queue that
    both share and whose policy says so.
    """

    def __init__(self, tree: QuotaTree, preemptor: Preemptor, tenant: str) -> None:
        self._tree = tree
        self._tenant = tenant
        self._spec = tree.get_spec(preemptor.cluster_queue)
        self._legality = Legality(tree, preemptor, frozenset(preemptor.usage))
        self._known: dict[tuple[str, bool, Priority, frozenset[FlavorResource]], bool] = {}

    def allow(self, running: RunningWorkload) -> bool:
        """Tell whether the workload may lose its devices to the preemptor.

        The answer is the same for all of one queue, class and set of resources: the table asks
        for a lower class, so the age that some policies look at never decides.
        """
        workload = running.workload
        is_own = workload.tenant == self._tenant
        key = (workload.queue, is_own, workload.priority, frozenset(running.usage))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._decide(running)
        return known

    def _decide(self, running: RunningWorkload) -> bool:
        queue = running.workload.queue
        if queue not in self._tree.cluster_queues:
            return False  # its queue is gone, and with it every policy that would allow it
        theirs = self._tree.get_spec(queue)
        if self._spec.covers_everything or theirs.covers_everything:
            if not (self._spec.covers_everything and theirs.covers_everything):
                return False
            if running.workload.tenant == self._tenant:
                return True
            policy = theirs.preemption.within_cluster_queue
            return queue == self._spec.name and policy is not WithinClusterQueue.NEVER
        variant = self._legality.decide_variant(as_admitted(running, None))
        return variant is not PreemptionVariant.NEVER
