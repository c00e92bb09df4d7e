"""The values of a run's parameters: defaults, types, allowed values; every mistake at once."""

import math
from collections.abc import Mapping
from typing import Any

from gpuplane.domains.pipelines.documents.models import Parameter, ParameterType, PipelineSpec
from gpuplane.domains.pipelines.errors import BadParameters
from gpuplane.kit.errors import FieldError
from gpuplane.kit.problems import nearest

_WORDS = {
    ParameterType.STRING: "text",
    ParameterType.INTEGER: "a whole number",
    ParameterType.NUMBER: "a number",
    ParameterType.BOOLEAN: "true or false",
    ParameterType.LIST: "a list",
    ParameterType.OBJECT: "an object",
}


def resolve_parameters(spec: PipelineSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every parameter of a run.

    Raises:
        BadParameters: With every parameter that is unknown, missing or of another kind.
    """
    errors: list[FieldError] = []
    for name in sorted(set(given) - set(spec.parameters)):
        reason = f"The pipeline has no parameter {name[:100]!r}."
        errors.append(FieldError(f"parameters.{name}", reason, nearest(name, spec.parameters)))
    values: dict[str, Any] = {}
    for name, parameter in spec.parameters.items():
        if name in given:
            problem = check_value(parameter, given[name])
            if problem is not None:
                errors.append(FieldError(f"parameters.{name}", problem, _fix(parameter)))
            values[name] = given[name]
        elif parameter.required and parameter.default is None:
            errors.append(
                FieldError(f"parameters.{name}", "This parameter is required.", "Give it.")
            )
        else:
            values[name] = parameter.default
    if errors:
        first = errors[0]
        more = f" ({len(errors) - 1} more.)" if len(errors) > 1 else ""
        raise BadParameters(
            f"{first.field}: {first.reason}{more}",
            field=first.field,
            fix=first.fix,
            errors=tuple(errors[:100]),
        )
    return values


def check_value(parameter: Parameter, value: Any) -> str | None:
    """Return why a parameter cannot hold a value, None if it can."""
    if parameter.type is not None and not _is_of(parameter.type, value):
        return f"This must be {_WORDS[parameter.type]}."
    if parameter.enum is not None and not any(
        value == each and type(value) is type(each) for each in parameter.enum
    ):
        return "This is none of the allowed values."
    return None


def _fix(parameter: Parameter) -> str:
    if parameter.enum is not None:
        return f"Allowed are: {', '.join(str(each)[:50] for each in parameter.enum[:20])}."
    return ""


def _is_of(kind: ParameterType, value: Any) -> bool:
    match kind:
        case ParameterType.STRING:
            return isinstance(value, str)
        case ParameterType.INTEGER:
            return isinstance(value, int) and not isinstance(value, bool)
        case ParameterType.NUMBER:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and math.isfinite(value)
        case ParameterType.BOOLEAN:
            return isinstance(value, bool)
        case ParameterType.LIST:
            return isinstance(value, list)
        case ParameterType.OBJECT:
            return isinstance(value, dict)
