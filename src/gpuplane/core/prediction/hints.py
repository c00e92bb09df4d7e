"""The hint that placement may use: what a prediction says about where a job had better run.

Owns the coarse values only, so that jobs of one kind stay one workload class for the scheduler;
how a node is scored by them is the scheduler's (`core.scheduling.hints`).
"""

from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.amounts import MIB_PER_GIB
from gpuplane.core.prediction.classes import Confidence, WorkloadClass
from gpuplane.core.prediction.durations import Basis, Durations
from gpuplane.core.prediction.predicting import Prediction

SHORT_S = 3600
"""Work whose ninetieth percentile is below this is short: whole nodes need not be kept from it."""
LONG_S = 6 * 3600
"""Work whose median is above this is long: a bad place costs it for hours."""

MEMORY_STEPS_GIB = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192, 288)
"""Peaks of memory are rounded up to these: about the sizes in which GPUs are made."""

_SHORT_BY_NATURE = frozenset({WorkloadClass.INTERACTIVE, WorkloadClass.HPO_TRIAL})


class Length(StrEnum):
    """How long work runs, as far as its place depends on it."""

    SHORT = "short"
    LONG = "long"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PlacementHint:
    """What placement is told of a job; equal for jobs that it should treat alike.

    Args:
        workload_class: The class it is taken for; only told when that is more than a guess.
        memory_gib: The size of GPU memory that its peak fits into, None when never measured.
    """

    workload_class: WorkloadClass | None
    length: Length
    memory_gib: int | None = None


def hint_of(prediction: Prediction, durations: Durations) -> PlacementHint | None:
    """Return the hint of a prediction, None when it says nothing that placement could use.

    Args:
        prediction: What is expected of the job.
        durations: The durations that are counted on (`choose_durations`).
    """
    found = prediction.classification
    kind = None if found.confidence is Confidence.LOW else found.workload_class
    length = _length(kind, durations)
    memory = prediction.gpu_memory_mib
    needed = None if memory is None else _step_gib(memory.high)
    if length is Length.UNKNOWN and needed is None:
        return None
    return PlacementHint(kind, length, needed)


def _length(kind: WorkloadClass | None, durations: Durations) -> Length:
    if kind is WorkloadClass.SERVING:
        return Length.LONG
    if durations.basis in (Basis.HISTORY, Basis.ESTIMATE):
        if durations.high_s <= SHORT_S:
            return Length.SHORT
        if durations.median_s >= LONG_S:
            return Length.LONG
        return Length.UNKNOWN
    return Length.SHORT if kind in _SHORT_BY_NATURE else Length.UNKNOWN


def _step_gib(memory_mib: int) -> int:
    needed = -(-memory_mib // MIB_PER_GIB)
    return next((step for step in MEMORY_STEPS_GIB if step >= needed), needed)
