"""Reads a document: ours, or the specification's `{"pipeline": …, "steps": […]}`; writes YAML.

Every mistake of form is found in one pass, with its path, the reason and the fix.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml
from pydantic import ValidationError

from gpuplane.domains.pipelines.documents.configs import CONFIGS, branches_of, config_of
from gpuplane.domains.pipelines.documents.fields import MAX_DOCUMENT_BYTES, MAX_NESTING, MAX_STEPS
from gpuplane.domains.pipelines.documents.models import (
    API_VERSION,
    KIND,
    Pipeline,
    Step,
    StepType,
)
from gpuplane.domains.pipelines.errors import BadPipeline, PipelineTooLarge
from gpuplane.kit.errors import FieldError
from gpuplane.kit.problems import refused_fields
from gpuplane.kit.yaml_texts import UnreadableYaml, load_documents

MAX_ERRORS = 100
"""Mistakes that are told at once."""
_SPEC_FIELDS = frozenset(
    "id name tenant_id project_id trigger_type cron_expression event_config"
    " triggered_by_pipeline_id timeout_seconds deadline status current_step_id created_at"
    " started_at completed_at template_id parameters steps".split()
)
_TRIGGER_TYPE = re.compile(r"^(spec\.triggers\[\d+\])\.(?:scheduled|event|pipeline)(?=\.|$)")
_STEP_STATE = frozenset(
    "pipeline_id job_id outputs status error_message started_at completed_at".split()
)
"""What the specification's rows say of a run; a document has no use for it."""


def read_documents(text: str) -> list[Any]:
    """Return the JSON values that a YAML or JSON text holds, one for each document.

    Raises:
        PipelineTooLarge: If the text is too long.
        BadPipeline: If it cannot be read; names line and column.
    """
    if len(text.encode(errors="replace")) > MAX_DOCUMENT_BYTES:
        raise PipelineTooLarge(
            f"A pipeline has at most {MAX_DOCUMENT_BYTES} bytes.",
            fix="Put data into a bucket and refer to it.",
        )
    try:
        return load_documents(text)
    except UnreadableYaml as error:
        raise BadPipeline(str(error), fix="Check the indentation and the quotes.") from error


def dump_yaml(document: Mapping[str, Any]) -> str:
    """Return a document as YAML, in the order it was written."""
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as such, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> Any:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)


def read_pipeline(document: Any) -> Pipeline:
    """Return a document as a model, every step's config checked by its type.

    Args:
        document: JSON: ours or the specification's.

    Raises:
        BadPipeline: With every mistake that was found.
    """
    if not isinstance(document, dict):
        raise BadPipeline("A pipeline is an object.", fix="Write apiVersion, kind and so on.")
    document = ours(document)
    try:
        pipeline = Pipeline.model_validate(document)
    except ValidationError as error:
        raise refusal_of(_field_errors(error, Pipeline)) from error
    errors = [
        found for path, step, depth in walk(pipeline) for found in _config_errors(path, step, depth)
    ]
    if errors:
        raise refusal_of(errors)
    return pipeline


def refusal_of(errors: list[FieldError]) -> BadPipeline:
    """Return the refusal that tells every mistake."""
    shown = tuple(errors[:MAX_ERRORS])
    first = shown[0]
    more = f" ({len(errors) - 1} more mistakes.)" if len(errors) > 1 else ""
    return BadPipeline(
        f"{first.field}: {first.reason}{more}" if first.field else f"{first.reason}{more}",
        field=first.field or None,
        fix=first.fix,
        errors=shown,
    )


def walk(pipeline: Pipeline) -> Iterator[tuple[str, Step, int]]:
    """Yield every step with its path and how deep it is nested; those nested after their own."""
    yield from _walk("spec.steps", pipeline.spec.steps, 0)


def _walk(path: str, steps: list[Step], depth: int) -> Iterator[tuple[str, Step, int]]:
    for place, step in enumerate(steps):
        here = f"{path}[{place}]"
        yield here, step, depth
        if depth < MAX_NESTING:
            yield from _nested(here, step, depth)


def _nested(here: str, step: Step, depth: int) -> Iterator[tuple[str, Step, int]]:
    try:
        branches = branches_of(step)
    except ValidationError:
        return
    for number, branch in enumerate(branches):
        yield from _walk(nested_path(here, step, number), branch, depth + 1)


