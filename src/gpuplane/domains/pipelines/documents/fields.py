"""The small types that pipeline documents are made of, and the limits they keep.

A field that may hold an expression is checked when it is written plainly, and once more when the
expression has been evaluated; then validation is told so (`RENDERED`).
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

from gpuplane.kit.bodies import refusal

MAX_STEPS = 10_000
"""Steps of a pipeline, nested ones included."""
MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
MAX_NESTING = 6
"""Containers (PARALLEL, LOOP) inside one another."""
MAX_LOOP_ITEMS = 10_000
"""Iterations of one loop; more belong into an array of jobs."""
MAX_PARALLEL = 10_000
MAX_PARAMETERS = 500
MAX_TRIGGERS = 20
MAX_SECONDS = 315_360_000
"""Ten years."""
MAX_STRING = 65_536
"""Characters of one text of a document; a FUNCTION's code may be longer."""
MAX_CODE = 512 * 1024

RENDERED: Mapping[str, bool] = {"rendered": True}
"""Context of validation once expressions have been evaluated."""

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


def is_templated(value: object) -> bool:
    """Return whether a value is text with an expression in it."""
    return isinstance(value, str) and "{{" in value


def _allow_expression(
    value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
) -> Any:
    rendered = bool(info.context and info.context.get("rendered"))
    return value if is_templated(value) and not rendered else handler(value)


TEMPLATED = WrapValidator(_allow_expression)
"""Marks a field that may be given as an expression."""


def _check_word(value: str) -> str:
    if not _WORD.fullmatch(value):
        cleaned = re.sub(r"[^A-Za-z0-9_-]+", "-", value)[:100].lstrip("-") or "step-1"
        raise refusal(
            "An id is 1 to 100 letters, digits, '_' and '-', and does not begin with '-'.",
            f"For example {cleaned!r}.",
        )
    return value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


LOWER = BeforeValidator(_lower)
"""Takes words of enumerations in any case, as the specification writes them in both."""

Word = Annotated[
    str,
    AfterValidator(_check_word),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_-]{0,99}$"}),
]
"""The id of a step or the name of a parameter."""
String = Annotated[str, Field(strict=True, max_length=MAX_STRING)]
Code = Annotated[str, Field(strict=True, min_length=1, max_length=MAX_CODE)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=MAX_SECONDS, allow_inf_nan=False), TEMPLATED]
SecondsFromZero = Annotated[
    float, Field(strict=True, ge=0, le=MAX_SECONDS, allow_inf_nan=False), TEMPLATED
]
Whole = Annotated[int, Field(strict=True), TEMPLATED]
Truth = Annotated[bool, Field(strict=True), TEMPLATED]
