"""Reads compiled Kubeflow pipelines: tasks, components and executors that nobody has checked.

Field names are those of kubeflow/pipelines, api/v2alpha1/pipeline_spec.proto, as JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuplane.core.imports.ordering import ordered
from gpuplane.core.imports.reading import mapping, refuse_others, sequence, shown, text
from gpuplane.core.imports.results import Malformed, Table

ROOT = "root"
_TOP = ("pipelineInfo", "components", "deploymentSpec", "root", "schemaVersion", "sdkVersion",
        "defaultPipelineRoot")  # fmt: skip
_TASK = ("componentRef", "taskInfo", "inputs", "dependentTasks", "cachingOptions", "triggerPolicy",
         "parameterIterator", "artifactIterator", "iteratorPolicy", "retryPolicy")  # fmt: skip
_COMPONENT = ("inputDefinitions", "outputDefinitions", "dag", "executorLabel", "platformSpecs",
              "singlePlatformSpecs", "taskConfigPassthroughs")  # fmt: skip
TYPES = {
    "STRING": "string", "NUMBER_INTEGER": "integer", "NUMBER_DOUBLE": "number",
    "BOOLEAN": "boolean", "LIST": "list", "STRUCT": "object", "TASK_FINAL_STATUS": "object",
    "TASK_CONFIG": "object",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Input:
    """A parameter or an artifact that a component takes.

    Args:
        kind: The parameter's type, or `artifact` or `artifacts`.
    """

    kind: str
    is_optional: bool
    default: Any = None
    has_default: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Component:
    """What a task runs: a graph of tasks, or an executor."""

    name: str
    place: str
    inputs: Mapping[str, Input]
    parameters: Mapping[str, str]
    artifacts: Mapping[str, str]
    """Output parameters by type, output artifacts by schema."""
    dag: Mapping[str, Any] | None
    executor: str


@dataclass(frozen=True, slots=True)
class Spec:
    """A whole compiled pipeline."""

    name: str
    description: str
    root: Component
    components: Mapping[str, Component]
    executors: Mapping[str, Mapping[str, Any]]
    platform: Mapping[str, Mapping[str, Any]]
    """What the Kubernetes platform adds to an executor, by its label."""
    has_workspace: bool = False
    pipeline_root: str = ""
    lists: frozenset[str] = field(default_factory=frozenset)


def is_kubeflow(document: Any) -> bool:
    """Return whether a document looks like a compiled Kubeflow pipeline."""
    return isinstance(document, dict) and ("pipelineInfo" in document or "deploymentSpec" in
                                           document or "pipelineSpec" in document)  # fmt: skip


def read_spec(documents: Sequence[Any], table: Table) -> Spec:
    """Return what a compiled pipeline says.

    Raises:
        Malformed: If it is none.
    """
    top = mapping(documents[0], "the document")
    if "pipelineSpec" in top and "deploymentSpec" not in top:
        top = mapping(top["pipelineSpec"], "pipelineSpec")
    refuse_others(table, top, _TOP, "the document", "a pipeline")
    version = top.get("schemaVersion")
    if not isinstance(version, str) or not version.startswith("2."):
        raise Malformed("schemaVersion", f"Schema 2.x is read, not {shown(version)}.")
    info = mapping(top.get("pipelineInfo"), "pipelineInfo")
    name = text(info.get("name") or info.get("displayName"), "pipelineInfo.name")
    if "components" not in top:
        raise Malformed("components", "A compiled pipeline has components.")
    components = {
        key: _component(key, each, f"components.{key}", table)
        for key, each in mapping(top["components"], "components").items()
    }
    root = _component(ROOT, top.get("root"), ROOT, table)
    if root.dag is None:
        raise Malformed("root.dag", "The root of a pipeline is a graph of tasks.")
    deployment = mapping(top.get("deploymentSpec"), "deploymentSpec")
    executors = {
        key: mapping(each, f"deploymentSpec.executors.{key}")
        for key, each in mapping(deployment.get("executors"), "deploymentSpec.executors").items()
    }
    platform, has_workspace = _platform(documents[1:], table)
    description = info.get("description")
    pipeline_root = top.get("defaultPipelineRoot")
    return Spec(
        name, description if isinstance(description, str) else "", root, components, executors,
        platform, has_workspace, pipeline_root if isinstance(pipeline_root, str) else "",
    )  # fmt: skip


def _component(name: str, value: Any, place: str, table: Table) -> Component:
    found = mapping(value, place)
    refuse_others(table, found, _COMPONENT, place, "a component")
    inputs = mapping(found.get("inputDefinitions"), f"{place}.inputDefinitions")
    outputs = mapping(found.get("outputDefinitions"), f"{place}.outputDefinitions")
    known: dict[str, Input] = {}
    for key, each in _named(inputs, "artifacts", f"{place}.inputDefinitions"):
        kind = "artifacts" if each.get("isArtifactList") else "artifact"
        known[key] = Input(kind, bool(each.get("isOptional")))
    for key, each in _named(inputs, "parameters", f"{place}.inputDefinitions"):
        at = f"{place}.inputDefinitions.parameters.{key}"
        described = each.get("description")
        known[key] = Input(
            _kind(each, at), bool(each.get("isOptional")), each.get("defaultValue"),
            "defaultValue" in each, described if isinstance(described, str) else "",
        )  # fmt: skip
    parameters = {
        key: _kind(each, f"{place}.outputDefinitions.parameters.{key}")
        for key, each in _named(outputs, "parameters", f"{place}.outputDefinitions")
    }
    artifacts = {
        key: _schema(each, f"{place}.outputDefinitions.artifacts.{key}")
        for key, each in _named(outputs, "artifacts", f"{place}.outputDefinitions")
    }
    dag = mapping(found["dag"], f"{place}.dag") if "dag" in found else None
    executor = found.get("executorLabel")
    if dag is None and name != ROOT:
        executor = text(executor, f"{place}.executorLabel")
    return Component(name, place, known, parameters, artifacts, dag, str(executor or ""))


def _named(found: Mapping[str, Any], key: str, place: str) -> list[tuple[str, Mapping[str, Any]]]:
    each = mapping(found.get(key), f"{place}.{key}")
    return [(name, mapping(one, f"{place}.{key}.{name}")) for name, one in each.items()]


def _kind(found: Mapping[str, Any], place: str) -> str:
    kind = found.get("parameterType", "STRING")
    if not isinstance(kind, str) or kind not in TYPES:
        raise Malformed(f"{place}.parameterType", f"There is no parameter type {shown(kind)}.")
    return kind


def _schema(found: Mapping[str, Any], place: str) -> str:
    kind = mapping(found.get("artifactType"), f"{place}.artifactType")
    title = kind.get("schemaTitle") or kind.get("instanceSchema") or "system.Artifact"
    return title if isinstance(title, str) else "system.Artifact"


def _platform(
    documents: Sequence[Any], table: Table
) -> tuple[dict[str, Mapping[str, Any]], bool]:  # fmt: skip
    if len(documents) > 1:
        raise Malformed("the file", "There are more than two documents.")
    if not documents:
        return {}, False
    platforms = mapping(mapping(documents[0], "the second document").get("platforms"), "platforms")
    for name in platforms:
        if name != "kubernetes":
            table.refused(f"platforms.{name}", "platform", "Only Kubernetes' additions are known.")
    place = "platforms.kubernetes"
    found = mapping(platforms.get("kubernetes"), place)
    refuse_others(table, found, ("deploymentSpec", "pipelineConfig"), place, "a platform")
    deployment = mapping(found.get("deploymentSpec"), f"{place}.deploymentSpec")
    at = f"{place}.deploymentSpec.executors"
    each = mapping(deployment.get("executors"), at)
    config = mapping(found.get("pipelineConfig"), f"{place}.pipelineConfig")
    return (
        {key: mapping(one, f"{at}.{key}") for key, one in each.items()}, "workspace" in config
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a graph, as it was written."""

    key: str
    place: str
    name: str
    component: str
    parameters: Mapping[str, Mapping[str, Any]]
    artifacts: Mapping[str, Mapping[str, Any]]
    after: tuple[str, ...]
    raw: Mapping[str, Any]

    def part(self, name: str) -> Mapping[str, Any]:
        """Return one of its fields as a mapping."""
        return mapping(self.raw.get(name), f"{self.place}.{name}")

    @property
    def is_always(self) -> bool:
        """Return whether it runs however those before it ended."""
        return self.part("triggerPolicy").get("strategy") == "ALL_UPSTREAM_TASKS_COMPLETED"


