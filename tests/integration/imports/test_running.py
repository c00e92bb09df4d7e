"""What was imported runs: on a control plane that works, with the outputs of the source."""

from __future__ import annotations

import base64
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gpuplane.core.imports.importing import import_documents
from gpuplane.core.imports.results import Containers
from gpuplane.kit.yaml_texts import load_documents
from tests.integration.imports.sets import needs_sets, steps_of, texts_of
from tests.integration.pipelines.worlds import World

LOCAL: dict[str, Any] = json.loads((Path(__file__).parent / "kfp_local.json").read_text())
"""What the released `kfp` 2.15.2 gives for the files of the set that its `kfp.local` can run and
that have no chance in them: outputs by name, of artifacts the type, metadata and content."""


def document_of(text: str, containers: Containers = Containers.DOCKER) -> dict[str, Any]:
    found = import_documents(load_documents(textwrap.dedent(text)), containers)
    assert found.document is not None, found.refusals
    return dict(json.loads(json.dumps(found.document)))


def plain(value: Any) -> Any:
    """Return an output as the file writes it: of an artifact what does not depend on the place."""
    if not isinstance(value, dict) or "files" not in value:
        return value
    content = value["files"].get("")
    return {
        "type": value["type"], "metadata": value["metadata"],
        "content": None if content is None else base64.b64decode(content).decode(),
    }  # fmt: skip


@needs_sets
@pytest.mark.timeout(300)
async def test_the_outputs_are_those_of_kfp_local(world: World) -> None:
    files = texts_of("kfp-compiled.tar.gz")
    assert len(LOCAL) >= 15
    for name, expected in LOCAL.items():
        document = document_of(files[name])
        for step in steps_of(document["spec"]["steps"]):
            step.pop("cache", None)
        ended = await world.run(document, **expected["args"])
        assert ended.status == "completed", (name, ended.run["message"])
        outputs = ended.output("pipeline-outputs") if expected["outputs"] else {}
        found = {key: plain(each) for key, each in outputs.items()}
        assert found == expected["outputs"], name


@needs_sets
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "step", "word"), [
    ("valid/failing/fail_v2.yaml", "fail", "Exited"),
    ("valid/failing/pipeline_with_multiple_exit_handlers.yaml",
     "before-print-op/0/exit-handler-1-fail-op", "Exited"),
])  # fmt: skip
async def test_what_fails_in_kubeflow_fails_for_its_own_reason(
    world: World, name: str, step: str, word: str
) -> None:
    ended = await world.run(document_of(texts_of("kfp-compiled.tar.gz")[name]))
    assert (ended.status, ended.steps[step]["error"]) == ("failed", word)
    assert all(each["status"] == "completed" for key, each in ended.steps.items()
               if key.startswith("print-op") and "verdict" not in key)  # fmt: skip


COMPONENT = """
          container:
            image: python:3.11
            command: [sh, -c, 'python3 -m pip install ''kfp==2.15.2'' && "$0" "$@"', sh, -ec,
                      'python3 -m kfp.dsl.executor_main "$@"', {source}]
            args: [--executor_input, '{{{{$}}}}', --function_to_execute, {name}]"""
HEAD = "import kfp\nfrom kfp import dsl\nfrom kfp.dsl import *\nfrom typing import *\n\n"


def component(name: str, source: str) -> str:
    return COMPONENT.format(name=name, source=json.dumps(HEAD + textwrap.dedent(source)))


KUBEFLOW = (
    """
    pipelineInfo: {name: Squares}
    schemaVersion: 2.1.0
    components:
      comp-square:
        executorLabel: exec-square
        inputDefinitions: {parameters: {x: {parameterType: NUMBER_INTEGER}}}
        outputDefinitions:
          parameters: {Output: {parameterType: NUMBER_INTEGER}}
          artifacts: {note: {artifactType: {schemaTitle: system.Dataset}}}
      comp-total:
        executorLabel: exec-total
        inputDefinitions:
          parameters: {numbers: {parameterType: LIST}}
          artifacts: {notes: {artifactType: {schemaTitle: system.Dataset}, isArtifactList: true}}
        outputDefinitions: {parameters: {Output: {parameterType: STRING}}}
      comp-for-loop-1:
        inputDefinitions: {parameters: {item: {parameterType: NUMBER_INTEGER}}}
        outputDefinitions: {parameters: {all: {parameterType: LIST}}}
        dag:
          outputs:
            parameters:
              all: {valueFromParameter: {outputParameterKey: Output, producerSubtask: square}}
            artifacts:
              notes: {artifactSelectors: [{outputArtifactKey: note, producerSubtask: square}]}
          tasks:
            square:
              taskInfo: {name: square}
              componentRef: {name: comp-square}
              inputs: {parameters: {x: {componentInputParameter: item}}}
              triggerPolicy: {condition: "int(inputs.parameter_values['x']) != 2"}
    root:
      inputDefinitions:
        parameters: {numbers: {parameterType: LIST, defaultValue: [1, 2, 3], isOptional: true}}
      dag:
        outputs:
          parameters:
            text: {valueFromParameter: {outputParameterKey: Output, producerSubtask: total}}
        tasks:
          for-loop-1:
            taskInfo: {name: for-loop-1}
            componentRef: {name: comp-for-loop-1}
            parameterIterator: {itemInput: item, items: {inputParameter: numbers}}
            inputs: {parameters: {numbers: {componentInputParameter: numbers}}}
          total:
            taskInfo: {name: total}
            componentRef: {name: comp-total}
            inputs:
              parameters:
                numbers:
                  taskOutputParameter: {outputParameterKey: all, producerTask: for-loop-1}
              artifacts:
                notes: {taskOutputArtifact: {outputArtifactKey: notes, producerTask: for-loop-1}}
    deploymentSpec:
      executors:
        exec-square:"""
    + component("square", """
        def square(x: int, note: Output[Dataset]) -> int:
            with open(note.path, 'w') as file:
                file.write(f'{x} squared')
            note.metadata['x'] = x
            return x * x
        """)
    + """
        exec-total:"""
    + component("total", """
        def total(numbers: list, notes: Input[List[Dataset]]) -> str:
            texts = [open(each.path).read() + str(each.metadata['x']) for each in notes]
            return f'{sum(numbers)}: ' + ', '.join(texts)
        """)
    + "\n"
)  # fmt: skip


