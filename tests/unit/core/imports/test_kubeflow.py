"""Compiled Kubeflow pipelines: each feature becomes what it says, or is refused where it stands."""

from __future__ import annotations

import textwrap

import pytest

from gpuplane.core.imports.kfp.lightweight import find_lightweight
from gpuplane.core.imports.results import Containers, Verdict
from tests.unit.core.imports.importing import imported, kubeflow, refusals_of, rows_of, steps_of

ECHO = "{name: comp-echo}"


def test_a_container_becomes_a_job_that_tells_its_outputs() -> None:
    step = steps_of(kubeflow(f"""
        a:
          componentRef: {ECHO}
          cachingOptions: {{enableCache: true}}
          retryPolicy: {{maxRetryCount: 2, backoffDuration: 30s, backoffFactor: 3.0}}
          inputs: {{parameters: {{text: {{runtimeValue: {{constant: hi}}}}}}}}
        """))["a"]  # fmt: skip
    assert (step["step_type"], step["cache"]) == ("job", {"enabled": True})
    assert step["retry"] == {"attempts": 3, "delay_seconds": 30.0, "factor": 3.0}
    spec = step["config"]["spec"]
    assert (spec["image"], step["config"]["max_retries"]) == ("alpine", 0)
    assert spec["command"][:2] == ["sh", "-c"]
    assert spec["command"][4:] == [
        "sh", "-c", 'echo "$0" > "$1"', "hi", "kfp/outputs/out",
    ]  # fmt: skip


def test_outputs_are_inputs_of_later_tasks() -> None:
    steps = steps_of(kubeflow(f"""
        b:
          componentRef: {ECHO}
          inputs:
            parameters:
              text: {{taskOutputParameter: {{producerTask: a, outputParameterKey: out}}}}
        a: {{componentRef: {ECHO}}}
        """))  # fmt: skip
    assert list(steps) == ["a", "b"]
    assert steps["b"]["depends_on"] == ["a"]
    assert steps["b"]["config"]["spec"]["command"][-2] == "{{ string(steps.a.outputs.out) }}"


NESTED = """
comp-condition-1:
  inputDefinitions: {parameters: {seen: {parameterType: STRING}}}
  outputDefinitions: {parameters: {chosen: {parameterType: STRING}}}
  dag:
    outputs:
      parameters: {chosen: {valueFromParameter: {producerSubtask: inner, outputParameterKey: out}}}
    tasks:
      inner: {componentRef: {name: comp-echo}}
"""


def test_a_condition_is_that_of_its_tasks_and_one_of_several_outputs_is_chosen() -> None:
    branches = """
comp-branches:
  inputDefinitions: {parameters: {seen: {parameterType: STRING}}}
  outputDefinitions: {parameters: {one: {parameterType: STRING}}}
  dag:
    outputs:
      parameters:
        one:
          valueFromOneof:
            parameterSelectors:
            - {producerSubtask: yes-1, outputParameterKey: chosen}
            - {producerSubtask: no-1, outputParameterKey: chosen}
    tasks:
      yes-1:
        componentRef: {name: comp-condition-1}
        inputs: {parameters: {seen: {componentInputParameter: seen}}}
        triggerPolicy: {condition: "inputs.parameter_values['seen'] == 'x'"}
      no-1:
        componentRef: {name: comp-condition-1}
        inputs: {parameters: {seen: {componentInputParameter: seen}}}
        triggerPolicy: {condition: "!(inputs.parameter_values['seen'] == 'x')"}
"""
    steps = steps_of(kubeflow("""
        first: {componentRef: {name: comp-echo}}
        group:
          componentRef: {name: comp-branches}
          inputs:
            parameters:
              seen: {taskOutputParameter: {producerTask: first, outputParameterKey: out}}
        last:
          componentRef: {name: comp-echo}
          inputs:
            parameters:
              text: {taskOutputParameter: {producerTask: group, outputParameterKey: one}}
        """, NESTED + branches))  # fmt: skip
    assert list(steps) == ["first", "group-yes-1-inner", "group-no-1-inner", "last"]
    assert steps["group-yes-1-inner"]["condition"] == "{{ steps.first.outputs.out == 'x' }}"
    assert steps["last"]["config"]["spec"]["command"][-2] == (
        "{{ string((steps.first.outputs.out == 'x') ? steps.group-yes-1-inner.outputs.out : "
        "((!(steps.first.outputs.out == 'x')) ? steps.group-no-1-inner.outputs.out : (null))) }}"
    )


