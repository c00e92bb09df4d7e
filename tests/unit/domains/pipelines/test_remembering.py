"""What was compiled of a version is remembered by its digest, up to a number of steps."""

from __future__ import annotations

from gpuplane.domains.pipelines.documents.remembering import (
    Compilations,
    Compiled,
    compile_document,
)


def a_version(name: str, count: int) -> Compiled:
    steps = [{"id": f"s{n}", "step_type": "transform", "config": {"expression": "1"}}
             for n in range(count)]  # fmt: skip
    spec = {
        "steps": steps,
        "parameters": {"x": 1},
        "outputs": {"o": "{{ steps.s0.outputs.result }}"},
    }
    return compile_document({"metadata": {"name": name}, "spec": spec})


def test_a_version_keeps_its_plans_and_leaves_its_steps_as_they_were_written() -> None:
    found = a_version("p", 2)
    assert [plan.key for plan in found.steps] == ["s0", "s1", "pipeline-outputs"]
    assert (found.name, found.spec.steps, list(found.spec.parameters)) == ("p", [], ["x"])


def test_what_was_used_longest_ago_is_forgotten_when_there_is_no_room() -> None:
    kept = Compilations(max_steps=9)
    small = {name: a_version(name, 2) for name in "abc"}
    for name in "abc":
        kept.keep(name, small[name])
    assert kept.find("a") is small["a"]
    kept.keep("d", a_version("d", 2))
    assert [name for name in "abcd" if kept.find(name)] == ["a", "c", "d"]
    kept.keep("huge", a_version("huge", 9))
    assert kept.find("huge") is None
    assert kept.find("a") is small["a"]
