"""What a document's parts say together: names, dependencies, cycles, expressions, parameters.

Told all at once, when the pipeline is saved; what passes here cannot fail for its form in a run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuplane.domains.pipelines.documents.codes import check_codes
from gpuplane.domains.pipelines.documents.configs import LoopConfig, branches_of, config_of
from gpuplane.domains.pipelines.documents.cron import CronError, read_cron
from gpuplane.domains.pipelines.documents.limits import check_limits
from gpuplane.domains.pipelines.documents.models import (
    EventTrigger,
    Pipeline,
    PipelineTrigger,
    ScheduledTrigger,
    Step,
    StepType,
    Trigger,
)
from gpuplane.domains.pipelines.documents.needs import find_cycle, needs_of, references_in, texts_of
from gpuplane.domains.pipelines.documents.parameters import check_value
from gpuplane.domains.pipelines.documents.reading import (
    count_steps,
    nested_path,
    refusal_of,
    walk,
)
from gpuplane.domains.pipelines.expressions import (
    ExpressionError,
    Known,
    PlacedError,
    check_text,
    find_texts,
)
from gpuplane.kit.errors import FieldError
from gpuplane.kit.problems import nearest

RUN_FIELDS = frozenset({"id", "started_at", "name"})

StepCheck = Callable[[Step], Sequence[FieldError]]
"""What only the server knows of a step: whether its channel, component or cluster is there."""
TriggerCheck = Callable[[Trigger], Sequence[FieldError]]
"""What only the server knows of a trigger: whether it may look where it is to look."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What the expressions of some steps may name."""

    roots: Mapping[str, frozenset[str] | None]
    steps: frozenset[str]

    def known(self, **more: frozenset[str] | None) -> Known:
        """Return the names with what each has."""
        return {**self.roots, "steps": self.steps, **more}

    def inside(self, siblings: Sequence[Step], names: Sequence[str]) -> "Scope":
        """Return the scope of nested steps, with a loop's names."""
        roots = {**self.roots, **dict.fromkeys(names)}
        return Scope(roots, self.steps | {step.id for step in siblings})


def check_pipeline(
    pipeline: Pipeline,
    check_step: StepCheck | None = None,
    check_trigger: TriggerCheck | None = None,
) -> None:
    """Check what the parts of a document say together.

    Args:
        pipeline: The document, read.
        check_step: Adds what only the server knows of a step.
        check_trigger: Adds what only the server knows of a trigger.

    Raises:
        BadPipeline: With every mistake: path, reason and fix.
        PipelineTooLarge: If it has too many steps.
    """
    count_steps(pipeline)
    errors = [
        *_doubles(pipeline),
        *_check_parameters(pipeline),
        *_check_values(pipeline),
        *_check_steps("spec.steps", pipeline.spec.steps, _top_scope(pipeline)),
        *_check_triggers(pipeline),
        *check_limits(pipeline),
        *check_codes(pipeline),
    ]
    if check_step is not None:
        errors += [
            replace(found, field=f"{path}.{found.field}")
            for path, step, _depth in walk(pipeline)
            for found in check_step(step)
        ]
    if check_trigger is not None:
        errors += [
            replace(found, field=f"spec.triggers[{place}].{found.field}")
            for place, trigger in enumerate(pipeline.spec.triggers)
            for found in check_trigger(trigger)
        ]
    if errors:
        raise refusal_of(errors)


def _top_scope(pipeline: Pipeline) -> Scope:
    spec = pipeline.spec
    roots = {
        "params": frozenset(spec.parameters),
        "services": frozenset(spec.services),
        "components": frozenset(spec.components),
        "run": RUN_FIELDS,
        "trigger": None,
    }
    return Scope(roots, frozenset(step.id for step in spec.steps))


def _doubles(pipeline: Pipeline) -> Iterator[FieldError]:
    seen: dict[str, str] = {}
    for path, step, _depth in walk(pipeline):
        if step.id in seen:
            yield FieldError(
                f"{path}.id", f"{seen[step.id]} has the id {step.id!r} too.", "Rename one of them."
            )
        seen.setdefault(step.id, path)


def _check_parameters(pipeline: Pipeline) -> Iterator[FieldError]:
    for name, parameter in pipeline.spec.parameters.items():
        if parameter.default is None:
            continue
        problem = check_value(parameter, parameter.default)
        if problem is not None:
            yield FieldError(f"spec.parameters.{name}.default", problem, "Give another default.")


def _check_values(pipeline: Pipeline) -> Iterator[FieldError]:
    """Check expressions that stand outside of steps."""
    spec, scope = pipeline.spec, _top_scope(pipeline)
    yield from _check_json("spec.outputs", spec.outputs, scope.known())
    if spec.concurrency is not None:
        known: Known = {"params": scope.roots["params"], "trigger": None}
        yield from _texts("spec.concurrency.key", spec.concurrency.key, known)
    for name in ("services", "components"):
        known = {"params": scope.roots["params"]}
        yield from _check_json(f"spec.{name}", getattr(spec, name), known)


def _check_json(path: str, value: Any, known: Known) -> Iterator[FieldError]:
    try:
        for where, text in find_texts(value, path):
            yield from _texts(where, text, known)
    except PlacedError as error:
        yield FieldError(error.path, error.error.message, error.error.fix)


def _texts(path: str, text: str, known: Known, *, bare: bool = False) -> Iterator[FieldError]:
    for error in check_text(text, known, bare=bare):
        yield field_error(path, error)


