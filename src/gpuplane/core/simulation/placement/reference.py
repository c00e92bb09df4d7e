"""The published policies, written plainly from their description, to measure ours against.

Owns FGD, BestFit, DotProd, GpuPacking, GpuClustering and Random with their own bookkeeping on
purpose: nothing here is shared with the decision core, so that neither can hide the other's fault.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023, section 5 and its public simulator: whole scores of 0–100 by
truncation, ties to the first node by name, all nodes scored, no other plug-in active.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.simulation.placement.arrivals import Chance
from gpuplane.core.simulation.placement.files import TraceNode, TracePod

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_CPU_MILLI = 128_000
MAX_GPU_MILLI = 8000
"""CPU and GPU share of the largest node, by which the published scores are normalised."""
TYPICAL_SHARE = 0.95
_NO = np.iinfo(np.int64).min


class ReferencePolicy(StrEnum):
    """The policies of the published comparison."""

    FGD = "fgd"
    BEST_FIT = "bestfit"
    DOT_PROD = "dotprod"
    GPU_PACKING = "gpupacking"
    GPU_CLUSTERING = "gpuclustering"
    RANDOM = "random"


class TypicalPod(NamedTuple):
    """One kind of pod in the mix; memory is not part of it."""

    cpu_milli: int
    gpu_milli: int
    gpu_count: int
    models: str


def compute_typical_pods(pods: Sequence[TracePod]) -> tuple[tuple[TypicalPod, float], ...]:
    """Return the most frequent kinds that cover 95 % of the pods, with their frequency."""
    counted = Counter(
        TypicalPod(pod.cpu_milli, pod.gpu_milli, pod.gpu_count, pod.models) for pod in pods
    )
    ranked = sorted(counted.items(), key=lambda item: (item[1], item[0]), reverse=True)
    chosen: list[tuple[TypicalPod, int]] = []
    covered = 0
    for kind, count in ranked:
        if covered >= TYPICAL_SHARE * len(pods):
            break
        chosen.append((kind, count))
        covered += count
    return tuple((kind, count / covered) for kind, count in chosen)


@dataclass(eq=False)
class Nodes:
    """What is free, by node; index i is the i-th node given.

    Attributes:
        free: Free share of each GPU, 0 where there is none, shape (node, gpu).
        gpu_count: GPUs of each node. `cpu`, `memory`: what is free of them.
        models: Model of each node's GPUs.
        classes: Kinds of pods on each node, as bits (`GpuClustering`).
    """

    free: Ints
    gpu_count: Ints
    cpu: Ints
    memory: Ints
    models: tuple[str, ...]
    classes: Ints
    _accepted: dict[str, Bools] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Sequence[TraceNode]) -> "Nodes":
        """Return the empty nodes of a list."""
        count = np.array([node.gpu_count for node in nodes], dtype=np.int64)
        width = max(1, int(count.max()))
        exists = np.arange(width) < count[:, None]
        return cls(
            free=exists * np.int64(WHOLE_GPU_MILLI),
            gpu_count=count,
            cpu=np.array([node.cpu_milli for node in nodes], dtype=np.int64),
            memory=np.array([node.memory_mib for node in nodes], dtype=np.int64),
            models=tuple(node.model for node in nodes),
            classes=np.zeros(len(nodes), dtype=np.int64),
        )

    def accepted(self, models: str) -> Bools:
        """Return the nodes whose model is one of those joined by `|`; "" accepts all."""
        found = self._accepted.get(models)
        if found is None:
            names = set(models.split("|"))
            found = np.array([not models or model in names for model in self.models])
            self._accepted[models] = found
        return found

    def fitting(self, pod: TracePod, where: Ints) -> Bools:
        """Return which of the nodes can take the pod now."""
        fits = self.accepted(pod.models)[where]
        fits = fits & (self.cpu[where] >= pod.cpu_milli) & (self.memory[where] >= pod.memory_mib)
        if pod.gpu_count:
            enough = (self.free[where] >= pod.gpu_milli).sum(axis=1)
            fits &= enough >= pod.gpu_count
        return np.asarray(fits)

    def take(self, pod: TracePod, node: int, gpus: Sequence[int]) -> None:
        """Give the pod its share of these GPUs, and its CPU and memory."""
        self.cpu[node] -= pod.cpu_milli
        self.memory[node] -= pod.memory_mib
        self.free[node, list(gpus)] -= pod.gpu_milli
        self.classes[node] |= _class_bit(pod)


def _class_bit(pod: TracePod) -> int:
    if not pod.gpu_count:
        return 0
    return 1 if pod.is_share else 1 << pod.gpu_count


class Fragments:
    """The fragment of node states for a fixed mix of typical pods."""

    def __init__(self, nodes: Nodes, typical: Sequence[tuple[TypicalPod, float]]) -> None:
        self._nodes = nodes
        asking = [(kind, share) for kind, share in typical if kind.gpu_count]
        kinds = [kind for kind, _ in asking]
        levels = sorted({kind.gpu_milli for kind in kinds})
        self._levels = np.array(levels, dtype=np.int64)
        self._level_of = np.array([levels.index(kind.gpu_milli) for kind in kinds], dtype=np.intp)
        self._gpu_count = np.array([kind.gpu_count for kind in kinds], dtype=np.int64)
        self._cpu = np.array([kind.cpu_milli for kind in kinds], dtype=np.int64)
        self._accepted = np.array([nodes.accepted(kind.models) for kind in kinds], dtype=np.bool_)
        self._shares = np.array([share for _, share in asking], dtype=np.float64)
        self._cpu_only = sum(share for kind, share in typical if not kind.gpu_count)

    def of_states(self, node: Ints, free: Ints, cpu: Ints) -> NDArray[np.float64]:
        """Return the expected idle GPU share that a typical pod cannot use, per state.

        Args:
            node: The node of each state, shape (state,).
            free: Free share of each GPU, shape (state, gpu).
            cpu: Free CPU, shape (state,).
        """
        idle = free.sum(axis=1)
        total: NDArray[np.float64] = self._cpu_only * idle.astype(np.float64)
        if not len(self._levels):
            return total
        fits = free[:, :, None] >= self._levels
        enough = fits.sum(axis=1)[:, self._level_of]
        unusable = np.where(fits, 0, free[:, :, None]).sum(axis=1)[:, self._level_of]
        hosts = (enough >= self._gpu_count) & (cpu[:, None] >= self._cpu)
        hosts &= self._accepted[:, node].T
        fragments = np.where(hosts, unusable, idle[:, None])
        return np.asarray(total + fragments @ self._shares)

    def of_cluster(self) -> float:
        """Return the fragment of all nodes as they are, in milli-GPU."""
        nodes = self._nodes
        every = np.arange(len(nodes.cpu))
        return float(self.of_states(every, nodes.free, nodes.cpu).sum())


Score = Callable[[TracePod, Ints], Ints]


class ReferencePlacer:
    """Places pods one by one by a published policy; a pod that fits nowhere is dropped."""

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        pods: Sequence[TracePod],
        policy: ReferencePolicy,
        seed: int,
    ) -> None:
        """Start with empty nodes.

        Args:
            nodes: In the order in which ties go.
            pods: The original list: its mix is the typical one.
            policy: How nodes are scored.
            seed: Of the policy `random`.
        """
        self.nodes = Nodes.of(nodes)
        self.fragments = Fragments(self.nodes, compute_typical_pods(pods))
        self._policy = policy
        self._chance = Chance(seed, "random policy")
        scores: dict[ReferencePolicy, Score] = {
            ReferencePolicy.FGD: self._fgd,
            ReferencePolicy.BEST_FIT: self._best_fit,
            ReferencePolicy.DOT_PROD: self._dot_prod,
            ReferencePolicy.GPU_PACKING: self._gpu_packing,
            ReferencePolicy.GPU_CLUSTERING: self._gpu_clustering,
            ReferencePolicy.RANDOM: _no_score,
        }
        self._score = scores[policy]
        self._rows: dict[TracePod, tuple[Ints, int]] = {}
        self._touched: list[int] = []

    def place(self, pod: TracePod) -> bool:
        """Place the pod; tell whether it fitted."""
        scores = self._scores_of(pod)
        node = self._pick_node(scores)
        if node is None:
            return False
        self.nodes.take(pod, node, self._pick_gpus(pod, node))
        self._touched.append(node)
        return True

    def cpu_milli_left(self) -> int:
        """Return the CPU that is free on all nodes."""
        return int(self.nodes.cpu.sum())

    def fragment_milli(self) -> float:
        """Return the idle GPU share that a typical pod cannot use, expected, of all nodes."""
        return self.fragments.of_cluster()

    def _scores_of(self, pod: TracePod) -> Ints:
        """Return the score of every node, kept per kind of pod and renewed where nodes changed."""
        kind = TracePod("", pod.cpu_milli, pod.memory_mib, pod.gpu_count, pod.gpu_milli, pod.models)
        found = self._rows.get(kind)
        if found is None:
            scores = np.full(len(self.nodes.cpu), _NO, dtype=np.int64)
            where = np.arange(len(scores))
        else:
            scores, seen = found
            where = np.array(sorted(set(self._touched[seen:])), dtype=np.int64)
        if len(where):
            fits = self.nodes.fitting(kind, where)
            scores[where] = _NO
            fitting = where[fits]
            if len(fitting):
                scores[fitting] = self._score(kind, fitting)
        self._rows[kind] = (scores, len(self._touched))
        return scores

    def _pick_node(self, scores: Ints) -> int | None:
        if self._policy is ReferencePolicy.RANDOM:
            fitting = np.flatnonzero(scores != _NO)
            return int(fitting[self._chance.draw_below(len(fitting))]) if len(fitting) else None
        # BestFit's scores are normalised to 0–100 over the fitting nodes; only the best node gets
        # 100, so the order at the top, which is all that is used, stays as it is.
        node = int(scores.argmax())
        return node if scores[node] != _NO else None

    def _pick_gpus(self, pod: TracePod, node: int) -> list[int]:
        free = self.nodes.free[node]
        fitting = [g for g in range(len(free)) if pod.gpu_count and free[g] >= pod.gpu_milli]
        if not pod.is_share:
            return fitting[: pod.gpu_count]
        if self._policy is ReferencePolicy.RANDOM:
            return [fitting[self._chance.draw_below(len(fitting))]]
        if self._policy is ReferencePolicy.FGD:
            scores = self._share_scores(pod, np.array([node]))[0]
            return [int(scores.argmax())]
        return [min(fitting, key=lambda g: (free[g], g))]

    # The scores: (pod, fitting nodes) -> one whole number a node, higher is better.

    def _fgd(self, pod: TracePod, where: Ints) -> Ints:
        if pod.is_share:
            return np.asarray(self._share_scores(pod, where).max(axis=1))
        free = self.nodes.free[where].copy()
        if pod.gpu_count:
            whole = free == WHOLE_GPU_MILLI
            free[whole & (whole.cumsum(axis=1) <= pod.gpu_count)] = 0
        cpu = self.nodes.cpu[where]
        before = self.fragments.of_states(where, self.nodes.free[where], cpu)
        after = self.fragments.of_states(where, free, cpu - pod.cpu_milli)
        return _squash(before - after)

    def _share_scores(self, pod: TracePod, where: Ints) -> Ints:
        """Return the score of every GPU for a share, `_NO` where it does not fit."""
        nodes = self.nodes
        scores = np.full((len(where), nodes.free.shape[1]), _NO, dtype=np.int64)
        before = self.fragments.of_states(where, nodes.free[where], nodes.cpu[where])
        place, gpu = np.nonzero(nodes.free[where] >= pod.gpu_milli)
        node = where[place]
        free = nodes.free[node].copy()
        free[np.arange(len(free)), gpu] -= pod.gpu_milli
        after = self.fragments.of_states(node, free, nodes.cpu[node] - pod.cpu_milli)
        scores[place, gpu] = _squash(before[place] - after)
        return scores

    def _best_fit(self, pod: TracePod, where: Ints) -> Ints:
        cpu = (self.nodes.cpu[where] - pod.cpu_milli) / MAX_CPU_MILLI * 0.5
        gpu = (self.nodes.free[where].sum(axis=1) - pod.total_milli) / MAX_GPU_MILLI * 0.5
        return _truncate((1.0 - (cpu + gpu)) * 100)

    def _dot_prod(self, pod: TracePod, where: Ints) -> Ints:
        cpu = self.nodes.cpu[where] / MAX_CPU_MILLI * (pod.cpu_milli / MAX_CPU_MILLI)
        idle = self.nodes.free[where].sum(axis=1)
        gpu = idle / MAX_GPU_MILLI * (pod.total_milli / MAX_GPU_MILLI)
        return _truncate(100.0 * (1 - (cpu + gpu) / 2))

    def _gpu_packing(self, pod: TracePod, where: Ints) -> Ints:
        scores = np.zeros(len(where), dtype=np.int64)
        if not pod.gpu_count:
            return scores
        free = np.sort(self.nodes.free[where], axis=1)
        fits = free >= pod.gpu_milli
        chosen = fits & (fits.cumsum(axis=1) <= pod.gpu_count)
        fully_free = (free == WHOLE_GPU_MILLI).sum(axis=1)
        opened = (chosen & (free == WHOLE_GPU_MILLI)).sum(axis=1)
        percent = np.where(chosen, free * 100 // WHOLE_GPU_MILLI, 0).sum(axis=1)
        scores = np.maximum(100 - percent // 10, 50)
        scores = np.where(opened > 0, np.maximum(50 - opened, 33), scores)
        is_idle = fully_free == self.nodes.gpu_count[where]
        return np.asarray(np.where(is_idle, np.maximum(33 - fully_free, fully_free), scores))

    def _gpu_clustering(self, pod: TracePod, where: Ints) -> Ints:
        if not pod.gpu_count:
            return np.zeros(len(where), dtype=np.int64)
        bit = _class_bit(pod)
        classes = self.nodes.classes[where]
        band = np.where(classes & bit, 50, 0)
        band = np.where(classes == bit, 75, band)
        band = np.where(classes == 0, 25, band)
        idle = self.nodes.free[where].sum(axis=1)
        return np.asarray(band + 25 * (MAX_GPU_MILLI - idle) // MAX_GPU_MILLI)


def _no_score(pod: TracePod, where: Ints) -> Ints:
    return np.zeros(len(where), dtype=np.int64)


def _squash(gradient: NDArray[np.float64]) -> Ints:
    """Return the logistic of a gradient in whole GPUs as 0–100."""
    return _truncate(100 / (1 + np.exp(-gradient / WHOLE_GPU_MILLI)))


def _truncate(scores: NDArray[np.float64]) -> Ints:
    return np.trunc(scores).astype(np.int64)
