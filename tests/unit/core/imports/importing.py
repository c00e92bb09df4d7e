"""Small documents of both systems, and what an import makes of them."""

from __future__ import annotations

import textwrap
from typing import Any

from gpuplane.core.imports.importing import import_documents
from gpuplane.core.imports.results import Containers, ImportResult, Verdict
from gpuplane.kit.yaml_texts import load_documents


def imported(
    text: str, *others: str, containers: Containers = Containers.DOCKER
) -> ImportResult:  # fmt: skip
    """Return what becomes of a YAML text."""
    more = [part for each in others for part in load_documents(textwrap.dedent(each))]
    return import_documents(load_documents(textwrap.dedent(text)), containers, more)


def steps_of(text: str, *others: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Return the steps of the pipeline that a text becomes, by id."""
    found = imported(text, *others, **more)
    assert found.document is not None, found.refusals
    return {step["id"]: step for step in found.document["spec"]["steps"]}


def refusals_of(text: str, *others: str, **more: Any) -> dict[str, str]:
    """Return the reasons against a text by their places."""
    return {row.place: row.reason for row in imported(text, *others, **more).refusals}


def rows_of(text: str, verdict: Verdict) -> dict[str, str]:
    """Return the reasons of one verdict by their places."""
    return {row.place: row.reason for row in imported(text).rows if row.verdict is verdict}


def argo(*templates: str, **spec: str) -> str:
    """Return a workflow with these templates, whose first is the entry point unless told."""
    more = "\n".join(f"  {name}: {each}" for name, each in spec.items())
    entry = "" if "entrypoint" in spec else "  entrypoint: main\n"
    return (
        "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: test-}\n"
        f"spec:\n{entry}{more}\n  templates:\n"
        + textwrap.indent("".join(textwrap.dedent(each) for each in templates), "  ")
    )


SAY = """
- name: say
  inputs: {parameters: [{name: text, value: hello}]}
  container: {image: busybox, command: [echo], args: ["{{inputs.parameters.text}}"]}
"""


def kubeflow(tasks: str, components: str = "", executors: str = "", more: str = "") -> str:
    """Return a compiled pipeline; `echo` is a component with an optional parameter `text`."""
    return (
        textwrap.dedent("""\
        pipelineInfo: {name: test}
        schemaVersion: 2.1.0
        components:
          comp-echo:
            executorLabel: exec-echo
            inputDefinitions:
              parameters: {text: {parameterType: STRING, isOptional: true}}
            outputDefinitions: {parameters: {out: {parameterType: STRING}}}
        """)
        + textwrap.indent(textwrap.dedent(components), "  ")
        + textwrap.dedent("""
        deploymentSpec:
          executors:
            exec-echo:
              container:
                image: alpine
                command: [sh, -c, 'echo "$0" > "$1"']
                args: ["{{$.inputs.parameters['text']}}",
                       "{{$.outputs.parameters['out'].output_file}}"]
        """)
        + textwrap.indent(textwrap.dedent(executors), "    ")
        + "\nroot:\n  dag:\n    tasks:\n"
        + textwrap.indent(textwrap.dedent(tasks), "      ")
        + textwrap.dedent(more)
    )
