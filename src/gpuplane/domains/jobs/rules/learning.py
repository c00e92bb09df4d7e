"""What a job tells of itself and what an ended attempt of it teaches: pure translation."""

from collections.abc import Sequence
from typing import Any

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.lifecycle.jobs import StopIntent
from gpuplane.core.prediction.classes import KNOWN_WORDS, WorkloadClass, classify
from gpuplane.core.prediction.durations import Basis, Durations, choose_durations
from gpuplane.core.prediction.experience import Ending, Measure, Sample
from gpuplane.core.prediction.predicting import Prediction
from gpuplane.core.prediction.requests import RequestFacts, facts_of
from gpuplane.core.prediction.wording import describe_class, describe_durations, describe_use
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobSpec
from gpuplane.domains.jobs.rules.values import Attempt, Job

_ENDS_BY_HAND = frozenset({WorkloadClass.INTERACTIVE})
"""Classes whose work is over when its user says so: being stopped is their natural end."""

PREDICTION = "prediction"
"""The part of an attempt's explanation that holds what was expected of it."""


def request_facts(job: Job, *, simulated: bool) -> RequestFacts:
    """Return what a job asks, as class and prediction look at it."""
    return facts_of(
        job.spec,
        tenant=str(job.tenant_id),
        project=str(job.project_id),
        user=str(job.user_id),
        simulated=simulated,
        is_array=job.array_id is not None,
        labels=job.labels,
        known_words=KNOWN_WORDS,
    )


def class_of(attempt: Attempt, facts: RequestFacts) -> WorkloadClass:
    """Return the class an attempt was admitted as: what it teaches is looked up under that."""
    told = (attempt.explanation or {}).get(PREDICTION, {}).get("workload_class")
    known = {each.value: each for each in WorkloadClass}
    return known.get(told) or classify(facts).workload_class


def durations_of(spec: JobSpec, prediction: Prediction | None, default_s: int) -> Durations:
    """Return the durations that are counted on for a job."""
    learned = None if prediction is None else prediction.learned
    return choose_durations(spec.estimated_duration_s, learned, spec.max_duration_s, default_s)


def encode_expected(spec: JobSpec, prediction: Prediction) -> dict[str, Any]:
    """Return what is expected of an attempt as it is kept with it."""
    chosen = durations_of(spec, prediction, 0)
    found = prediction.classification
    return {
        "workload_class": found.workload_class.value,
        "confidence": found.confidence.value,
        "durations": None
        if chosen.basis is Basis.DEFAULT
        else {
            "low_s": chosen.low_s,
            "median_s": chosen.median_s,
            "high_s": chosen.high_s,
            "basis": chosen.basis.value,
        },
    }


def describe_expected(spec: JobSpec, prediction: Prediction) -> tuple[str, ...]:
    """Return the sentences about class, duration and use that are told with a placement."""
    chosen = durations_of(spec, prediction, 0)
    known = chosen.basis is not Basis.DEFAULT
    return (
        describe_class(prediction.classification),
        *((describe_durations(prediction, chosen),) if known else ()),
        *describe_use(prediction),
    )


def expected_of(attempt: Attempt) -> Durations | None:
    """Return the durations that were expected of an attempt when it was admitted."""
    told = (attempt.explanation or {}).get(PREDICTION, {}).get("durations")
    if told is None:
        return None
    return Durations(told["low_s"], told["median_s"], told["high_s"], Basis(told["basis"]))


def learned_of(attempt: Attempt) -> Durations | None:
    """Return the durations expected of an attempt if they came from similar work."""
    found = expected_of(attempt)
    return found if found is not None and found.basis is Basis.HISTORY else None


def describe_outcome(job: Job, attempt: Attempt, word: str) -> dict[str, Any]:
    """Return what was expected of a run that did its work, for the event that tells how it ended.

    Of what went on from a checkpoint nothing is said: it was the rest of a longer run.
    """
    expected = expected_of(attempt)
    resumed = attempt.number > 1 and job.last_checkpoint is not None
    if expected is None or resumed or word != Word.COMPLETED:
        return {}
    return {
        "expected_s": expected.median_s,
        "expected_high_s": expected.high_s,
        "expected_basis": expected.basis.value,
    }


def sample_of(
    attempt: Attempt,
    workload_class: WorkloadClass,
    runs: Sequence[tuple[int, int]],
) -> Sample | None:
    """Return what an ended attempt teaches, None when that is nothing.

    A duration is learned from work that was done: of what failed, was preempted or was lost only
    its use of GPUs is known. What was resumed from a checkpoint took the time of all its runs.

    Args:
        attempt: The attempt, ended.
        workload_class: The class it was admitted as.
        runs: From when until when the attempts ran whose work it goes on with, itself the last.
    """
    if attempt.started_at is None or attempt.ended_at is None:
        return None
    ending = _ending_of(attempt)
    measures: dict[Measure, int] = {}
    if ending is Ending.ITSELF or (ending is Ending.BY_HAND and workload_class in _ENDS_BY_HAND):
        ran_ms = sum(max(0, until - since) for since, until in runs)
        measures[Measure.DURATION_S] = -(-ran_ms // MS_PER_S)
    peaks = [each.gpu_memory_peak_mib for each in attempt.replicas]
    measured = [each for each in peaks if each is not None]
    if measured:
        measures[Measure.GPU_MEMORY_MIB] = max(measured)
    means = [each.gpu_utilization_permille for each in attempt.replicas]
    used = [each for each in means if each is not None]
    if used:
        measures[Measure.UTILIZATION_PERMILLE] = sum(used) // len(used)
    if not measures and ending is Ending.OTHERWISE:
        return None
    return Sample(attempt.ended_at, measures, ending)


def _ending_of(attempt: Attempt) -> Ending:
    if attempt.exit_reason in (Word.COMPLETED, Word.TIMED_OUT):
        return Ending.ITSELF  # at its maximum too: it held its devices for so long
    if attempt.stop_intent is StopIntent.CANCEL:
        return Ending.BY_HAND
    return Ending.OTHERWISE
