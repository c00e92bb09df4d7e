"""What a workload asks of the quotas, which flavors it gets, and which nodes those stand for.

Owns the translation between a job's request and flavor-resources. The arithmetic and the choice
of flavors are `core.quota`'s.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gpuplane.core.fleet.columns import Bools, Fleet
from gpuplane.core.hardware import KNOWN_MODELS
from gpuplane.core.mig.profiles import resource_of_profile
from gpuplane.core.quota.flavors import ANY_FLAVOR, FlavorMode, assign_flavors
from gpuplane.core.quota.specs import CPU, GPU, MEMORY, ClusterQueueSpec, FlavorResource
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.policy import Flavor
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import ResourceRequest

MIG_SLICES = 7
"""Compute slices of a whole GPU: what a profile's share is counted in otherwise."""

MAX_FLAVOR_TRIES = 8
"""Flavor assignments tried for one workload when the nodes of the first ones are full."""

Usage = Mapping[FlavorResource, int]


@dataclass(frozen=True, slots=True)
class Grant:
    """Flavors with quota for a number of replicas.

    Args:
        replica_usage: What one replica counts.
        flavors: Every flavor used; their nodes are where the replicas may go.
    """

    replicas: int
    replica_usage: Usage
    flavors: tuple[str, ...]
    borrow_level: int

    @property
    def usage(self) -> dict[FlavorResource, int]:
        return {pair: amount * self.replicas for pair, amount in self.replica_usage.items()}


@dataclass(frozen=True, slots=True)
class QuotaRefusal:
    """No flavor has quota.

    Args:
        is_final: It would not fit into empty queues either.
        usage: What it would count in the flavors that preemption could free, or empty.
    """

    reason: Reason
    is_final: bool
    usage: Usage
    flavors: tuple[str, ...] = ()


