"""Argo workflows: each feature becomes what it says, or is refused where it stands."""

from __future__ import annotations

import json

import pytest

from gpuplane.core.imports.results import Containers, SourceKind, Verdict
from tests.unit.core.imports.importing import (
    SAY,
    argo,
    imported,
    refusals_of,
    rows_of,
    steps_of,
)


def test_groups_of_steps_follow_one_another() -> None:
    steps = steps_of(argo(SAY, """
        - name: main
          steps:
          - - {name: a, template: say}
            - {name: b, template: say}
          - - {name: c, template: say}
        """))  # fmt: skip
    assert "depends_on" not in steps["main-a"]
    assert steps["main-c"]["depends_on"] == ["main-a", "main-b"]
    assert steps["main-a"]["config"]["spec"]["command"] == ["echo", "hello"]


def test_parameters_become_text_parameters_and_are_put_into_commands() -> None:
    found = imported(argo(
        "- {name: main, container: {image: a, command: [run, 'to {{workflow.parameters.who}}']}}",
        arguments="{parameters: [{name: who, value: 3}, {name: not-given}]}",
    ))  # fmt: skip
    assert found.document is not None
    spec = found.document["spec"]
    assert spec["parameters"] == {
        "who": {"type": "string", "default": "3"},
        "not-given": {"type": "string", "required": True},
    }
    assert spec["steps"][0]["config"]["spec"]["command"] == [
        "run", '{{ "to " + string(params.who) }}',
    ]  # fmt: skip


@pytest.mark.parametrize(("when", "cel"), [
    ("{{workflow.parameters.x}} == heads", 'string(params.x) == string("heads")'),
    ("'{{workflow.parameters.x}}' != \"a b\"", 'string(params.x) != string("a b")'),
    ("{{workflow.parameters.x}} >= 10", 'double(params.x) >= double("10")'),
    ("{{workflow.parameters.x}} =~ hea", 'string(params.x).matches("hea")'),
    ("true && ({{workflow.parameters.x}} < 1)", 'true && ( double(params.x) < double("1") )'),
    ("{{=asInt(workflow.parameters.x) > 1}}", "int ( params.x ) > 1"),
    ("{{=jsonpath(workflow.parameters.x, '$[0].a') == 'b'}}",
     'json.decode(params.x)[0]["a"] == "b"'),
])  # fmt: skip
def test_conditions_become_cel(when: str, cel: str) -> None:
    text = argo(SAY, f"""
        - name: main
          steps: [[{{name: a, template: say, when: {json.dumps(when)}}}]]
        """)  # fmt: skip
    assert steps_of(text)["main-a"]["condition"] == f"{{{{ {cel} }}}}"


@pytest.mark.parametrize("when", ["heads ==", "(a == b", "a == b)", "a b", "== b", "{{=1 +* x}}",
                                  "{{steps.nobody.outputs.result}} == a", "a == b &&"])  # fmt: skip
def test_a_condition_that_cannot_be_read_is_refused_where_it_stands(when: str) -> None:
    text = argo(SAY, f"""
        - name: main
          steps: [[{{name: a, template: say, when: {json.dumps(when)}}}]]
        """)  # fmt: skip
    assert list(refusals_of(text)) == ["spec.templates.main.steps[0][0].when"]


def test_loops_become_loops_and_their_outputs_lists() -> None:
    steps = steps_of(argo(SAY, """
        - name: main
          steps:
          - - {name: each, template: make, withItems: [{n: 1}, {n: 2}],
               arguments: {parameters: [{name: n, value: "{{item.n}}"}]}}
          - - {name: all, template: say,
               arguments: {parameters: [{name: text, value: "{{steps.each.outputs.result}}"}]}}
          - - {name: count, template: say, withSequence: {start: 8, end: 10, format: n%02d},
               arguments: {parameters: [{name: text, value: "{{item}}"}]}}
        - name: make
          inputs: {parameters: [{name: n}]}
          script: {image: "python:3", command: [python], source: "print({{inputs.parameters.n}})"}
        """))  # fmt: skip
    each = steps["main-each"]["config"]
    assert (each["over"], each["as"]) == ([{"n": 1}, {"n": 2}], "item_1")
    assert each["steps"][0]["config"]["inputs"] == {
        "source": '{{ "print(" + string(string(item_1.n)) + ")" }}'
    }
    aggregated = steps["main-all"]["config"]["spec"]["command"][1]
    assert aggregated.startswith(
        "{{ json.encode(steps.main-each.outputs.results"
        '.filter(result_1, result_1["main-each-each"] != null).map(result_1, '
    )
    assert "json.decode" in aggregated
    assert steps["main-count"]["config"]["over"] == ["n08", "n09", "n10"]


