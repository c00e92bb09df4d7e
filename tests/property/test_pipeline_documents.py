"""Documents that anybody may write: read, or refused with the place; never anything else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.domains.pipelines.documents import Pipeline, check_pipeline, read_pipeline
from gpuplane.domains.pipelines.documents.compiling import Starting, compile_pipeline, plan_run
from gpuplane.domains.pipelines.documents.parameters import resolve_parameters
from gpuplane.domains.pipelines.expressions import ExpressionError, PlacedError
from gpuplane.kit.errors import ProductError
from tests.examples import examples

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
RICH = {
    "apiVersion": "gpuplane.io/v1",
    "kind": "Pipeline",
    "metadata": {"name": "rich", "labels": {"a": "b"}},
    "spec": {
        "parameters": {"n": 1, "l": {"type": "list", "default": [1]}, "s": "x"},
        "services": {"s": "http://x"},
        "concurrency": {"key": "{{ params.s }}", "limit": 2},
        "outputs": {"o": "{{ steps.end.outputs.x }}"},
        "triggers": [
            {"type": "scheduled", "cron": "0 2 * * *", "time_zone": "Europe/Berlin"},
            {"type": "event", "webhook": {"secret": "s", "parameters": {"s": "{{ body.x }}"}}},
            {"type": "pipeline", "pipeline": "other", "parameters": {"n": "{{ upstream.id }}"}},
        ],
        "steps": [
            {"id": "wait", "step_type": "wait", "config": {"duration_seconds": "{{ params.n }}"}},
            {"id": "each", "step_type": "loop", "config": {
                "over": "{{ params.l }}", "as": "x",
                "steps": [{"id": "in", "step_type": "transform", "config": {"expression": "x"}}]}},
            {"id": "par", "step_type": "parallel", "config": {"join": {"count": 1}, "branches": [
                [{"id": "p", "step_type": "function", "config": {"code": "result = 1"}}]]}},
            {"id": "if", "step_type": "condition",
             "config": {"expression": "params.n > 0", "then_steps": ["end"]}},
            {"id": "end", "step_type": "transform", "condition": "{{ params.n > 0 }}",
             "retry": {"attempts": 2}, "cache": True, "limit": {"key": "k"},
             "compensate": {"step_type": "api_call", "config": {"url": "http://x"}},
             "config": {"outputs": {"x": "steps.each.outputs.results"}}},
        ],
    },
}  # fmt: skip
DOCUMENTS = [
    RICH,
    json.loads((EXAMPLES / "rag.json").read_text()),
    yaml.safe_load((EXAMPLES / "hello.yaml").read_text()),
]
WORDS = st.sampled_from(
    ["{{ params.n }}", "{{ steps.end.outputs.x }}", "{{ 1 +", "end", "wait", "job", "loop", "",
     "all", "{{ item }}", "x" * 70_000, "\u00e9", "{% if %}", "0 0 31 2 *", "condition"]
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), WORDS,
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(WORDS, st.text(max_size=4)), inner,
                                                     max_size=3)
    ),
    max_leaves=5,
)  # fmt: skip


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path]
    if isinstance(value, dict | list):
        for key, each in inner:
            found += _paths(each, (*path, key)) if isinstance(each, dict | list) else [(*path, key)]
    return found


@st.composite
def spoiled(draw: st.DrawFn) -> Any:
    """Return a good document with up to three places replaced, removed or added to."""
    document = copy.deepcopy(draw(st.sampled_from(DOCUMENTS)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(_paths(document)))
        if not path:
            continue
        target = document
        try:
            for key in path[:-1]:
                target = target[key]
            if draw(st.booleans()):
                target[path[-1]] = draw(VALUES)
            elif isinstance(target, dict):
                del target[path[-1]]
            else:
                target.append(draw(VALUES))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    return document


@examples(300)
@given(st.one_of(spoiled(), VALUES))
def test_a_spoiled_document_is_read_or_refused_with_reasons(document: Any) -> None:
    refusals: list[ProductError] = []
    pipeline: Pipeline | None = None
    try:
        pipeline = read_pipeline(document)
        check_pipeline(pipeline)
    except ProductError as refused:
        refusals.append(refused)
    assert all(each.detail and all(one.reason for one in each.errors) for each in refusals)
    if refusals or pipeline is None:
        return
    starting = Starting(UUID(int=1), 1, UUID(int=2), UUID(int=3),
                        params={}, now=0, started_by="me")  # fmt: skip
    try:
        parameters = resolve_parameters(pipeline.spec, {})
        plan = plan_run(
            pipeline.name, pipeline.spec, compile_pipeline(pipeline),
            replace_params(starting, parameters),
        )  # fmt: skip
    except (ProductError, PlacedError, ExpressionError):
        return
    keys = [step.key for step in plan.steps]
    assert len(keys) == len(set(keys))
    assert all(set(step.needs) <= set(keys) - {step.key} for step in plan.steps)


def replace_params(starting: Starting, params: dict[str, Any]) -> Starting:
    """Return what a run is started with, with these parameters."""
    return Starting(
        starting.pipeline_id, starting.version, starting.tenant_id, starting.project_id,
        params=params, now=starting.now, started_by=starting.started_by,
    )  # fmt: skip