class Admission:
    """Asks the quotas for workloads; counts nothing by itself."""

    def __init__(
        self,
        tree: QuotaTree,
        flavors: Mapping[str, Flavor],
        fleets: tuple[Fleet, ...],
        fixed: "dict[tuple[str, str], Grant | None] | None" = None,
    ) -> None:
        """Ask these quotas.

        Args:
            tree: Quotas and usage.
            flavors: What the flavors stand for.
            fleets: The nodes.
            fixed: Choices of flavors known from before, added to; None for none.
        """
        self.tree = tree
        self._flavors = flavors
        self._fleets = fleets
        self._masks: dict[tuple[str, int], Bools | None] = {}
        self._fixed = {} if fixed is None else fixed
        self._counted_doors = frozenset(
            key for key in tree.local_queues if tree.local_usage_of(key)
        )
        self.models = models_of(fleets)

    def knows(self, queue: str) -> bool:
        """Tell whether a ClusterQueue of this name exists."""
        try:
            self.tree.get_spec(queue)
        except ValueError:
            return False
        return True

    def knows_door(self, local_queue: str | None, queue: str) -> bool:
        """Tell whether a LocalQueue exists and leads to this ClusterQueue; None always does."""
        if local_queue is None:
            return True
        try:
            return self.tree.get_local_spec(local_queue).cluster_queue == queue
        except ValueError:
            return False

    def is_capped(self, local_queue: str | None) -> bool:
        """Tell whether a LocalQueue has limits of its own on top of its ClusterQueue's quota."""
        return local_queue is not None and bool(self.tree.get_local_spec(local_queue).limits)

    def find_counted_door(self, local_queue: str | None, queue: str) -> str | None:
        """Return the LocalQueue under which running work is counted, None if under none.

        Queues come and go under running work: what is not counted cannot be given back.
        """
        is_counted = local_queue in self._counted_doors and self.knows_door(local_queue, queue)
        return local_queue if is_counted else None

    def take(self, queue: str, usage: Usage, local_queue: str | None) -> None:
        """Count usage; work of a queue that is gone counts nowhere."""
        if self.knows(queue):
            self.tree.add_usage(queue, usage, local_queue)

    def give_back(self, queue: str, usage: Usage, local_queue: str | None) -> None:
        """Take usage back; work of a queue that is gone is counted nowhere."""
        if self.knows(queue):
            self.tree.remove_usage(queue, usage, local_queue)

    def grants(self, workload: Workload, replicas: int) -> Iterator[Grant | QuotaRefusal]:
        """Yield flavor assignments in the queue's order of preference, or one refusal."""
        fixed = self.find_fixed(workload)
        if fixed is not None:
            yield self._grant_fixed(workload, fixed, replicas)
            return
        spec = self.tree.get_spec(workload.queue)
        per_replica = compute_request(workload.resources, spec)
        request = {name: amount * replicas for name, amount in per_replica.items()}
        tried: Mapping[str, int] = {}
        for attempt in range(MAX_FLAVOR_TRIES):
            found = assign_flavors(
                self.tree,
                workload.queue,
                request,
                suits=lambda flavor: self._suits(flavor, workload),
                explain=lambda flavor: self._explain_misfit(flavor, workload),
                last_tried=tried,
            )
            flavors = tuple(sorted(set(found.flavors.values())))
            if found.mode is not FlavorMode.FIT:
                if attempt == 0:
                    yield _refusal(workload, found.reason, found.mode, found.usage, flavors)
                return
            cap = self.tree.fits(workload.queue, found.usage, workload.local_queue)
            if not cap.fits:
                if attempt == 0:
                    refused = _require(cap.reason)
                    yield QuotaRefusal(refused, cap.is_final, found.usage, flavors)
                return
            replica_usage = {
                FlavorResource(flavor, name): per_replica[name]
                for name, flavor in found.flavors.items()
            }
            yield Grant(replicas, replica_usage, flavors, found.borrow_level)
            tried = found.last_tried
            if all(index < 0 for index in tried.values()):
                return

    def flavor_nodes(self, flavors: tuple[str, ...], fleet_index: int) -> Bools | None:
        """Return the nodes that all these flavors stand for, None for every node."""
        both: Bools | None = None
        for flavor in flavors:
            mask = self._flavor_mask(flavor, fleet_index)
            if mask is not None:
                both = mask if both is None else both & mask
        return both

    def find_fixed(self, workload: Workload) -> Grant | None:
        """Return the only possible assignment of a class, for one replica, if there is just one."""
        key = (workload.queue, workload.class_key)
        if key not in self._fixed:
            self._fixed[key] = self._find_fixed(workload)
        return self._fixed[key]

    def _find_fixed(self, workload: Workload) -> Grant | None:
        spec = self.tree.get_spec(workload.queue)
        request = compute_request(workload.resources, spec)
        if spec.covers_everything:
            usage = {FlavorResource(ANY_FLAVOR, name): request[name] for name in sorted(request)}
            return Grant(1, usage, (), 0)
        flavors: dict[str, str] = {}
        for name in request:
            group = spec.find_group(name)
            if group is None or len(group.flavors) != 1:
                return None
            if not self._suits(group.flavors[0], workload):
                return None
            flavors[name] = group.flavors[0]
        usage = {FlavorResource(flavors[name], name): request[name] for name in sorted(request)}
        return Grant(1, usage, tuple(sorted(set(flavors.values()))), 0)

    def _grant_fixed(self, workload: Workload, fixed: Grant, replicas: int) -> Grant | QuotaRefusal:
        usage = fixed.replica_usage
        if replicas != 1:
            usage = {pair: amount * replicas for pair, amount in usage.items()}
        verdict = self.tree.fits(workload.queue, usage, workload.local_queue)
        if verdict.fits:
            return Grant(replicas, fixed.replica_usage, fixed.flavors, verdict.borrow_level)
        refused = _require(verdict.reason)
        return QuotaRefusal(refused, verdict.is_final, usage, fixed.flavors)

    def _suits(self, flavor: str, workload: Workload) -> bool:
        """Tell whether a flavor can have what the workload asks for at all."""
        if not self._has_model(flavor, workload):
            return False
        declared = self._flavors.get(flavor)
        labels = declared.node_labels if declared else {}
        selector = workload.placement.node_selector
        return all(selector.get(key, value) == value for key, value in labels.items())

    def _has_model(self, flavor: str, workload: Workload) -> bool:
        wanted = workload.resources.gpu_model
        model = self._model_of(flavor)
        return wanted is None or model is None or model == wanted

    def _model_of(self, flavor: str) -> str | None:
        """Return the GPU model that a flavor stands for, None where it stands for any."""
        declared = self._flavors.get(flavor)
        if declared is not None:
            return declared.gpu_model
        return flavor if flavor in self.models or flavor in KNOWN_MODELS else None

    def _explain_misfit(self, flavor: str, workload: Workload) -> Reason:
        """Return why a flavor does not suit; the model is told only where no flavor has it."""
        if self._has_model(flavor, workload):
            sentence = f"Flavor {flavor} does not match the selector."
            return Reason(Word.SELECTOR, sentence, "Loosen the node selector.")
        model = workload.resources.gpu_model
        return Reason(
            Word.NO_QUOTA_FOR_MODEL,
            f"Queue {workload.queue} has no quota for {model}; flavor {flavor} is another model.",
            "Ask for a GPU model that the queue has a quota for, name another queue, or have a "
            "quota added.",
        )

    def _flavor_mask(self, flavor: str, fleet_index: int) -> Bools | None:
        key = (flavor, fleet_index)
        if key not in self._masks:
            self._masks[key] = self._make_mask(flavor, self._fleets[fleet_index])
        return self._masks[key]

    def _make_mask(self, flavor: str, fleet: Fleet) -> Bools | None:
        declared = self._flavors.get(flavor)
        model = self._model_of(flavor)
        labels = declared.node_labels if declared else {}
        if model is None and not labels:
            return None
        mask = np.ones(len(fleet), dtype=np.bool_)
        if model is not None:
            index = fleet.models.index(model) if model in fleet.models else -2
            mask &= np.asarray((fleet.gpu_model == index).any(axis=0))
        for label, value in labels.items():
            mask &= fleet.label_mask(label, value)
        return mask