LOOP = NESTED.replace("comp-condition-1", "comp-loop").replace(
    "inner: {componentRef: {name: comp-echo}}",
    "inner: {componentRef: {name: comp-echo}, inputs: {parameters: {text: "
    "{componentInputParameter: seen, parameterExpressionSelector: "
    "'parseJson(string_value)[\"k\"]'}}}}",
)


def test_a_parallel_for_is_a_loop_with_its_limit() -> None:
    steps = steps_of(kubeflow("""
        loop:
          componentRef: {name: comp-loop}
          parameterIterator: {itemInput: seen, items: {raw: '[{"k": 1}, {"k": 2}]'}}
          iteratorPolicy: {parallelismLimit: 2}
        """, LOOP.replace("parameterType: STRING", "parameterType: STRUCT", 1)))  # fmt: skip
    config = steps["loop"]["config"]
    assert (config["over"], config["max_parallel"]) == ([{"k": 1}, {"k": 2}], 2)
    assert "item_1.k" in config["steps"][0]["config"]["spec"]["command"][-2]


def test_what_runs_in_any_case_comes_after_what_never_fails() -> None:
    steps = steps_of(
        kubeflow("""
        work: {componentRef: {name: comp-echo}}
        clean:
          componentRef: {name: comp-echo}
          dependentTasks: [work]
          triggerPolicy: {strategy: ALL_UPSTREAM_TASKS_COMPLETED}
        """)
    )
    assert list(steps) == ["before-clean", "clean", "clean-verdict"]
    assert steps["before-clean"]["config"]["fail"] == "never"
    assert steps["clean-verdict"]["depends_on"] == ["clean"]


PLATFORM = """
---
platforms:
  kubernetes:
    deploymentSpec:
      executors:
        exec-echo:
          {addition}
"""


@pytest.mark.parametrize(("addition", "verdict"), [
    ("secretAsEnv: [{secretName: s, keyToEnv: [{secretKey: k, envVar: E}]}]", Verdict.MAPPED),
    ("pvcMount: [{constant: data, mountPath: /d}]", Verdict.MAPPED),
    ("activeDeadlineSeconds: 60", Verdict.MAPPED),
    ("nodeSelector: {labels: {a: b}}", Verdict.MAPPED),
    ("tolerations: [{key: a, operator: Exists}]", Verdict.MAPPED),
    ("imagePullPolicy: Always", Verdict.LEFT_OUT),
    ("secretAsVolume: [{secretName: s, mountPath: /s, optional: true}]", Verdict.LEFT_OUT),
    ("secretAsVolume: [{secretName: s, mountPath: /s}]", Verdict.REFUSED),
    ("configMapAsEnv: [{configMapName: c}]", Verdict.REFUSED),
    ("somethingNew: 1", Verdict.REFUSED),
])  # fmt: skip
def test_additions_of_the_platform_have_a_verdict(addition: str, verdict: Verdict) -> None:
    text = kubeflow(f"a: {{componentRef: {ECHO}}}", more=PLATFORM.replace("{addition}", addition))
    place = f"platforms.kubernetes.deploymentSpec.executors.exec-echo.{addition.partition(':')[0]}"
    assert any(each.startswith(place) for each in rows_of(text, verdict))
    assert (imported(text).document is None) == (verdict is Verdict.REFUSED)


def test_optional_words_are_there_if_their_input_is() -> None:
    text = kubeflow(f"a: {{componentRef: {ECHO}}}").replace(
        "\"{{$.inputs.parameters['text']}}\",",
        """'{"IfPresent": {"InputName": "text", "Then": ["--text"], "Else": ["--none"]}}',
           '{"Concat": ["a-", "b"]}',""",
    )
    assert steps_of(text)["a"]["config"]["spec"]["command"][-3:] == [
        "--none", "a-b", "kfp/outputs/out",
    ]  # fmt: skip


