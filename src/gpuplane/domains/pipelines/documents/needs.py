"""What a step reads and therefore comes after: by `depends_on`, by expressions, by conditions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gpuplane.domains.pipelines.documents.configs import branches_of
from gpuplane.domains.pipelines.documents.models import Step, StepType
from gpuplane.domains.pipelines.expressions import ExpressionError, find_texts, references

_NO_TEXT: dict[StepType, frozenset[str]] = {
    StepType.FUNCTION: frozenset({"code", "entrypoint"}),
    StepType.PARALLEL: frozenset({"branches", "steps"}),
    StepType.LOOP: frozenset({"steps", "as"}),
    StepType.CONDITION: frozenset({"then_steps", "else_steps"}),
}
"""Fields of a config whose text is no template: code is the user's, nested steps have their own."""
_BARE: dict[StepType, tuple[str, ...]] = {
    StepType.TRANSFORM: ("expression", "outputs"),
    StepType.CONDITION: ("expression",),
}
"""Fields that are expressions even without `{{ }}`."""


@dataclass(frozen=True, slots=True)
class StepText:
    """One text of a step that may hold expressions: its path inside the step."""

    path: str
    text: str
    bare: bool = False
    undoes: bool = False


def texts_of(step: Step) -> Iterator[StepText]:
    """Yield every text of a step that may hold expressions, nested steps left out."""
    if isinstance(step.condition, str):
        yield StepText("condition", step.condition, bare=True)
    yield from _config_texts("config", step.step_type, step.config)
    if step.compensate is not None:
        undo = step.compensate
        for each in _config_texts("compensate.config", undo.step_type, undo.config):
            yield StepText(each.path, each.text, each.bare, undoes=True)


def _config_texts(path: str, kind: StepType, config: dict[str, Any]) -> Iterator[StepText]:
    hidden, bare = _NO_TEXT.get(kind, frozenset()), _BARE.get(kind, ())
    for name, value in config.items():
        if name in hidden:
            continue
        for where, text in find_texts(value, f"{path}.{name}"):
            if name in bare or "{{" in text or "{%" in text:
                yield StepText(where, text, bare=name in bare)


def read_steps(step: Step) -> set[str]:
    """Return the ids of steps that a step's expressions read, those of nested steps included.

    Text that cannot be read names none; the check of expressions tells why.
    """
    found: set[str] = set()
    for each in texts_of(step):
        if not each.undoes:
            found |= references_in(each)
    for branch in _branches(step):
        own = {inner.id for inner in branch}
        for inner in branch:
            found |= (read_steps(inner) | set(inner.depends_on)) - own
    return found


def references_in(each: StepText) -> set[str]:
    """Return the ids of steps that one text reads; none where it cannot be read."""
    try:
        return references(each.text, bare=each.bare)
    except ExpressionError:
        return set()


def _branches(step: Step) -> list[list[Step]]:
    try:
        return branches_of(step)
    except ValidationError:
        return []


def needs_of(steps: Sequence[Step]) -> dict[str, tuple[str, ...]]:
    """Return for each of some sibling steps the ids of siblings it comes after, in their order.

    A step that a CONDITION names comes after the condition.
    """
    place = {step.id: number for number, step in enumerate(steps)}
    after: dict[str, set[str]] = {
        step.id: {key for key in {*step.depends_on, *read_steps(step)} if key in place}
        for step in steps
    }
    for step in steps:
        if step.step_type is not StepType.CONDITION:
            continue
        for side in ("then_steps", "else_steps"):
            for named in step.config.get(side) or ():
                if isinstance(named, str) and named in after:
                    after[named].add(step.id)
    return {key: tuple(sorted(found, key=place.__getitem__)) for key, found in after.items()}


def find_cycle(needs: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the ids along one cycle, first and last the same; empty without any."""
    done: set[str] = set()
    for start in needs:
        if start in done:
            continue
        path: list[str] = []
        on_path: dict[str, int] = {}
        waiting: list[tuple[str, bool]] = [(start, False)]
        while waiting:
            key, leaving = waiting.pop()
            if leaving:
                path.pop()
                del on_path[key]
                done.add(key)
            elif key in on_path:
                return [*path[on_path[key] :], key]
            elif key not in done:
                on_path[key] = len(path)
                path.append(key)
                waiting.append((key, True))
                waiting.extend((other, False) for other in needs[key])
    return []
