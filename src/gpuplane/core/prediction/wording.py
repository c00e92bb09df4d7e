"""Sentences for people about classes, predictions and what they rest on.

Owns words only; every sentence follows from the values given.
"""

from gpuplane.core.prediction.classes import Classification, Confidence
from gpuplane.core.prediction.durations import Basis, Durations
from gpuplane.core.prediction.experience import Rung
from gpuplane.core.prediction.predicting import Expected, Prediction

MAX_REASONS = 2
"""Reasons told for a class: the strongest."""

_CONFIDENCES = {
    Confidence.HIGH: "Taken for",
    Confidence.MEDIUM: "Most likely",
    Confidence.LOW: "Perhaps",
}

_LIKE = {
    Rung.SERIES: "similar jobs of this project",
    Rung.USER: "jobs of this user of the same class, model and GPU count",
    Rung.TENANT_CLASS: "jobs of this tenant of the same class and GPU count",
    Rung.CLASS: "jobs of the same class and GPU count",
}


def describe_class(found: Classification) -> str:
    """Return the class with its strongest reasons."""
    kind = found.workload_class
    reasons = [each.sentence for each in found.evidence if each.workload_class is kind]
    told = " ".join(reasons[:MAX_REASONS])
    return f"{_CONFIDENCES[found.confidence]} {kind.value} ({found.confidence.value}): {told}"


def describe_durations(prediction: Prediction | None, chosen: Durations) -> str:
    """Return how long a job is expected to run, and on what that rests.

    Args:
        prediction: What is known of its like.
        chosen: The durations that are counted on (`choose_durations`).
    """
    learned = None if prediction is None else prediction.durations
    history = "" if learned is None else f" {_history(learned)}"
    if chosen.basis is Basis.ESTIMATE:
        return f"Its stated {told_duration(chosen.median_s)} is counted on.{history}"
    if chosen.basis is Basis.HISTORY:
        return history.strip()
    if chosen.basis is Basis.MAXIMUM:
        return (
            f"Too little like it has ended: half of its maximum of {told_duration(chosen.high_s)} "
            "is counted on."
        )
    return f"Nothing is known of its like: the default of {told_duration(chosen.median_s)}."


def describe_use(prediction: Prediction) -> tuple[str, ...]:
    """Return what is expected of GPU memory and utilisation, as far as it was measured."""
    said = []
    memory, busy = prediction.gpu_memory_mib, prediction.utilization_permille
    if memory is not None:
        said.append(
            f"{_samples(memory)} took up to {memory.median / 1024:.3g} GiB of a GPU in the middle, "
            f"{memory.high / 1024:.3g} GiB at the 90th percentile."
        )
    if busy is not None:
        said.append(f"{_samples(busy)} kept their GPUs {busy.median / 10:.0f} % busy.")
    return tuple(said)


def told_duration(seconds: int) -> str:
    """Return a duration in the two largest units that say something."""
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    left = max(0, seconds)
    parts: list[str] = []
    for name, size in units:
        count, left = divmod(left, size)
        if count or (name == "s" and not parts):
            parts.append(f"{count} {name}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def _history(learned: Expected) -> str:
    return (
        f"{_samples(learned)} ran {told_duration(learned.median)} in the middle, "
        f"{told_duration(learned.high)} at the 90th percentile."
    )


def _samples(found: Expected) -> str:
    return f"{found.samples} {_LIKE[found.rung]}"
