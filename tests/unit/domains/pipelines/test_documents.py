"""Documents: the specification's fields, and every mistake told at once with its place."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuplane.domains.pipelines.documents import (
    check_pipeline,
    dump_yaml,
    read_documents,
    read_pipeline,
)
from gpuplane.domains.pipelines.documents.compiling import compile_steps
from gpuplane.domains.pipelines.documents.cron import fires_between, next_fire
from gpuplane.domains.pipelines.documents.parameters import resolve_parameters
from gpuplane.domains.pipelines.errors import BadParameters, BadPipeline, PipelineTooLarge
from gpuplane.domains.pipelines.rules import diff_documents
from gpuplane.domains.pipelines.service import without_secrets

EXAMPLES = Path(__file__).parents[4] / "examples" / "pipelines"


def a_document(*steps: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"steps": list(steps), **spec}}


def a_step(step_id: str, step_type: str = "transform", **config: Any) -> dict[str, Any]:
    if step_type == "transform" and not config:
        config = {"expression": "1"}
    return {"id": step_id, "step_type": step_type, "config": config}


def mistakes(document: dict[str, Any]) -> dict[str, str]:
    """Return the reasons by field."""
    with pytest.raises(BadPipeline) as caught:
        check_pipeline(read_pipeline(document))
    return {each.field: each.reason for each in caught.value.errors}


def test_the_specifications_example_is_read_as_it_stands() -> None:
    document = json.loads((EXAMPLES / "rag.json").read_text())
    pipeline = read_pipeline(document)
    check_pipeline(pipeline)
    plans = {plan.key: plan for plan in compile_steps(pipeline.spec.steps)}
    assert pipeline.name == "deploy-enterprise-rag"
    assert plans["step-7"].needs == ("step-2", "step-3", "step-4", "step-5", "step-6")
    assert plans["step-6"].needs == ("step-5",)
    assert plans["step-1"].handler == "pipelines.api_call"
    assert plans["step-1"].retry.attempts == 4


def test_a_mistake_in_a_trigger_is_named_where_it_stands() -> None:
    found = mistakes(
        a_document(a_step("a"), triggers=[{"type": "scheduled", "cron": ""},
                                          {"type": "event", "folder": {"pattern": "*"}},
                                          {"type": "pipeline"}])
    )  # fmt: skip
    assert list(found) == [
        "spec.triggers[0].cron", "spec.triggers[1].folder.path", "spec.triggers[2].pipeline",
    ]  # fmt: skip


def test_a_key_given_twice_is_refused_with_its_place() -> None:
    with pytest.raises(BadPipeline, match=r"the key 'spec' stands twice, first.*line 3, column 1"):
        read_documents("kind: Pipeline\nspec: {steps: []}\nspec: {}\n")
    with pytest.raises(BadPipeline, match="the key 'steps' stands twice"):
        read_documents('{"steps": [], "steps": [1]}')


def test_all_mistakes_are_told_at_once_each_with_its_place() -> None:
    found = mistakes(
        a_document(
            a_step("a", "job", gpu_count="two", fo=1),
            a_step("b", "loop", range={"stop": 10**9}, steps=[a_step("c")]),
            a_step("d", "wait"),
            a_step("e", "parallel", branches=[[]]),
            a_step("f", "api_call", method="FETCH"),
        )
    )
    assert found["spec.steps[0].config.gpu_count"] == "This must be a whole number."
    assert found["spec.steps[0].config.fo"] == "There is no field 'fo' here."
    assert "at most 10000 iterations, not 1000000000" in found["spec.steps[1].config.range"]
    assert "either duration_seconds or wait_for_event" in found["spec.steps[2].config"]
    assert "at least one step" in found["spec.steps[3].config"]
    assert found["spec.steps[4].config.url"] == "This field is required."
    assert "none of the known values" in found["spec.steps[4].config.method"]


def test_graphs_that_cannot_run_are_refused_by_name() -> None:
    first = a_step("a", expression="steps.c.outputs.x") | {"depends_on": ["a", "zz"]}
    second = a_step("b") | {"depends_on": ["a"]}
    third = a_step("c") | {"depends_on": ["b", "b"]}
    found = mistakes(a_document(first, second, third, a_step("b")))
    assert found["spec.steps[0].depends_on[0]"] == "Step 'a' depends on itself."
    assert found["spec.steps[0].depends_on[1]"] == "There is no step 'zz' beside this one."
    assert found["spec.steps[2].depends_on[1]"] == "'b' is named twice."
    assert found["spec.steps[3].id"] == "spec.steps[1] has the id 'b' too."
    cycle = mistakes(a_document(a_step("a", expression="steps.b.outputs.x"),
                                a_step("b") | {"depends_on": ["a"]}))  # fmt: skip
    assert cycle["spec.steps[0].depends_on"] == "The steps wait for one another: a → b → a."


def test_a_step_and_what_lies_in_it_do_not_share_the_key_of_a_limit() -> None:
    limit = {"limit": {"key": "gpu"}}
    inner = a_step("in") | {"limit": {"key": "gpu", "count": 3}}
    deep = a_step("mid", "parallel", steps=[a_step("x"), inner])
    found = mistakes(
        a_document(
            a_step("l", "loop", over=[1], steps=[deep]) | limit,
            a_step("p", "parallel", branches=[[a_step("b1"), a_step("b2") | limit]]) | limit,
            a_step("fine") | limit,
        )
    )
    holds = "The step around it holds a place under 'gpu' while it waits for one."
    assert found == {
        "spec.steps[0].config.steps[0].config.steps[1].limit.key": holds,
        "spec.steps[1].config.branches[0][1].limit.key": holds,
    }


def test_keys_of_limits_are_nested_in_one_order() -> None:
    def nested(name: str, *keys: str) -> dict[str, Any]:
        inner = a_step(f"{name}-in") | {"limit": {"key": keys[1]}}
        return a_step(name, "loop", over=[1], steps=[inner]) | {"limit": {"key": keys[0]}}

    found = mistakes(
        a_document(nested("a", "x", "y"), nested("b", "y", "z"), nested("c", "z", "x"))
    )
    assert list(found) == ["spec.steps[2].config.steps[0].limit.key"]
    assert "the other way round" in found["spec.steps[2].config.steps[0].limit.key"]
    check_pipeline(read_pipeline(a_document(nested("a", "x", "y"), nested("b", "x", "y"))))


def test_expressions_are_checked_with_path_and_column() -> None:
    inner = a_step("in", "api_call", url="http://x/{{ item }}/{{ params.no }}")
    found = mistakes(
        a_document(
            a_step("a", "api_call", url="{{ params.n }}/{{ steps.nope.outputs.x }}"),
            a_step("l", "loop", over="{{ params.n }}", steps=[inner]),
            a_step("b", outputs={"x": "size(params.n"}),
            a_step("self", expression="steps.self.outputs.x"),
            parameters={"n": [1]},
            outputs={"o": "{{ steps.zz.outputs.x }}"},
            concurrency={"key": "{{ steps.a.outputs.x }}"},
        )
    )
    assert found == {
        "spec.outputs.o": "Column 10: There is no step 'zz'.",
        "spec.concurrency.key": "Column 4: There is no 'steps' here.",
        "spec.steps[0].config.url": "Column 25: There is no step 'nope'.",
        "spec.steps[1].config.steps[0].config.url": "Column 31: There is no parameter 'no'.",
        "spec.steps[2].config.outputs.x": "Column 14: ',' is missing before the end.",
        "spec.steps[3].config.expression": "Step 'self' reads its own outputs.",
    }


def test_what_a_step_reads_is_what_it_comes_after() -> None:
    nested = a_step("in", expression="steps.first.outputs.x")
    pipeline = read_pipeline(
        a_document(
            a_step("first"),
            a_step("box", "parallel", steps=[nested]),
            a_step("pick", "condition", expression="true", then_steps=["then"]),
            a_step("then"),
            a_step("code", "function", code="result = '{{ steps.first.outputs.x }}'"),
        )
    )
    needs = {plan.key: plan.needs for plan in compile_steps(pipeline.spec.steps)}
    assert needs == {
        "first": (), "box": ("first",), "pick": (), "then": ("pick",), "code": ()
    }  # fmt: skip


@pytest.mark.parametrize(
    ("trigger", "field"),
    [
        ({"type": "scheduled", "cron": "99 * * * *"}, "cron"),
        ({"type": "scheduled", "cron": "0 0 30 2 *"}, "cron"),
        ({"type": "scheduled", "cron": "every day"}, "cron"),
        ({"type": "scheduled", "cron": "* " * 200}, "cron"),
        ({"type": "scheduled", "cron": "0 2 * * *", "time_zone": "Mars/Base"}, "time_zone"),
        ({"type": "scheduled", "cron": "0 2 * * *", "parameters": {"no": 1}}, "parameters.no"),
        ({"type": "pipeline", "pipeline": "p"}, "pipeline"),
    ],
)
def test_triggers_that_cannot_fire_are_refused(trigger: dict[str, Any], field: str) -> None:
    found = mistakes(a_document(a_step("a"), triggers=[trigger]))
    assert [name.partition("triggers[0].")[2].removeprefix("scheduled.") for name in found] == [
        field
    ]


def test_parameters_are_typed_and_every_wrong_one_is_told() -> None:
    spec = read_pipeline(
        a_document(
            a_step("a"),
            parameters={
                "plain": 3,
                "object": {"a": 1},
                "count": {"type": "integer", "required": True},
                "size": {"type": "STRING", "default": "s", "enum": ["s", "m"]},
            },
        )
    ).spec
    assert resolve_parameters(spec, {"count": 2}) == {
        "plain": 3, "object": {"a": 1}, "count": 2, "size": "s"
    }  # fmt: skip
    with pytest.raises(BadParameters) as caught:
        resolve_parameters(spec, {"count": True, "size": "l", "siz": 1})
    assert {each.field: each.reason for each in caught.value.errors} == {
        "parameters.siz": "The pipeline has no parameter 'siz'.",
        "parameters.count": "This must be a whole number.",
        "parameters.size": "This is none of the allowed values.",
    }


def test_a_hundred_thousand_steps_are_refused_and_ten_thousand_are_not() -> None:
    steps = [a_step(f"s{n}") for n in range(10_000)]
    pipeline = read_pipeline(a_document(*steps))
    check_pipeline(pipeline)
    assert len(compile_steps(pipeline.spec.steps)) == 10_000
    many = a_step("l", "parallel", steps=[a_step("x")])
    with pytest.raises(PipelineTooLarge):
        check_pipeline(read_pipeline(a_document(*steps[:9_999], many)))
    assert "spec.steps" in mistakes(a_document(*(a_step(f"s{n}") for n in range(100_000))))


def test_containers_nested_too_deeply_are_refused() -> None:
    step = a_step("s")
    for depth in range(8):
        step = a_step(f"p{depth}", "parallel", steps=[step])
    assert any(
        "nested more than 6 deep" in reason for reason in mistakes(a_document(step)).values()
    )


@pytest.mark.parametrize(
    "text",
    ["a: [", "&a [*a, *a]", "\t- x", "!!python/object:os.system {}"],
)
def test_text_that_is_no_plain_yaml_is_refused(text: str) -> None:
    with pytest.raises(BadPipeline) as caught:
        read_documents(text)
    assert caught.value.fix == "Check the indentation and the quotes."


def test_a_document_survives_yaml() -> None:
    (document,) = read_documents((EXAMPLES / "hello.yaml").read_text())
    assert read_documents(dump_yaml(document)) == [document]
    check_pipeline(read_pipeline(document))


def test_an_export_keeps_references_and_leaves_secret_values_out() -> None:
    given = {
        "headers": {"Authorization": "Bearer abc", "X-Api-Key": {"secret": "key"}},
        "env": {"PASSWORD": "p", "TOKEN": "{{ params.token }}", "NAME": "n"},
        "parameters": {"token": {"type": "string", "default": "t", "required": True}},
    }
    assert without_secrets(given) == {
        "headers": {"Authorization": "", "X-Api-Key": {"secret": "key"}},
        "env": {"PASSWORD": "", "TOKEN": "{{ params.token }}", "NAME": "n"},
        "parameters": {"token": {"type": "string", "required": True}},
    }


def test_a_difference_names_steps_by_their_ids() -> None:
    old = a_document(a_step("a"), a_step("b"), description="x")
    new = a_document(a_step("b", expression="2"), a_step("c"), description="x")
    found = {(each["kind"], each["path"]) for each in diff_documents(old, new)}
    assert found == {
        ("removed", "spec.steps[a]"),
        ("changed", "spec.steps[b].config.expression"),
        ("added", "spec.steps[c]"),
    }


def test_a_daily_time_that_the_clocks_leave_out_or_repeat_fires_once_a_day() -> None:
    def fires(start: str, days: int) -> list[str]:
        begin = datetime.fromisoformat(start).replace(tzinfo=UTC)
        end = begin + timedelta(days=days)
        found = fires_between(
            "30 2 * * *", "Europe/Berlin",
            round(begin.timestamp() * 1000), round(end.timestamp() * 1000), 100,
        )  # fmt: skip
        return [datetime.fromtimestamp(at / 1000, UTC).isoformat()[:16] for at in found]

    # On 2026-03-29 there is no 02:30 in Berlin, on 2026-10-25 there are two.
    assert fires("2026-03-28T00:00:00", 3) == [
        "2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"
    ]  # fmt: skip
    assert fires("2026-10-24T00:00:00", 3) == [
        "2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"
    ]  # fmt: skip
    assert next_fire("0 0 1 1 *", "UTC", 0) == 31_536_000_000