def test_a_script_without_needs_is_a_function_and_others_are_jobs() -> None:
    steps = steps_of(argo("""
        - name: main
          steps: [[{name: a, template: plain}, {name: b, template: fetch}, {name: c, template: sh}]]
        - {name: plain, script: {image: "python:3", command: [python3], source: "print(1)"}}
        - {name: fetch, script: {image: "python:3", command: [python3], source: "import requests"}}
        - {name: sh, script: {image: alpine, command: [sh], source: "echo 1"}}
        """))  # fmt: skip
    assert {key: step["step_type"] for key, step in steps.items()} == {
        "main-a": "function", "main-b": "job", "main-c": "job",
    }  # fmt: skip


def test_an_exit_handler_runs_after_what_never_fails_and_the_verdict_comes_last() -> None:
    steps = steps_of(argo(SAY, """
        - {name: main, steps: [[{name: a, template: say}]]}
        - name: bye
          steps:
          - - {name: b, template: say, when: "{{workflow.status}} != Succeeded"}
        """, onExit="bye"))  # fmt: skip
    assert list(steps) == ["workflow", "on-exit-b", "verdict"]
    assert steps["workflow"]["config"]["fail"] == "never"
    assert steps["on-exit-b"]["depends_on"] == ["workflow"]
    assert "steps.workflow.outputs.failed" in steps["on-exit-b"]["condition"]
    assert steps["verdict"]["config"]["inputs"] == {"failed": "{{ steps.workflow.outputs.failed }}"}


def test_a_call_that_may_fail_is_held() -> None:
    steps = steps_of(argo(SAY, """
        - name: main
          steps:
          - - {name: a, template: say, continueOn: {failed: true}}
          - - {name: b, template: say, when: "{{steps.a.status}} == Failed"}
        """))  # fmt: skip
    assert steps["main-a-held"]["config"]["branches"][0][0]["id"] == "main-a"
    assert "size(steps.main-a-held.outputs.failed) == 0" in steps["main-b"]["condition"]


def test_policies_become_those_of_the_step_and_the_pipeline() -> None:
    text = argo(
        """
        - name: main
          retryStrategy: {limit: "4", backoff: {duration: 2m, factor: 3, maxDuration: 1h}}
          activeDeadlineSeconds: 90
          synchronization: {mutex: {name: one}}
          memoize: {key: x, maxAge: 10m, cache: {configMap: {name: c}}}
          nodeSelector: {disk: ssd}
          container:
            image: a
            command: [b]
            env: [{name: A, value: 1}, {name: B, valueFrom: {secretKeyRef: {name: S, key: k}}}]
            resources: {limits: {cpu: 500m, memory: 2Gi, nvidia.com/gpu: 2}}
        """,
        parallelism="3",
        activeDeadlineSeconds="600",
        synchronization="{mutex: {name: all}}",
    )
    found = imported(text)
    assert found.document is not None
    spec = found.document["spec"]
    assert (spec["max_parallel"], spec["timeout_seconds"]) == (3, 600.0)
    assert spec["concurrency"] == {"key": "all", "limit": 1}
    step = spec["steps"][0]
    assert step["retry"] == {
        "attempts": 5, "delay_seconds": 120.0, "max_delay_seconds": 3600.0, "factor": 3.0,
    }  # fmt: skip
    assert (step["timeout_seconds"], step["limit"]) == (90.0, {"key": "one", "count": 1})
    assert step["cache"] == {"enabled": True, "keep_seconds": 600}
    config = step["config"]
    assert (config["cpu_cores"], config["memory_gb"], config["gpu_count"]) == (0.5, 2.0, 2)
    assert config["placement"] == {"node_selector": {"disk": "ssd"}}
    assert config["spec"]["env"] == {"A": "1"}
    assert config["spec"]["secrets"] == [{"name": "s-k", "env": "B"}]


def test_a_cron_workflow_becomes_triggers() -> None:
    found = imported("""
        apiVersion: argoproj.io/v1alpha1
        kind: CronWorkflow
        metadata: {name: nightly}
        spec:
          schedules: ["0 2 * * *", "0 3 * * *"]
          timezone: Europe/Berlin
          concurrencyPolicy: Forbid
          workflowSpec:
            entrypoint: main
            templates: [{name: main, suspend: {duration: 5m}}]
        """)
    assert found.document is not None
    spec = found.document["spec"]
    assert [(each["cron"], each["time_zone"]) for each in spec["triggers"]] == [
        ("0 2 * * *", "Europe/Berlin"), ("0 3 * * *", "Europe/Berlin"),
    ]  # fmt: skip
    assert spec["concurrency"]["limit"] == 1
    assert spec["steps"][0]["config"] == {"duration_seconds": 300.0}


