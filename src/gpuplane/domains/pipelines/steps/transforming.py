"""TRANSFORM and CONDITION: expressions over what earlier steps left."""

from typing import Any

from gpuplane.core.runs.plans import Answer, Completed, StepCall
from gpuplane.domains.pipelines.documents.configs import ConditionConfig, TransformConfig
from gpuplane.domains.pipelines.expressions import (
    ExpressionError,
    Meter,
    PlacedError,
    evaluate,
)
from gpuplane.domains.pipelines.steps.names import names_of, rendered, truth


async def transform(call: StepCall) -> Answer:
    """Answer with what a TRANSFORM's expressions come to."""
    config = rendered(call, TransformConfig)
    names = names_of(call, input=config.input)
    meter = Meter()
    if config.expression is not None:
        return Completed(
            as_outputs(_evaluate("config.expression", config.expression, names, meter))
        )
    return Completed(
        {
            name: _transformed(f"config.outputs.{name}", value, names, meter)
            for name, value in (config.outputs or {}).items()
        }
    )


async def choose(call: StepCall) -> Answer:
    """Answer which of the steps that a CONDITION names are skipped."""
    config = rendered(call, ConditionConfig)
    holds = truth(config.expression, call, "config.expression")
    prefix = call.key[: call.key.rfind("/") + 1]
    other = config.else_steps if holds else config.then_steps
    return Completed({"result": holds}, skip=tuple(prefix + step for step in other))


def as_outputs(value: Any) -> dict[str, Any]:
    """Return a result as outputs: an object is one already."""
    return value if isinstance(value, dict) else {"result": value}


def _transformed(path: str, value: Any, names: dict[str, Any], meter: Meter) -> Any:
    if isinstance(value, str):
        return _evaluate(path, value, names, meter)
    if isinstance(value, list):
        return [
            _transformed(f"{path}[{place}]", each, names, meter) for place, each in enumerate(value)
        ]
    if isinstance(value, dict):
        return {
            key: _transformed(f"{path}.{key}", each, names, meter) for key, each in value.items()
        }
    return value


def _evaluate(path: str, text: str, names: dict[str, Any], meter: Meter) -> Any:
    try:
        return evaluate(text, names, meter)
    except ExpressionError as error:
        raise PlacedError(path, error) from error
