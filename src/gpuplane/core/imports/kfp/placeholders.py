"""Replaces placeholders: `{{$.inputs.parameters['x']}}`, `{{$.pipeline_job_name}}` and the like.

Source of their names: kubeflow/pipelines, sdk/python/kfp/dsl/placeholders.py and kfp/local.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from gpuplane.core.imports.results import Malformed
from gpuplane.core.imports.values import Const, Expr, Value, cel_of, joined

_PLACEHOLDER = re.compile(r"\{\{\$(?:\.([^{}]*))?\}\}")
_INPUT = re.compile(r"inputs\.parameters\[['\"]([^'\"\]]*)['\"]\]((?:\[['\"][^'\"\]]*['\"]\])*)")
_KEY = re.compile(r"\[['\"]([^'\"\]]*)['\"]\]")
_ARTIFACT = re.compile(
    r"(inputs|outputs)\.artifacts\[['\"]([^'\"\]]*)['\"]\]\.(uri|path|name|metadata|value)"
    r"(?:\[['\"]([^'\"\]]*)['\"]\])?"
)
_FILE = re.compile(r"outputs\.parameters\[['\"]([^'\"\]]*)['\"]\]\.output_file")
FILES = "kfp/outputs"
"""Folder, in the working directory of a job, of the files that hold output parameters."""


class Names:
    """What placeholders of one task come to."""

    def __init__(
        self,
        pipeline: str,
        task: str,
        parameters: Mapping[str, Value],
        artifacts: Mapping[str, Value],
        outputs: Mapping[str, str],
        workspace: str,
    ) -> None:
        """Name the task's inputs, and the path of each artifact that it makes."""
        self.parameters, self.artifacts, self.outputs = parameters, artifacts, outputs
        self._pipeline, self._task, self._workspace = pipeline, task, workspace

    def resolved(self, text: str, place: str) -> Value:
        """Return a text with its placeholders replaced; a lone one keeps its type.

        Raises:
            Malformed: If there is one that cannot be replaced.
        """
        parts: list[Value] = []
        at = 0
        if "{{$" not in text:
            return Const(text)
        for found in _PLACEHOLDER.finditer(text):
            parts.append(Const(text[at : found.start()]))
            value = self._value(found[1], found[0], place)
            if found[0] == text:
                return value
            parts.append(_as_text(value))
            at = found.end()
        return joined([*parts, Const(text[at:])])

    def inside(self, value: Any, place: str) -> Value:
        """Return a constant with the placeholders in its texts replaced."""
        if isinstance(value, str):
            return self.resolved(value, place)
        if isinstance(value, list):
            items = [self.inside(each, place) for each in value]
            if all(isinstance(each, Const) for each in items):
                return Const(value)
            return Expr(f"[{', '.join(cel_of(each) for each in items)}]")
        if isinstance(value, dict):
            pairs = [(self.inside(key, place), self.inside(each, place))
                     for key, each in value.items()]  # fmt: skip
            if all(isinstance(part, Const) for pair in pairs for part in pair):
                return Const(value)
            inner = ", ".join(f"{cel_of(key)}: {cel_of(each)}" for key, each in pairs)
            return Expr(f"{{ {inner} }}")
        return Const(value)

    def has_input(self, name: str) -> bool:
        """Return whether an optional input is given."""
        return name in self.parameters or name in self.artifacts

    def _known(self, name: str) -> Value | None:
        """Return a placeholder that is the same for a task wherever it stands."""
        job = joined([Const(f"{self._pipeline}-"), Expr("run.id")])
        known: dict[str, Value] = {
            "pipeline_job_name": job,
            "pipeline_job_resource_name": job,
            "pipeline_job_uuid": Expr("run.id"),
            "pipeline_task_name": Const(self._task),
            "pipeline_task_uuid": joined([Expr("run.id"), Const(f"-{self._task}")]),
            "pipeline_job_create_time_utc": Expr("run.started_at"),
            "pipeline_job_schedule_time_utc": Expr("run.started_at"),
            "workspace_path": Const(self._workspace),
        }
        return known.get(name)

    def _value(self, name: str | None, whole: str, place: str) -> Value:
        if name is None:
            return Const(whole)  # the executor's input: whoever runs the command puts it in
        known = self._known(name)
        if known is not None:
            return known
        found = _INPUT.fullmatch(name)
        if found is not None:
            return self._parameter(found[1], _KEY.findall(found[2]), place)
        found = _FILE.fullmatch(name)
        if found is not None:
            return Const(f"{FILES}/{found[1]}")
        found = _ARTIFACT.fullmatch(name)
        if found is not None:
            return self._artifact(found[1], found[2], found[3], found[4], place)
        if name.startswith(("pipeline_google_cloud_", "pipeline_persistent_")):
            raise Malformed(place, f"Only Vertex AI fills the placeholder {whole[:80]}.")
        raise Malformed(place, f"The placeholder {whole[:80]} is not known.")

    def _parameter(self, name: str, keys: list[str], place: str) -> Value:
        if name not in self.parameters:
            return Const("")  # an optional input that nobody gave
        value = self.parameters[name]
        for key in keys:
            if isinstance(value, Const) and isinstance(value.value, dict):
                if key not in value.value:
                    raise Malformed(place, f"The input {name!r} has no field {key!r}.")
                value = Const(value.value[key])
            else:
                value = Expr(f"{cel_of(value)}[{json.dumps(key)}]")
        return value

    def _artifact(self, side: str, name: str, part: str, key: str | None, place: str) -> Value:
        if side == "outputs":
            if name not in self.outputs:
                raise Malformed(place, f"There is no output artifact {name!r}.")
            fixed = {"name": name, "metadata": "{}"}
            return Const(fixed.get(part, self.outputs[name]))
        if name not in self.artifacts:
            return Const("")
        field = {"path": "uri", "value": "uri"}.get(part, part)
        cel = f"{cel_of(self.artifacts[name])}.{field}"
        return Expr(f"{cel}[{json.dumps(key)}]" if key is not None else cel)


def _as_text(value: Value) -> Value:
    """Return how a value stands in a text: texts as they are, all else as JSON."""
    if isinstance(value, Const):
        plain = value.value
        return value if isinstance(plain, str) else Const(json.dumps(plain))
    return value
