"""Makes the bodies and sentences that tell what is expected of a job."""

from gpuplane.core.prediction.predicting import Expected
from gpuplane.core.prediction.wording import describe_class, describe_durations, describe_use
from gpuplane.domains.jobs.schemas import (
    ChangeOut,
    FieldChangeOut,
    PredictionOut,
    QuantilesOut,
)
from gpuplane.domains.jobs.service import Outlook, SmallestChange


def prediction_body(outlook: Outlook) -> PredictionOut | None:
    """Return what is expected of a job, None where nothing was asked of its like."""
    found, chosen = outlook.prediction, outlook.durations
    if found is None or chosen is None:
        return None
    kind = found.classification
    return PredictionOut(
        workload_class=kind.workload_class.value,
        confidence=kind.confidence.value,
        evidence=[each.sentence for each in kind.evidence],
        duration_seconds=chosen.median_s,
        duration_seconds_p90=chosen.high_s,
        basis=chosen.basis.value,
        durations_seconds=_quantiles(found.durations),
        gpu_memory_mib=_quantiles(found.gpu_memory_mib),
        gpu_utilization_permille=_quantiles(found.utilization_permille),
        sentence=describe_durations(found, chosen),
    )


def change_body(change: SmallestChange) -> ChangeOut:
    """Return the smallest change that would start a job, one field or two."""
    also = None
    if change.also is not None:
        field, value = change.also
        also = FieldChangeOut(field=field, value=value)
    return ChangeOut(field=change.field, value=change.value, sentence=change.sentence, also=also)


def expected_sentences(outlook: Outlook) -> list[str]:
    """Return what is expected of a job and on what that rests, in sentences."""
    found, chosen = outlook.prediction, outlook.durations
    if found is None or chosen is None:
        return []
    return [
        describe_class(found.classification),
        describe_durations(found, chosen),
        *describe_use(found),
    ]


def _quantiles(found: Expected | None) -> QuantilesOut | None:
    if found is None:
        return None
    return QuantilesOut(
        low=found.low,
        median=found.median,
        high=found.high,
        samples=found.samples,
        likeness=found.rung.value,
    )
