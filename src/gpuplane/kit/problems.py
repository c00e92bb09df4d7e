"""Problem documents (RFC 9457): the one shape of every refusal, with nothing private in it."""

import difflib
import itertools
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from gpuplane.kit.errors import FieldError, ProductError, Unprocessable

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 50
"""Field errors shown at most; a body of nothing but mistakes must not make a larger answer."""
MAX_LISTED = 1_500
"""Characters of known words listed at most: more than any object of the API has names for."""

_SENTENCES = {
    "missing": ("This field is required.", "Add it."),
    "int_type": ("This must be a whole number.", "Write it without quotes."),
    "int_parsing": ("This must be a whole number.", "Write it without quotes."),
    "int_from_float": ("This must be a whole number.", "Leave the decimals out."),
    "float_type": ("This must be a number.", "Write it without quotes."),
    "string_type": ("This must be text.", "Put it in quotes."),
    "bool_type": ("This must be true or false.", "Write it without quotes."),
    "bool_parsing": ("This must be true or false.", "Write it without quotes."),
    "list_type": ("This must be a list.", "Put it in square brackets."),
    "dict_type": ("This must be an object.", "Put it in braces."),
    "model_attributes_type": ("This must be an object.", "Put it in braces."),
    "model_type": ("This must be an object.", "Put it in braces."),
    "uuid_parsing": ("This must be an id (UUID).", "Copy the id from a list."),
    "uuid_type": ("This must be an id (UUID).", "Copy the id from a list."),
}


def problem_of(error: ProductError, request_id: str | None = None) -> dict[str, object]:
    """Return the problem document of an error; only its public parts."""
    problem: dict[str, object] = {
        "type": f"urn:gpuplane:problem:{error.code}",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "code": error.code,
        "detail": error.detail,
        "fix": error.fix,
    }
    if error.field is not None:
        problem["field"] = error.field
    if error.errors:
        problem["errors"] = [
            {"field": one.field, "reason": one.reason, "fix": one.fix} for one in error.errors
        ]
    if request_id is not None:
        problem["request_id"] = request_id
    for name, value in error.extra.items():
        problem.setdefault(name, value)
    return problem


def refused_fields(errors: Iterable[Mapping[str, Any]], body_type: object = None) -> ProductError:
    """Return the refusal that names every field pydantic found wrong.

    Args:
        errors: What pydantic reported (`type`, `loc`, `msg`, `ctx`).
        body_type: The type of the body, for the nearest names of unknown fields.
    """
    shown = itertools.islice(errors, MAX_ERRORS)  # nearest names of 100,000 fields take a minute
    found = tuple(_field_error(error, body_type) for error in shown)
    if not found:
        return Unprocessable("The request cannot be meant.", code="invalid_field")
    first = found[0]
    more = f" ({len(found) - 1} more fields are wrong.)" if len(found) > 1 else ""
    detail = f"{first.field}: {first.reason}{more}" if first.field else f"{first.reason}{more}"
    return Unprocessable(
        detail, code="invalid_field", field=first.field or None, fix=first.fix, errors=found
    )


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the fix that offers the nearest of the known words."""
    known = sorted(set(words))
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"Known are: {_listed(known)}." if known else "Remove it."


def _listed(words: Sequence[str]) -> str:
    """Return words one after another, as many as fit, and how many more there are."""
    ends = itertools.accumulate(len(word) + 2 for word in words)
    shown = max(sum(end <= MAX_LISTED for end in ends), 1)
    more = f" and {len(words) - shown} more" if shown < len(words) else ""
    return ", ".join(words[:shown]) + more


def field_path(location: Sequence[int | str]) -> str:
    """Return a location as people write it: `replicas[2].name`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "[" not in part and part != "__root__":  # a validator's own name is no field
            text += f".{part}" if text else part
    return text[:300]


def _field_error(error: Mapping[str, Any], body_type: object) -> FieldError:
    kind, location = str(error["type"]), tuple(error["loc"])
    context = error.get("ctx") or {}
    path = field_path(location)
    if kind == "refused":
        return FieldError(path, str(context["reason"]), str(context.get("fix", "")))
    if kind == "extra_forbidden":
        name = str(location[-1])[:100]
        known = fields_at(body_type, location[:-1])
        return FieldError(path, f"There is no field {name!r} here.", nearest(name, known))
    if kind in _SENTENCES:
        return FieldError(path, *_SENTENCES[kind])
    if kind in ("enum", "literal_error"):
        expected = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        reason = f"This is none of the known values: {_listed(sorted(expected))}."
        given = error.get("input")
        close = difflib.get_close_matches(given[:100], expected) if isinstance(given, str) else []
        return FieldError(path, reason, f"Did you mean {close[0]}?" if close else "Write one.")
    message = str(error["msg"]).removeprefix("Value error, ")
    message = re.sub(r"^(Input|String|List|Dictionary) should", "This should", message)
    reason = message if message.endswith(".") else f"{message}."
    return FieldError(path, reason, _fix_of(kind))


def _fix_of(kind: str) -> str:
    """Return the fix for a bound or a pattern; the reason has said which."""
    if kind.startswith(("greater_than", "less_than")):
        return "Give a number within the bound."
    if kind.endswith("too_long"):
        return "Make it shorter."
    if kind.endswith("too_short"):
        return "Make it longer."
    return "Write it as the API document describes (/api/v1/openapi.json)."


def fields_at(kind: object, location: Sequence[int | str]) -> set[str]:
    """Return the field names of the model that lies at a location inside a type."""
    kinds = _models_of(kind)
    for part in location:
        if isinstance(part, int):
            continue
        deeper: list[type[BaseModel]] = []
        for model in kinds:
            for name, field in model.model_fields.items():
                if part in (name, field.alias):
                    deeper += _models_of(field.annotation)
        kinds = deeper or kinds
    return {field.alias or name for model in kinds for name, field in model.model_fields.items()}


def _models_of(kind: object) -> list[type[BaseModel]]:
    """Return every model named in an annotation such as `list[Model] | None`."""
    if isinstance(kind, type):
        return [kind] if issubclass(kind, BaseModel) else []
    return [model for part in typing.get_args(kind) for model in _models_of(part)]
