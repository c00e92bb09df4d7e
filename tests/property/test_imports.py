"""Whatever stands in a file, an import answers: with a pipeline, or with reasons."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.core.imports.importing import import_documents
from gpuplane.core.imports.results import Containers, ImportResult
from gpuplane.kit.yaml_texts import UnreadableYaml, load_documents
from tests.unit.core.imports.importing import SAY, argo, kubeflow

SOURCES = [
    load_documents(argo(SAY, """
        - name: main
          inputs: {parameters: [{name: x, default: y}]}
          steps:
          - - {name: a, template: say, withItems: [1, {b: c}], when: "{{item}} == 1",
               arguments: {parameters: [{name: text, value: "{{item}}{{=inputs.parameters.x}}"}]}}
            - {name: b, template: graph, continueOn: {failed: true}, onExit: say}
          - - {name: c, template: made, arguments: {artifacts: [{name: in, raw: {data: d}}]}}
        - name: graph
          dag:
            target: "q"
            tasks:
            - {name: p, template: say}
            - {name: q, template: say, depends: "p.Failed || p.Succeeded"}
        - name: made
          inputs: {artifacts: [{name: in, path: /in}]}
          retryStrategy: {limit: 2, backoff: {duration: 1m, factor: 2}}
          volumes: [{name: v, emptyDir: {}}]
          container: {image: i, command: [c], env: [{name: E, value: v}],
                      volumeMounts: [{name: v, mountPath: /v}], resources: {limits: {cpu: 1}}}
          outputs: {parameters: [{name: o, valueFrom: {path: /o, default: d}}],
                    artifacts: [{name: out, path: /out}]}
        """, onExit="say", arguments="{parameters: [{name: p, value: 1}]}",
        synchronization="{mutex: {name: m}}")),
    load_documents(kubeflow("""
        a:
          componentRef: {name: comp-echo}
          retryPolicy: {maxRetryCount: 2, backoffDuration: 3s}
        loop:
          componentRef: {name: comp-loop}
          parameterIterator: {itemInput: x, items: {raw: '[1, 2]'}}
          iteratorPolicy: {parallelismLimit: 2}
          inputs: {parameters: {y: {taskOutputParameter: {producerTask: a,
                                                          outputParameterKey: out}}}}
        end:
          componentRef: {name: comp-echo}
          dependentTasks: [loop]
          triggerPolicy: {strategy: ALL_UPSTREAM_TASKS_COMPLETED, condition: "1 == 1"}
        """, """
        comp-loop:
          inputDefinitions: {parameters: {x: {parameterType: NUMBER_INTEGER},
                                          y: {parameterType: STRING}}}
          dag: {tasks: {in: {componentRef: {name: comp-echo}, inputs: {parameters:
            {text: {runtimeValue: {constant: "{{$.inputs.parameters['y']}}"}}}}}}}
        """)),
]  # fmt: skip
NAMES = ("name", "steps", "dag", "tasks", "when", "container", "templateRef", "dependentTasks",
         "inputs", "componentRef", "executorLabel", "", "x")  # fmt: skip
TEXTS = ("", "x", "{{", "}}", "{{}}", "{{=}}", "{{=a.b(}}", "{{inputs.parameters.x}}", "{{$.x}}",
         "{{$}}", "{% x %}", "a == ", "(((", "\x00", "1h1", "main", "p && ", "'",
         "%d%d")  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.sampled_from(TEXTS)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from places_in(each, (*path, key))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from places_in(each, (*path, at))


@st.composite
def changed_sources(draw: st.DrawFn) -> list[Any]:
    """Draw a source with a few of its values replaced, removed, renamed or put elsewhere."""
    documents = copy.deepcopy(draw(st.sampled_from(SOURCES)))
    for _ in range(draw(st.integers(1, 3))):
        places = list(places_in(documents))
        if not places:
            break
        path = draw(st.sampled_from(places))
        around: Any = documents
        for key in path[:-1]:
            around = around[key]
        how = draw(st.sampled_from(["replace", "remove", "rename", "copy"]))
        if how == "replace":
            around[path[-1]] = draw(VALUES)
        elif how == "remove":
            del around[path[-1]]
        elif how == "rename" and isinstance(around, dict):
            around[draw(st.sampled_from(NAMES))] = around.pop(path[-1])
        else:
            found: Any = documents
            for key in draw(st.sampled_from(places)):
                found = found[key]
            around[path[-1]] = copy.deepcopy(found)
    return list(documents)


def assert_answered(found: ImportResult) -> None:
    if found.document is None:
        assert found.refusals
        assert all(row.place and row.feature and row.reason for row in found.refusals)
    else:
        assert not found.refusals
        assert "\x00" not in json.dumps(dict(found.document), allow_nan=False)


@settings(max_examples=300)
@given(changed_sources(), st.sampled_from(Containers))
def test_a_changed_source_is_answered_and_twice_the_same(
    documents: list[Any], containers: Containers
) -> None:
    found = import_documents(documents, containers)
    assert_answered(found)
    again = import_documents(copy.deepcopy(documents), containers)
    assert json.dumps(again.document) == json.dumps(found.document)
    assert again.rows == found.rows


@given(st.lists(VALUES, max_size=3), st.lists(VALUES, max_size=2))
def test_any_documents_are_answered(documents: list[Any], others: list[Any]) -> None:
    assert_answered(import_documents(documents, others=others))


@given(st.text(max_size=400) | st.sampled_from(["a: &a {b: *a}", "%YAML 9", "- - - -", "? ? ?"]))
def test_any_text_is_read_or_refused_in_a_sentence(text: str) -> None:
    told, documents = "", []
    try:
        documents = load_documents(text)
    except UnreadableYaml as error:
        told = str(error)
    assert not told or told.endswith(".")
    assert_answered(import_documents(documents))