def nested_path(path: str, step: Step, branch: int) -> str:
    """Return the path of the steps of a container's branch."""
    if "branches" in step.config:
        return f"{path}.config.branches[{branch}]"
    if step.step_type is StepType.PARALLEL:  # each step is a branch, its index is 0 there
        return f"{path}.config.steps[{branch}]"
    return f"{path}.config.steps"


def _config_errors(path: str, step: Step, depth: int) -> Iterator[FieldError]:
    if depth >= MAX_NESTING:
        yield FieldError(
            path, f"Steps are nested more than {MAX_NESTING} deep.", "Start another pipeline."
        )
        return
    try:
        config_of(step.step_type, step.config)
    except ValidationError as error:
        for found in _field_errors(error, CONFIGS[step.step_type]):
            yield FieldError(f"{path}.config.{found.field}".rstrip("."), found.reason, found.fix)
    if step.compensate is not None:
        kind = step.compensate.step_type
        if kind in (StepType.PARALLEL, StepType.LOOP, StepType.CONDITION):
            yield FieldError(
                f"{path}.compensate.step_type",
                f"A {kind.upper()} step undoes nothing.",
                "Use job, api_call, function, notification, transform or wait.",
            )
            return
        try:
            config_of(kind, step.compensate.config)
        except ValidationError as error:
            for found in _field_errors(error, CONFIGS[kind]):
                place = f"{path}.compensate.config.{found.field}".rstrip(".")
                yield FieldError(place, found.reason, found.fix)


def _field_errors(error: ValidationError, model: type) -> list[FieldError]:
    refused = refused_fields(error.errors(include_url=False), model)
    seen: dict[str, FieldError] = {}
    for one in refused.errors:
        # A trigger's type, by which its fields were chosen, is no part of where they stand.
        found = replace(one, field=_TRIGGER_TYPE.sub(r"\1", one.field))
        seen.setdefault(
            found.field, found
        )  # one mistake, however many kinds a field might have had
    return list(seen.values())


def ours(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document in our form; one in the specification's is rewritten."""
    if "pipeline" not in document or "spec" in document:
        return document
    head, steps = document["pipeline"], document.get("steps", [])
    unknown = sorted(set(document) - {"pipeline", "steps"})
    if not isinstance(head, dict) or unknown:
        raise BadPipeline(
            "A document of this form has `pipeline` and `steps`.",
            field=unknown[0] if unknown else "pipeline",
            fix="Remove the rest.",
        )
    surplus = sorted(set(head) - _SPEC_FIELDS)
    if surplus:
        raise refusal_of(
            [FieldError(f"pipeline.{name}", "There is no such field.", "") for name in surplus]
        )
    spec: dict[str, Any] = {
        name: head[name]
        for name in ("parameters", "timeout_seconds", "deadline")
        if head.get(name) is not None
    }
    triggers = _triggers(head)
    if triggers:
        spec["triggers"] = triggers
    spec["steps"] = [_our_step(step) for step in steps] if isinstance(steps, list) else steps
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": head.get("name")},
        "spec": spec,
    }


def _our_step(step: Any) -> Any:
    if not isinstance(step, dict):
        return step
    return {
        name: value
        for name, value in step.items()
        if name not in _STEP_STATE and not (value is None and name != "config")
    }


def _triggers(head: dict[str, Any]) -> list[dict[str, Any]]:
    kind = str(head.get("trigger_type") or "manual").lower()
    if kind == "scheduled":
        return [{"type": "scheduled", "cron": head.get("cron_expression") or ""}]
    if kind == "event":
        config = head.get("event_config")
        return [{"type": "event", **(config if isinstance(config, dict) else {})}]
    if kind == "pipeline":
        return [{"type": "pipeline", "pipeline": head.get("triggered_by_pipeline_id")}]
    if kind == "manual":
        return []
    raise refusal_of(
        [
            FieldError(
                "pipeline.trigger_type",
                "This is none of the known values.",
                "Known are: event, manual, pipeline, scheduled.",
            )
        ]
    )


def count_steps(pipeline: Pipeline) -> int:
    """Return the number of steps; PipelineTooLarge over the limit."""
    count = sum(1 for _ in walk(pipeline))
    if count > MAX_STEPS:
        raise PipelineTooLarge(
            f"A pipeline has at most {MAX_STEPS} steps, not {count}.",
            field="spec.steps",
            fix="Use a loop, or split it into pipelines that trigger one another.",
        )
    return count