def read_tasks(component: Component, table: Table) -> list[Task]:
    """Return the tasks of a component's graph so that each stands after those that it needs.

    Raises:
        Malformed: If they cannot be read, need what is not there, or wait for one another.
    """
    assert component.dag is not None
    refuse_others(table, component.dag, ("tasks", "outputs"), f"{component.place}.dag", "a graph")
    place = f"{component.place}.dag.tasks"
    tasks = {
        key: _task(key, each, f"{place}.{key}", table)
        for key, each in mapping(component.dag.get("tasks"), place).items()
    }
    if not tasks:
        raise Malformed(place, "A graph has at least one task.")
    for task in tasks.values():
        for other in task.after:
            if other not in tasks:
                raise Malformed(task.place, f"It comes after {other!r}, which is no task here.")
    order, left = ordered({key: task.after for key, task in tasks.items()})
    if left:
        raise Malformed(place, f"These tasks wait for one another: {', '.join(sorted(left))}.")
    return [tasks[key] for key in order]


def _task(key: str, value: Any, place: str, table: Table) -> Task:
    found = mapping(value, place)
    refuse_others(table, found, _TASK, place, "a task")
    reference = mapping(found.get("componentRef"), f"{place}.componentRef")
    inputs = mapping(found.get("inputs"), f"{place}.inputs")
    refuse_others(table, inputs, ("parameters", "artifacts"), f"{place}.inputs", "a task's inputs")
    parameters = dict(_named(inputs, "parameters", f"{place}.inputs"))
    artifacts = dict(_named(inputs, "artifacts", f"{place}.inputs"))
    after = [text(each, f"{place}.dependentTasks") for each in
             sequence(found.get("dependentTasks"), f"{place}.dependentTasks")]  # fmt: skip
    for each in (*parameters.values(), *artifacts.values()):
        for name in ("taskOutputParameter", "taskOutputArtifact", "taskFinalStatus"):
            if name in each:
                source = mapping(each[name], f"{place}.inputs.{name}")
                after.append(text(source.get("producerTask"), f"{place}.inputs.{name}"))
    shown_name = mapping(found.get("taskInfo"), f"{place}.taskInfo").get("name")
    return Task(
        key, place, shown_name if isinstance(shown_name, str) else key,
        text(reference.get("name"), f"{place}.componentRef.name"), parameters, artifacts,
        tuple(dict.fromkeys(after)), found,
    )  # fmt: skip