def field_error(path: str, error: ExpressionError) -> FieldError:
    """Return an expression's mistake as that of a field, with the column."""
    return FieldError(path, f"Column {error.column}: {error.message}", error.fix)


def _check_steps(path: str, steps: Sequence[Step], scope: Scope) -> Iterator[FieldError]:
    ids = {step.id for step in steps}
    for place, step in enumerate(steps):
        here = f"{path}[{place}]"
        yield from _check_dependencies(here, step, ids)
        yield from _check_texts(here, step, scope)
        if step.step_type is StepType.CONDITION:
            yield from _check_sides(here, step, ids)
        yield from _check_nested(here, step, scope)
    cycle = find_cycle(needs_of(steps))
    if len(cycle) > 2:  # a step that names itself was told above
        first = next(place for place, step in enumerate(steps) if step.id == cycle[0])
        yield FieldError(
            f"{path}[{first}].depends_on",
            f"The steps wait for one another: {' → '.join(cycle[:50])}.",
            "Remove one of these dependencies, or the expression that makes it.",
        )


def _check_dependencies(here: str, step: Step, ids: set[str]) -> Iterator[FieldError]:
    for place, named in enumerate(step.depends_on):
        path = f"{here}.depends_on[{place}]"
        if named == step.id:
            yield FieldError(path, f"Step {step.id!r} depends on itself.", "Remove it.")
        elif named not in ids:
            fix = nearest(named, ids - {step.id})
            yield FieldError(path, f"There is no step {named[:100]!r} beside this one.", fix)
        elif named in step.depends_on[:place]:
            yield FieldError(path, f"{named!r} is named twice.", "Remove one.")


def _check_texts(here: str, step: Step, scope: Scope) -> Iterator[FieldError]:
    more: dict[str, frozenset[str] | None] = (
        {"input": None} if step.step_type is StepType.TRANSFORM else {}
    )
    known = scope.known(**more)
    try:
        for each in texts_of(step):
            path = f"{here}.{each.path}"
            yield from _texts(path, each.text, known, bare=each.bare)
            if not each.undoes and step.id in references_in(each):
                yield FieldError(path, f"Step {step.id!r} reads its own outputs.", "Name another.")
    except PlacedError as error:
        yield FieldError(f"{here}.{error.path}", error.error.message, error.error.fix)


def _check_sides(here: str, step: Step, ids: set[str]) -> Iterator[FieldError]:
    for side in ("then_steps", "else_steps"):
        for place, named in enumerate(step.config.get(side) or ()):
            path = f"{here}.config.{side}[{place}]"
            if named == step.id:
                yield FieldError(path, "A condition cannot choose itself.", "Remove it.")
            elif named not in ids:
                fix = nearest(named, ids - {step.id})
                yield FieldError(path, f"There is no step {named[:100]!r} beside this one.", fix)


def _check_nested(here: str, step: Step, scope: Scope) -> Iterator[FieldError]:
    names: list[str] = []
    if step.step_type is StepType.LOOP:
        config = config_of(step.step_type, step.config)
        if isinstance(config, LoopConfig):
            names = ["item", "index", config.as_]
            if config.as_ in {*scope.roots, "steps"} - {"item"}:
                yield FieldError(
                    f"{here}.config.as", f"{config.as_!r} means something else.", "Rename it."
                )
    branches = branches_of(step)
    if not branches:
        return
    outer = Scope(scope.roots, scope.steps - {step.id})
    for number, branch in enumerate(branches):
        inner = outer.inside(branch, names)
        for found in _check_steps(nested_path(here, step, number), branch, inner):
            # A branch of one step is written without brackets of its own.
            yield replace(
                found, field=found.field.replace(f"steps[{number}][0]", f"steps[{number}]")
            )


def _check_triggers(pipeline: Pipeline) -> Iterator[FieldError]:
    parameters = pipeline.spec.parameters
    for place, trigger in enumerate(pipeline.spec.triggers):
        path = f"spec.triggers[{place}]"
        if isinstance(trigger, ScheduledTrigger):
            try:
                read_cron(trigger.cron, trigger.time_zone)
            except CronError as error:
                wrong = "time_zone" if "zone" in str(error) else "cron"
                yield FieldError(f"{path}.{wrong}", str(error), "Such as '0 2 * * *' in UTC.")
            at: Known = {"scheduled_at": None}
            yield from _mapped(f"{path}.parameters", trigger.parameters, parameters, at)
        elif isinstance(trigger, EventTrigger):
            for name, part, roots in (
                ("webhook", trigger.webhook, ("body", "headers")),
                ("folder", trigger.folder, ("object",)),
                ("bucket", trigger.bucket, ("object",)),
            ):
                if part is not None:
                    known: Known = dict.fromkeys(roots)
                    where = f"{path}.{name}.parameters"
                    yield from _mapped(where, part.parameters, parameters, known)
        elif isinstance(trigger, PipelineTrigger):
            if trigger.pipeline == pipeline.name:
                yield FieldError(
                    f"{path}.pipeline", "A pipeline cannot start itself for ever.", "Use a loop."
                )
            known = {"upstream": frozenset({"id", "status", "outputs", "name"})}
            yield from _mapped(f"{path}.parameters", trigger.parameters, parameters, known)


def _mapped(
    path: str, given: Mapping[str, Any], parameters: Mapping[str, Any], known: Known
) -> Iterator[FieldError]:
    for name, value in given.items():
        where = f"{path}.{name}"
        if name not in parameters:
            fix = nearest(name, parameters)
            yield FieldError(where, f"The pipeline has no parameter {name!r}.", fix)
        yield from _check_json(where, value, known)
