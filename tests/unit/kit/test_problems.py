"""A problem document says what is wrong and what would mend it, and nothing private."""

from __future__ import annotations

from collections.abc import Iterator

from gpuplane.kit.errors import Conflict, FieldError, InvalidInput
from gpuplane.kit.problems import (
    MAX_ERRORS,
    MAX_LISTED,
    field_path,
    nearest,
    problem_of,
    refused_fields,
)


def test_a_problem_has_a_stable_code_a_sentence_and_the_fix() -> None:
    error = Conflict("It runs.", code="job_running", fix="Cancel it first.", extra={"job": "x"})
    assert problem_of(error, "r1") == {
        "type": "urn:gpuplane:problem:job_running",
        "title": "Conflict",
        "status": 409,
        "code": "job_running",
        "detail": "It runs.",
        "fix": "Cancel it first.",
        "request_id": "r1",
        "job": "x",
    }


def test_further_facts_never_replace_the_standard_ones() -> None:
    error = InvalidInput("No.", extra={"status": 200, "code": "fine"})
    assert (problem_of(error)["status"], problem_of(error)["code"]) == (400, "invalid_input")


def test_what_caused_an_error_stays_inside() -> None:
    error = InvalidInput("No.")
    error.__cause__ = RuntimeError("password=hunter2")
    assert "hunter2" not in str(problem_of(error))


def test_the_nearest_words_are_offered_and_all_of_few_when_none_is_near() -> None:
    assert nearest("gpu_cuont", ["gpu_count", "name"]) == "Did you mean gpu_count?"
    assert nearest("h100", ["h200", "b", "a100"]) == "Did you mean h200 or a100?"
    assert nearest("zzz", ["b", "a"]) == "Known are: a, b."
    assert nearest("zzz", []) == "Remove it."


def test_of_more_words_than_fit_it_is_said_how_many_are_left_out() -> None:
    fields = [f"field_{number:02}" for number in range(60)]
    assert nearest("zzz", fields) == f"Known are: {', '.join(fields)}."
    many = [f"name-{number:04}" for number in range(5_000)]
    told = nearest("zzz", many)
    shown = told.removeprefix("Known are: ").split(" and ")[0].split(", ")
    assert shown == many[: len(shown)]
    assert told.endswith(f" and {5_000 - len(shown)} more.")
    assert len(told) < MAX_LISTED + 50
    assert nearest("zzz", ["x" * 5_000]) == f"Known are: {'x' * 5_000}."


def test_a_field_is_named_as_people_write_it() -> None:
    assert field_path(("replicas", 2, "name")) == "replicas[2].name"
    assert field_path(()) == ""
    assert len(field_path(("x" * 1_000,))) == 300


def test_only_so_many_errors_are_shown() -> None:
    errors = [{"type": "missing", "loc": (f"f{n}",), "msg": "", "ctx": {}} for n in range(200)]
    refusal = refused_fields(errors)
    assert len(refusal.errors) == 50
    assert refusal.errors[0] == FieldError("f0", "This field is required.", "Add it.")


def test_only_the_errors_that_are_shown_are_worked_out() -> None:
    read = []

    def many() -> Iterator[dict[str, object]]:
        for number in range(100_000):
            read.append(number)
            yield {"type": "extra_forbidden", "loc": (f"k{number}",), "msg": ""}

    refused = refused_fields(many())
    assert len(refused.errors) == len(read) == MAX_ERRORS