@pytest.mark.parametrize(("change", "place"), [
    (("pipelineInfo: {name: test}", "pipelineInfo: {}"), "pipelineInfo.name"),
    (("schemaVersion: 2.1.0", "schemaVersion: 1.0.0"), "schemaVersion"),
    (("{name: comp-echo}", "{name: comp-none}"), "root.dag.tasks.a"),
    (("executorLabel: exec-echo", "executorLabel: exec-none"), "components.comp-echo"),
    (("parameterType: STRING,", "parameterType: [],"),
     "components.comp-echo.inputDefinitions.parameters.text.parameterType"),
    (("{{$.inputs.parameters['text']}}", "{{$.nonsense}}"),
     "deploymentSpec.executors.exec-echo.container.args[0]"),
    (("image: alpine", "image: 5"), "deploymentSpec.executors.exec-echo.container.image"),
    (("components:", "surprise: 1\ncomponents:"), "the document.surprise"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_where_it_stands(
    change: tuple[str, str], place: str
) -> None:
    text = kubeflow(f"a: {{componentRef: {ECHO}}}")
    assert change[0] in text
    assert place in refusals_of(text.replace(*change))


def test_tasks_that_wait_for_one_another_are_refused() -> None:
    text = kubeflow(f"""
        a: {{componentRef: {ECHO}, dependentTasks: [b]}}
        b: {{componentRef: {ECHO}, dependentTasks: [a]}}
        """)
    assert refusals_of(text) == {"root.dag.tasks": "These tasks wait for one another: a, b."}


def test_components_within_components_are_bounded() -> None:
    parts = "".join(
        f"comp-{n}:\n  dag: {{tasks: {{x: {{componentRef: {{name: comp-{n + 1}}}}}, "
        f"y: {{componentRef: {{name: comp-{n + 1}}}}}}}}}\n"
        for n in range(15)
    ) + "comp-15: {executorLabel: exec-echo}\n"  # fmt: skip
    found = refusals_of(kubeflow("a: {componentRef: {name: comp-0}}", parts))
    assert found == {"the pipeline": "It has more than 5000 steps."}
    itself = "comp-0:\n  dag: {tasks: {x: {componentRef: {name: comp-0}}}}\n"
    assert "contains itself" in "".join(
        refusals_of(kubeflow("a: {componentRef: {name: comp-0}}", itself)).values()
    )


def test_python_that_needs_more_than_python_is_a_job() -> None:
    args = ["--executor_input", "{{$}}", "--function_to_execute", "f"]
    head = "import kfp\nfrom kfp import dsl\n"

    def needs(body: str, install: str = "") -> str:
        found = find_lightweight(["sh", "-c", f"pip install 'kfp==2.9.0' {install}",
                                  f"{head}def f():\n    {body}\n"], args)  # fmt: skip
        assert found is not None
        return found.needs

    assert needs("import json, os.path") == ""
    assert needs("import pandas") == "it imports pandas, which is no part of Python"
    assert needs("pass", "'pandas==2.2.0'") == "it installs pandas==2.2.0"
    assert "has neither processes nor network" in needs("import subprocess")
    assert "no files but its own" in needs("open('/tmp/x')")
    assert find_lightweight(["echo"], ["hello"]) is None


def test_containers_become_processes_where_that_is_asked() -> None:
    text = kubeflow(f"a: {{componentRef: {ECHO}}}")
    config = steps_of(text, containers=Containers.PROCESS)["a"]["config"]
    assert (config["deployment_type"], "image" in config["spec"]) == ("process", False)


def test_plain_variables_of_a_function_are_in_its_environment() -> None:
    lightweight = """
exec-echo:
  container:
    image: "python:3"
    env: [{name: GREETING, value: "it's me"}]
    command: [sh, -c, "pip install 'kfp==2.9.0'", "import os\\ndef f() -> str:\\n  return ''\\n"]
    args: [--executor_input, '{{$}}', --function_to_execute, f]
"""
    text = kubeflow(f"a: {{componentRef: {ECHO}}}")
    at = text.index("    exec-echo:")
    text = text[:at] + textwrap.indent(lightweight, "    ") + text[text.index("\nroot:") :]
    code = steps_of(text)["a"]["config"]["code"]
    assert """_os.environ.update(_json.loads('{"GREETING": "it\\'s me"}'))""" in code
    computed = steps_of(text.replace("it's me", "{{$.pipeline_job_name}}"))["a"]
    assert (computed["step_type"], computed["config"]["spec"]["env"]) == (
        "job", {"GREETING": '{{ "test-" + string(run.id) }}'},
    )  # fmt: skip