def test_templates_of_other_files_are_found_there() -> None:
    text = argo("""
        - name: main
          steps: [[{name: a, templateRef: {name: shared, template: outer}}]]
        """)
    shared = """
        apiVersion: argoproj.io/v1alpha1
        kind: WorkflowTemplate
        metadata: {name: shared}
        spec:
          templates:
          - {name: outer, steps: [[{name: in, template: say}]]}
          - {name: say, container: {image: busybox, command: [echo, shared]}}
        """
    assert list(steps_of(text, shared)) == ["main-a-in"]
    assert refusals_of(text) == {
        "spec.templates.main.steps[0][0].templateRef":
            "The template 'shared' is not in the files that were given."
    }  # fmt: skip


REFUSED = {
    "resource": ("resource: {action: create, manifest: x}", "resource"),
    "sidecars": ("container: {image: a, command: [b]}\n  sidecars: [{name: s}]", "sidecars"),
    "podSpecPatch": ("container: {image: a, command: [b]}\n  podSpecPatch: x", "podSpecPatch"),
    "plugin": ("plugin: {hello: {}}", "plugin"),
    "data": ("data: {source: {}}", "data"),
    "an unknown field": ("container: {image: a, command: [b]}\n  surprise: 1", "surprise"),
    "an unknown field of a container": (
        "container: {image: a, command: [b], surprise: 1}", "container.surprise",
    ),
    "an unknown entry point": ("container: {image: a, args: [b]}", "container.command"),
    "an artifact elsewhere": (
        "container: {image: a, command: [b]}\n"  # noqa: ISC004 - one text
        "  outputs: {artifacts: [{name: x, path: /x, gcs: {bucket: b, key: k}}]}",
        "outputs.artifacts[0].gcs",
    ),
    "retries by expression": (
        "container: {image: a, command: [b]}\n"  # noqa: ISC004 - one text
        "  retryStrategy: {limit: 2, expression: 'true'}", "retryStrategy.expression",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_step_can_do_is_refused_by_its_place(what: str) -> None:
    body, place = REFUSED[what]
    assert f"spec.templates.main.{place}" in refusals_of(argo(f"- name: main\n  {body}\n"))


def test_a_template_that_calls_itself_is_refused() -> None:
    text = argo("- {name: main, steps: [[{name: again, template: main}]]}")
    assert refusals_of(text) == {
        "spec.templates.main.steps[0][0]":
            "The template '/main' calls itself; pipelines do not recurse."
    }  # fmt: skip


def test_what_only_concerns_pods_is_left_out_with_a_reason() -> None:
    text = argo("- {name: main, container: {image: a, command: [b]}}", serviceAccountName="x",
                podGC="{strategy: OnPodCompletion}")  # fmt: skip
    assert set(rows_of(text, Verdict.LEFT_OUT)) == {"spec.serviceAccountName", "spec.podGC"}


def test_volumes_are_named_and_secrets_are_not_mounted() -> None:
    text = argo(
        """
        - name: main
          container:
            image: a
            command: [b]
            volumeMounts: [{name: work, mountPath: /work}, {name: known, mountPath: /known}]
        """,
        volumeClaimTemplates="[{metadata: {name: work}}]",
        volumes="[{name: known, persistentVolumeClaim: {claimName: data}}]",
    )
    assert steps_of(text)["main"]["config"]["spec"]["mounts"] == [
        {"name": '{{ "run-" + string(run.id) + "-work" }}', "path": "/work"},
        {"name": "data", "path": "/known"},
    ]
    secret = text.replace("persistentVolumeClaim: {claimName: data}", "secret: {secretName: s}")
    assert refusals_of(secret) == {
        "spec.templates.main.container.volumeMounts[1]": "A volume made of secret is not there."
    }
    assert refusals_of(text, containers=Containers.PROCESS)


def test_braces_of_the_source_are_no_expressions_of_the_pipeline() -> None:
    text = argo("- {name: main, container: {image: a, command: [b, '{% raw %} }} {#']}}")
    assert steps_of(text)["main"]["config"]["spec"]["command"][1] == (
        '{{ "\\x7b\\x25" }} raw %} }} {{ "\\x7b#" }}'
    )


def test_a_file_of_neither_system_is_refused() -> None:
    for text in ("kind: Pod", "- 1", "", "just text"):
        found = imported(text)
        assert (found.kind, found.document) == (SourceKind.UNKNOWN, None)
        assert [row.place for row in found.refusals] == ["the file"]


def test_long_chains_and_long_texts_are_read_in_one_pass() -> None:
    tasks = "".join(
        f"    - {{name: t{n}, template: say, dependencies: [{f't{n + 1}' if n < 1500 else ''}]}}\n"
        for n in range(1501)
    )
    steps = steps_of(argo(SAY, f"- name: main\n  dag:\n    tasks:\n{tasks}"))
    assert list(steps)[:2] == ["main-t1500", "main-t1499"]
    braces = "{{" * 200_000
    text = argo(f"- {{name: main, container: {{image: a, command: [b, '{braces}']}}}}")
    assert len(steps_of(text)["main"]["config"]["spec"]["command"][1]) > len(braces)