async def test_a_kubeflow_loop_hands_on_parameters_and_artifacts(world: World) -> None:
    document = document_of(KUBEFLOW)
    assert document["metadata"]["name"] == "squares"
    ended = await world.run(document)
    assert ended.output("pipeline-outputs") == {"text": "10: 1 squared1, 3 squared3"}
    again = await world.run(document, numbers=[5])
    assert again.output("pipeline-outputs") == {"text": "25: 5 squared5"}


ARGO = """
    apiVersion: argoproj.io/v1alpha1
    kind: Workflow
    metadata: {generateName: words-}
    spec:
      entrypoint: main
      onExit: farewell
      arguments: {parameters: [{name: words, value: '["one", "three"]'}]}
      templates:
      - name: main
        steps:
        - - name: each
            template: measure
            arguments: {parameters: [{name: word, value: "{{item}}"}]}
            withParam: "{{workflow.parameters.words}}"
        - - name: collect
            template: collect
            arguments:
              parameters: [{name: sizes, value: "{{steps.each.outputs.parameters.size}}"}]
          - name: never
            template: measure
            when: "{{workflow.parameters.words}} == nothing"
            arguments: {parameters: [{name: word, value: x}]}
      - name: measure
        inputs: {parameters: [{name: word}]}
        container:
          image: busybox
          command: [sh, -c]
          args: ["printf %s '{{inputs.parameters.word}}' | wc -c | tr -d ' \\n' > size.txt"]
        outputs: {parameters: [{name: size, valueFrom: {path: size.txt}}]}
      - name: collect
        inputs: {parameters: [{name: sizes}]}
        script:
          image: python:alpine
          command: [python]
          source: |
            import json
            print(sum(int(each) for each in json.loads('{{inputs.parameters.sizes}}')))
      - name: farewell
        script:
          image: python:alpine
          command: [python]
          source: print("it {{workflow.status}}")
    """


async def test_an_argo_workflow_runs_with_its_containers_as_processes(world: World) -> None:
    document = document_of(ARGO, Containers.PROCESS)
    ended = await world.run(document)
    assert ended.status == "completed", ended.run["message"]
    sizes = [each["main-each-each"]["size"] for each in
             ended.steps["workflow"]["output"]["results"]["main-each"]["results"]]  # fmt: skip
    assert sizes == ["3", "5"]
    assert ended.steps["workflow"]["output"]["results"]["main-collect"]["result"] == "8"
    assert ended.steps["workflow/0/main-never"]["status"] == "skipped"
    assert ended.output("on-exit")["result"] == "it Succeeded"


FAILING = """
    apiVersion: argoproj.io/v1alpha1
    kind: Workflow
    metadata: {name: failing}
    spec:
      entrypoint: main
      templates:
      - name: main
        dag:
          tasks:
          - {name: a, template: fail}
          - {name: b, template: say, depends: a.Failed}
          - {name: c, template: say, depends: a.Succeeded}
          - {name: d, template: say, depends: b && c}
      - name: fail
        script: {image: "python:3", command: [python], source: "raise SystemExit(7)"}
      - name: say
        script: {image: "python:3", command: [python], source: "print('said')"}
    """


async def test_tasks_depend_on_how_others_ended(world: World) -> None:
    ended = await world.run(document_of(FAILING))
    states = {key: step["status"] for key, step in ended.steps.items()}
    assert states["main-a-held/0/main-a"] == "failed"
    assert (states["main-b"], states["main-c"], states["main-d"]) == (
        "completed", "skipped", "completed",
    )  # fmt: skip
    assert ended.status == "completed"
