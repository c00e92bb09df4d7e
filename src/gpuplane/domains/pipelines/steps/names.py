"""What the expressions of a step mean in its run, and how their mistakes become answers."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from gpuplane.core.runs.plans import Answer, Failed, Skipped, StepCall
from gpuplane.domains.pipelines.documents.configs import Config, config_of
from gpuplane.domains.pipelines.documents.models import StepType
from gpuplane.domains.pipelines.expressions import (
    NOTHING,
    ExpressionError,
    Kind,
    PlacedError,
    evaluate,
    render_json,
)
from gpuplane.kit.clock import instant_to_text
from gpuplane.kit.problems import refused_fields

T = TypeVar("T")
Inner = Callable[[StepCall], Awaitable[Answer]]

_RAW: dict[StepType, frozenset[str]] = {
    StepType.FUNCTION: frozenset({"code", "entrypoint"}),
    StepType.PARALLEL: frozenset({"branches", "steps"}),
    StepType.LOOP: frozenset({"steps", "as"}),
    StepType.TRANSFORM: frozenset({"expression", "outputs"}),
    StepType.CONDITION: frozenset({"expression", "then_steps", "else_steps"}),
}
"""Fields that are not evaluated with the rest of the config."""


class StepOutputs(Mapping[str, Any]):
    """`steps`: what each step left that this one comes after, the nearest of a name first."""

    def __init__(self, call: StepCall) -> None:
        self._outputs = call.outputs
        # Siblings first: the parts of the own key from the inside out.
        parts = call.key.split("/")[:-1]
        self._prefixes = ["/".join([*parts[:count], ""]) for count in range(len(parts), -1, -1)]

    def __getitem__(self, step: str) -> Any:
        for prefix in self._prefixes:
            if prefix + step in self._outputs:
                left = self._outputs[prefix + step]
                return {"outputs": NOTHING if left is None else left}
        raise KeyError(step)

    def __contains__(self, step: object) -> bool:
        return any(f"{prefix}{step}" in self._outputs for prefix in self._prefixes)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key.rpartition("/")[2] for key in self._outputs))

    def __len__(self) -> int:
        return len(list(iter(self)))


def names_of(call: StepCall, **more: Any) -> dict[str, Any]:
    """Return what names mean in the expressions of a step."""
    context = call.context
    return {
        "params": dict(call.params),
        "steps": StepOutputs(call),
        "services": context.get("services") or {},
        "components": context.get("components") or {},
        "run": {
            "id": str(call.run_id),
            "started_at": instant_to_text(context.get("started_at") or call.now),
            "name": context.get("pipeline") or "",
        },
        "trigger": context.get("trigger"),
        **call.scope,
        **more,
    }


def rendered(call: StepCall, kind: type[T]) -> T:
    """Return a step's config, evaluated and typed.

    Raises:
        PlacedError: If an expression comes to nothing.
        ValidationError: If what it comes to does not fit its field.
    """
    step_type = StepType(call.input["type"])
    raw = _RAW.get(step_type, frozenset())
    given = call.input["config"]
    plain = {name: value for name, value in given.items() if name not in raw}
    config = {**given, **render_json(plain, names_of(call), "config")}
    typed: Config = config_of(step_type, config, rendered=True)
    if not isinstance(typed, kind):
        raise TypeError(f"{call.key} is no {kind.__name__}")
    return typed


def cache_input(call: StepCall) -> Any:
    """Return what of a step decides about its output: its config with expressions filled in."""
    given = call.input["config"]
    names = names_of(call)
    config = {
        name: value if name in ("code", "steps", "branches") else _filled(value, names)
        for name, value in given.items()
    }
    return {"type": call.input["type"], "config": config}


def _filled(value: Any, names: dict[str, Any]) -> Any:
    """Return a value with its expressions filled in; one that fails will fail in the step too."""
    try:
        return render_json(value, names)
    except PlacedError:
        return value


def guarded(inner: Inner) -> Inner:
    """Return a handler that skips by its step's condition and answers mistakes of expressions."""

    async def run(call: StepCall) -> Answer:
        try:
            if _is_first(call) and not _holds(call):
                return Skipped("Its condition is false.")
            return await inner(call)
        except PlacedError as error:
            return failed_expression(error.error, error.path)
        except ExpressionError as error:
            return failed_expression(error, "")
        except ValidationError as error:
            refused = refused_fields(error.errors(include_url=False))
            place = "config." if refused.errors[0].field else "config: "
            return Failed("InvalidConfig", f"{place}{refused.detail}", is_final=True)

    return run


def failed_expression(error: ExpressionError, path: str) -> Failed:
    """Return the answer that tells where an expression failed and why."""
    where = f"{path}, column {error.column}" if path else f"Column {error.column}"
    detail = {"path": path, "column": error.column, "fix": error.fix}
    return Failed(str(error.kind), f"{where}: {error.message}", is_final=True, detail=detail)


def _is_first(call: StepCall) -> bool:
    return call.state is None and call.event is None and not call.children and not call.timed_out


def _holds(call: StepCall) -> bool:
    condition = call.input.get("condition")
    if condition is None or isinstance(condition, bool):
        return condition is not False
    return truth(condition, call, "condition")


def truth(expression: Any, call: StepCall, path: str) -> bool:
    """Return whether an expression holds; null, which a skipped step left, does not.

    Raises:
        PlacedError: If it comes to something else than true or false.
    """
    if isinstance(expression, bool):
        return expression
    try:
        found = evaluate(expression, names_of(call))
        if isinstance(found, bool) or found is None:
            return bool(found)
        if found in ("true", "True", "false", "False", ""):
            return found in ("true", "True")
        raise ExpressionError(
            f"true or false is needed, not {str(found)[:50]!r}.", 0, Kind.TYPE, "Compare it."
        )
    except ExpressionError as error:
        raise PlacedError(path, error) from error