def models_of(fleets: Iterable[Fleet]) -> frozenset[str]:
    """Return every GPU model there is."""
    return frozenset(model for fleet in fleets for model in fleet.models)


def compute_request(resources: ResourceRequest, spec: ClusterQueueSpec) -> dict[str, int]:
    """Return what one replica asks of a queue, by resource.

    CPU and memory count only in queues that declare them: a quota on GPUs alone is common, and
    every job asks for some CPU. A MIG instance counts by its own resource name where the queue
    has it, else as its share of a GPU, rounded up.
    """
    request: dict[str, int] = {}
    if resources.mig_profile is not None:
        name = resource_of_profile(resources.mig_profile)
        if spec.find_group(name) is not None:
            request[name] = 1
        else:
            slices = int(resources.mig_profile.split("g.", 1)[0] or 1)
            request[GPU] = -(-1000 * slices // MIG_SLICES)
    elif resources.gpu_count:
        request[GPU] = resources.gpu_count * resources.gpu_milli
    for name, amount in ((CPU, resources.cpu_milli), (MEMORY, resources.memory_mib)):
        if amount and (spec.covers_everything or spec.find_group(name) is not None):
            request[name] = amount
    return request


def _require(reason: Reason | None) -> Reason:
    assert reason is not None, "a verdict that does not fit has a reason"
    return reason


def _refusal(
    workload: Workload,
    reason: Reason | None,
    mode: FlavorMode,
    usage: Usage,
    flavors: tuple[str, ...],
) -> QuotaRefusal:
    if reason is None:
        reason = Reason(Word.QUOTA_EXCEEDED, f"Queue {workload.queue} has too little unused.")
    is_final = mode is FlavorMode.NO_FIT and reason.word is not Word.QUOTA_EXCEEDED
    return QuotaRefusal(reason, is_final, usage, flavors)
