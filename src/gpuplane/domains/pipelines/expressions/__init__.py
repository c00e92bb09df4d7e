"""Expressions in pipelines: CEL inside `{{ }}`, typed, checked when saved, counted when run."""

from gpuplane.domains.pipelines.expressions.checking import Known, check_text, references
from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind
from gpuplane.domains.pipelines.expressions.templates import (
    PlacedError,
    canonical,
    evaluate,
    find_texts,
    render,
    render_json,
)
from gpuplane.domains.pipelines.expressions.values import MAX_BYTES, MAX_STEPS, NOTHING, Meter

__all__ = [
    "MAX_BYTES",
    "MAX_STEPS",
    "NOTHING",
    "ExpressionError",
    "Kind",
    "Known",
    "Meter",
    "PlacedError",
    "canonical",
    "check_text",
    "evaluate",
    "find_texts",
    "references",
    "render",
    "render_json",
]
