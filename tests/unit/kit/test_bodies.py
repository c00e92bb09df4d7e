"""What comes in is meant or refused with a sentence; what goes out reads back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError

from gpuplane.kit.bodies import (
    MAX_INSTANT_MS,
    MAX_MICRO,
    Body,
    Count,
    Flag,
    InstantIn,
    InstantOut,
    Labels,
    MoneyIn,
    MoneyOut,
    Name,
)
from gpuplane.kit.problems import refused_fields


class In(Body):
    """Everything that can come in."""

    name: Name = "a"
    at: InstantIn = 0
    price: MoneyIn = 0
    labels: Labels = Field(default_factory=dict)
    count: Count = 0
    flag: Flag = False


class Out(Body):
    """What goes out."""

    at: InstantOut
    price: MoneyOut


def refusal(**values: object) -> tuple[str, str]:
    """Return the first field refused, and why."""
    with pytest.raises(ValidationError) as caught:
        In.model_validate(values)
    first = refused_fields(caught.value.errors(), In).errors[0]
    return first.field, first.reason


@given(st.integers(0, MAX_INSTANT_MS), st.integers(0, MAX_MICRO))
def test_what_goes_out_can_come_in_again(instant: int, micro: int) -> None:
    shown = Out(at=instant, price=micro).model_dump()
    read = In.model_validate(shown)
    assert (read.at, read.price) == (instant, micro)


def test_an_instant_is_understood_in_every_zone() -> None:
    adapter: TypeAdapter[int] = TypeAdapter(InstantIn)
    texts = ("2026-03-01T12:00:00Z", "2026-03-01T13:00:00+01:00", "2026-03-01T12:00:00.000+00:00")
    assert {adapter.validate_python(text) for text in texts} == {1_772_366_400_000}


@pytest.mark.parametrize(
    "value",
    [
        "2026-03-01T12:00:00",
        "2026-03-01",
        "tomorrow",
        "",
        1_772_366_400,
        None,
        "x" * 99,
        "1969-12-31T23:59:59Z",
        "0001-01-01T00:00:00+14:00",
        "2026-13-01T00:00:00Z",
    ],
)
def test_an_instant_without_zone_or_sense_is_refused(value: object) -> None:
    field, reason = refusal(at=value)
    assert field == "at"
    assert reason.startswith("An instant")


def test_money_is_exact() -> None:
    assert In(price="12.5").price == 12_500_000  # type: ignore[arg-type]  # as JSON has it
    assert In(price=0.1).price == 100_000  # type: ignore[arg-type]  # as JSON has it
    assert Out(at=0, price=12_345_678).model_dump()["price"] == "12.345678"
    assert Out(at=0, price=-500_000).model_dump()["price"] == "-0.50"


@pytest.mark.parametrize("value", ["0.0000001", "-1", "NaN", "1e400", True, None, "9" * 30, "x"])
def test_money_that_cannot_be_meant_is_refused(value: object) -> None:
    field, reason = refusal(price=value)
    assert field == "price"
    assert reason.startswith("An amount of money")


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", "a_b", "a.b", "x" * 64, "ü", "../etc"])
def test_a_name_is_a_dns_label(name: str) -> None:
    assert refusal(name=name)[0] == "name"


@pytest.mark.parametrize(
    "labels",
    [
        {"": "v"},
        {"a b": "v"},
        {"k": "v" * 64},
        {"k": "-v"},
        {"Upper.Example/k": "v"},
        {"x" * 254 + "/k": "v"},
        {"/k": "v"},
        {f"k{number}": "v" for number in range(65)},
        {"k": 1},
    ],
    ids=range(9),
)
def test_labels_follow_the_rules_of_kubernetes(labels: object) -> None:
    assert refusal(labels=labels)[0].startswith("labels")


def test_labels_of_kubernetes_are_taken() -> None:
    labels = {"app.kubernetes.io/name": "web", "Team": "A_1.b", "empty": ""}
    assert In(labels=labels).labels == labels


@pytest.mark.parametrize("value", ["1", 1.0, True, -1, 2**31])
def test_a_count_is_a_whole_number_from_zero(value: object) -> None:
    assert refusal(count=value)[0] == "count"


@pytest.mark.parametrize("value", ["yes", 1, "true"])
def test_a_flag_is_true_or_false(value: object) -> None:
    assert refusal(flag=value) == ("flag", "This must be true or false.")


def test_unknown_fields_of_inner_objects_get_the_nearest_names_of_that_object() -> None:
    class Inner(Body):
        gpu_count: int = 0

    class Outer(Body):
        replicas: list[Inner]

    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"replicas": [{"gpu_cuont": 1}]})
    error = refused_fields(caught.value.errors(), Outer).errors[0]
    assert error.field == "replicas[0].gpu_cuont"
    assert error.fix == "Did you mean gpu_count?"


class _Inner(Body):
    count: int = 3


class _Told(Body):
    at: InstantOut
    inner: _Inner = _Inner()
    note: str | None = None


def test_a_body_of_checked_values_is_told_as_one_that_is_checked() -> None:
    inner = _Inner.checked(count=4)
    told = _Told.checked(note="x", inner=inner, at=1_000)
    assert (
        told.model_dump_json() == _Told(at=1_000, inner=_Inner(count=4), note="x").model_dump_json()
    )
    assert (told, inner) == (_Told(at=1_000, inner=inner, note="x"), _Inner(count=4))


def test_a_body_of_checked_values_lacks_no_field() -> None:
    with pytest.raises(KeyError, match="note"):
        _Told.checked(at=1_000, inner=_Inner())
    with pytest.raises(KeyError, match="count"):
        _Inner.checked()


def test_a_default_that_is_a_body_is_shared_since_nobody_can_change_it() -> None:
    assert _Told(at=1).inner is _Told(at=2).inner
    with pytest.raises(ValidationError):
        _Told(at=1).inner.count = 5  # type: ignore[misc]  # that is what is tried
