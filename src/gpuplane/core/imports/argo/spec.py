"""Reads Argo manifests: what runs, the templates it has, and those of other manifests.

Field names are those of argo-workflows, pkg/apis/workflow/v1alpha1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuplane.core.imports.reading import mapping, scalar, sequence, text
from gpuplane.core.imports.results import Malformed, Table

KINDS = ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow")
OTHERS = {
    "WorkflowEventBinding": "It only says which event submits a template: write an event trigger.",
    "WorkflowTaskSet": "Only Argo's own controller makes these.",
    "WorkflowArtifactGCTask": "Only Argo's own controller makes these.",
    "Sensor": "This is of Argo Events: write an event trigger.",
    "EventSource": "This is of Argo Events: write an event trigger.",
}


@dataclass(frozen=True, slots=True)
class Library:
    """Templates by the name of their manifest, and values of config maps, of all documents."""

    templates: Mapping[str, Mapping[str, Any]]
    """Manifest → its workflow spec."""
    configs: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Source:
    """What is to become a pipeline.

    Args:
        kind: Of the manifest.
        name: Of the manifest.
        place: Of its workflow spec.
        spec: The workflow's.
        cron: A cron workflow's own; empty else.
    """

    kind: str
    name: str
    place: str
    spec: Mapping[str, Any]
    cron: Mapping[str, Any]
    metadata: Mapping[str, Any]


def is_argo(documents: Sequence[Any]) -> bool:
    """Return whether any of the documents is of Argo."""
    return any(isinstance(each, dict) and str(each.get("apiVersion", "")).startswith("argoproj.io/")
               for each in documents)  # fmt: skip


def read_library(documents: Sequence[Any]) -> Library:
    """Return what other manifests may be taken from."""
    templates: dict[str, Mapping[str, Any]] = {}
    configs: dict[str, Mapping[str, Any]] = {}
    for at, each in enumerate(documents):
        if not isinstance(each, dict):
            continue
        name = mapping(each.get("metadata"), f"document {at + 1}.metadata").get("name")
        if not isinstance(name, str):
            continue
        if each.get("kind") in ("WorkflowTemplate", "ClusterWorkflowTemplate"):
            templates[name] = mapping(each.get("spec"), f"document {at + 1}.spec")
        elif each.get("kind") == "ConfigMap":
            configs[name] = mapping(each.get("data"), f"document {at + 1}.data")
    return Library(templates, configs)


def read_source(documents: Sequence[Any], library: Library, table: Table) -> Source:
    """Return the manifest that is to become a pipeline: the first that runs something.

    Raises:
        Malformed: If there is none.
    """
    found: list[Source] = []
    for at, raw in enumerate(documents):
        place = "" if len(documents) == 1 else f"document {at + 1}: "
        each = mapping(raw, f"{place}the document")
        kind = str(each.get("kind"))
        if kind in OTHERS:
            table.refused(f"{place}kind", kind, OTHERS[kind])
            continue
        if kind not in KINDS:
            continue
        metadata = mapping(each.get("metadata"), f"{place}metadata")
        name = metadata.get("name") or metadata.get("generateName") or "workflow"
        spec = mapping(each.get("spec"), f"{place}spec")
        cron: Mapping[str, Any] = {}
        where = f"{place}spec"
        if kind == "CronWorkflow":
            cron, where = spec, f"{place}spec.workflowSpec"
            spec = mapping(spec.get("workflowSpec"), where)
        found.append(Source(kind, scalar(name, "metadata.name"), where, spec, cron, metadata))
    if not found:
        raise Malformed("kind", "There is no workflow in it.")
    running = [each for each in found if _entrypoint(each.spec, library)]
    if not running:
        raise Malformed(
            f"{found[0].place}.entrypoint",
            "It has several templates and no entrypoint: give it together with what uses them.",
        )
    return running[0]


def _entrypoint(spec: Mapping[str, Any], library: Library) -> str:
    name = spec.get("entrypoint")
    if isinstance(name, str) and name:
        return name
    if spec.get("workflowTemplateRef"):
        return "(of its template)"
    templates = spec.get("templates")
    if isinstance(templates, list) and len(templates) == 1 and isinstance(templates[0], dict):
        return str(templates[0].get("name") or "")
    return ""


def merged(source: Source, library: Library, table: Table) -> Mapping[str, Any]:
    """Return a workflow's spec with that of the template it refers to; its own fields win.

    Raises:
        Malformed: If it refers to what is not there.
    """
    reference = source.spec.get("workflowTemplateRef")
    if reference is None:
        return source.spec
    place = f"{source.place}.workflowTemplateRef"
    name = text(mapping(reference, place).get("name"), f"{place}.name")
    if name not in library.templates:
        raise Malformed(place, f"The template {name!r} is not in the files that were given.")
    table.mapped(place, "workflowTemplateRef", "Its templates are taken from the other manifest.")
    base = dict(library.templates[name])
    own = {key: each for key, each in source.spec.items() if key != "workflowTemplateRef"}
    theirs = mapping(base.get("arguments"), "the template's arguments")
    ours = mapping(own.get("arguments"), f"{source.place}.arguments")
    joined: dict[str, Any] = {}
    for kind in ("parameters", "artifacts"):
        by_name: dict[str, Any] = {}
        for each in (*sequence(theirs.get(kind), kind), *sequence(ours.get(kind), kind)):
            one = mapping(each, f"{source.place}.arguments.{kind}")
            by_name[str(one.get("name"))] = one
        joined[kind] = list(by_name.values())
    return {**base, **own, "arguments": joined}


def templates_of(spec: Mapping[str, Any], place: str) -> dict[str, Mapping[str, Any]]:
    """Return the templates of a workflow's spec by name.

    Raises:
        Malformed: If they cannot be read.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for at, raw in enumerate(sequence(spec.get("templates"), f"{place}.templates")):
        each = mapping(raw, f"{place}.templates[{at}]")
        found[scalar(each.get("name"), f"{place}.templates[{at}].name")] = each
    return found
