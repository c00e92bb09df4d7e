"""What tasks hand to one another: outputs seen from elsewhere, conversions, choices of a branch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuplane.core.imports.kfp.spec import TYPES, Component
from gpuplane.core.imports.reading import mapping, shown, text
from gpuplane.core.imports.results import Malformed
from gpuplane.core.imports.values import (
    Const,
    Expr,
    Value,
    cel_of,
    member,
    moved,
    output_of,
    plain,
    quoted,
    steps_in,
)

_SELECTOR = re.compile(r"parseJson\(string_value\)((?:\[['\"][^'\"\]]*['\"]\])+)")


@dataclass(slots=True)
class Done:
    """What a task came to: its steps, what others may take of it, when it runs."""

    ids: list[str]
    outputs: dict[str, Value] = field(default_factory=dict)
    artifacts: dict[str, Value] = field(default_factory=dict)
    guard: str = ""


def from_outside(value: Value, holder: str, own: set[str]) -> Value:
    """Return a value of a step inside a PARALLEL as steps outside reach it."""
    if isinstance(value, Const):
        return value

    def base(step: str) -> str | None:
        return f"\x00{holder}\x00.results[{quoted(step)}]" if step in own else None

    return Expr(moved(value.cel, base))


def or_null(value: Value) -> Value:
    """Return a value that is null where its step failed."""
    return value if isinstance(value, Const) else Expr(f"{cel_of(value)} | default(null)")


def collected(value: Value, loop: str, own: set[str], number: int) -> Value:
    """Return the list of a value over the iterations of a loop."""
    name = f"result_{number}"
    results = cel_of(output_of(loop, "results"))
    if isinstance(value, Const):
        return Expr(f"{results}.map({name}, {cel_of(value)})")
    cel = moved(value.cel, lambda step: f"{name}{member(step)}" if step in own else None)
    inner = sorted(steps_in(value.cel) & own)
    if len(inner) == 1:  # an iteration in which the step was skipped gives nothing
        results = f"{results}.filter({name}, {name}{member(inner[0])} != null)"
    return Expr(f"{results}.map({name}, {cel})")


def constant_of(found: Mapping[str, Any], place: str) -> Any:
    """Return the constant of an input, as pipelines of 2.0 or 2.1 write it.

    Raises:
        Malformed: If there is none.
    """
    if "constant" in found:
        return found["constant"]
    old = mapping(found.get("constantValue"), place)
    for name in ("stringValue", "intValue", "doubleValue"):
        if name in old:
            return old[name]
    raise Malformed(place, "A constant should stand here.")


def converted(value: Value, kind: str) -> Value:
    """Return a constant in the type that its component takes; YAML holds whole numbers as 1.0."""
    if not isinstance(value, Const):
        return value
    known = value.value
    if kind == "NUMBER_INTEGER" and isinstance(known, float) and known == int(known):
        return Const(int(known))
    if kind == "NUMBER_DOUBLE" and isinstance(known, int) and not isinstance(known, bool):
        return Const(float(known))
    if kind in ("LIST", "STRUCT"):
        return Const(_whole_numbers(known))
    return value


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value == int(value) and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_whole_numbers(each) for each in value]
    if isinstance(value, dict):
        return {key: _whole_numbers(each) for key, each in value.items()}
    return value


def selected(value: Value, selector: Any, place: str) -> Value:
    """Return the part of a value that a selector names.

    Raises:
        Malformed: If the selector is not known, or there is no such part.
    """
    found = _SELECTOR.fullmatch(selector) if isinstance(selector, str) else None
    if found is None:
        raise Malformed(place, f"The selector {shown(selector)} is not known.")
    keys = re.findall(r"\[['\"]([^'\"\]]*)['\"]\]", found[1])
    if isinstance(value, Const):
        known = value.value
        for key in keys:
            if not isinstance(known, dict) or key not in known:
                raise Malformed(place, f"There is no field {key!r}.")
            known = known[key]
        return Const(known)
    return Expr(cel_of(value) + "".join(member(key) for key in keys))


def pick(
    part: Any, done: Mapping[str, Done], field_name: str, place: str, side: str
) -> tuple[str, Value]:  # fmt: skip
    """Return when an output is there, and the output.

    Raises:
        Malformed: If there is no such task or output.
    """
    each = mapping(part, place)
    task = text(each.get("producerSubtask"), place)
    key = text(each.get(field_name), place)
    if task not in done:
        raise Malformed(place, f"There is no task {task!r}.")
    values: Mapping[str, Value] = getattr(done[task], side)
    if key not in values:
        raise Malformed(place, f"{task!r} gives no {key!r}.")
    return done[task].guard, values[key]


def one_of(choices: Sequence[tuple[str, Value]]) -> Value:
    """Return the value of the branch that runs."""
    if len(choices) == 1:
        return choices[0][1]
    cel = "null"
    for guard, value in reversed(choices):
        cel = f"({guard or 'true'}) ? {cel_of(value)} : ({cel})"
    return Expr(cel)


def root_parameters(component: Component) -> dict[str, Any]:
    """Return the parameters of a pipeline document for the inputs of a root."""
    found: dict[str, Any] = {}
    for name, each in component.inputs.items():
        if each.kind.startswith("artifact"):
            if each.kind == "artifact" and not each.is_optional:
                found[name] = {"type": "string", "required": True, "description": "A URI."}
            continue
        one: dict[str, Any] = {"type": TYPES[each.kind]}
        if each.has_default:
            known = converted(Const(each.default), each.kind)
            if not isinstance(known, Const) or not _fits(known.value, each.kind):
                raise Malformed(f"root.inputDefinitions.parameters.{name}.defaultValue",
                                f"{shown(each.default)} is no {each.kind}.")  # fmt: skip
            one["default"] = plain(known.value)
        elif not each.is_optional:
            one["required"] = True
        if each.description:
            one["description"] = plain(each.description)
        found[name] = one
    return found


def _fits(value: Any, kind: str) -> bool:
    """Return whether a default is of its parameter's type; null is of any."""
    wanted: dict[str, tuple[type, ...]] = {
        "STRING": (str,), "NUMBER_INTEGER": (int,), "NUMBER_DOUBLE": (int, float),
        "BOOLEAN": (bool,), "LIST": (list,),
    }  # fmt: skip
    if value is None:
        return True
    if isinstance(value, bool) and kind != "BOOLEAN":
        return False
    return isinstance(value, wanted.get(kind, (dict,)))
