"""Whatever a chart renders, it runs or it is refused with field, reason and fix."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.backends.interface import Unfit
from tests.property.test_chart_objects import objects_with
from tests.unit.backends.kubernetes.test_charts import a_release_plan, an_object, computed

WHOLE = [
    *objects_with({"name": "thing", "labels": {"a": "b"}, "annotations": {"helm.sh/hook": "test"}}),
    *objects_with({"name": "thing", "labels": {"a": "b"}}),
    {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}, "externalIPs": []},
    },
    an_object(
        container={
            "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
            "securityContext": {"capabilities": {"add": []}},
            "ports": [{"containerPort": 1}],
        },
        pod={
            "initContainers": [{"name": "i", "image": "i", "resources": {"requests": {}}}],
            "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "x"}}]}}],
            "tolerations": [{"key": "k"}],
            "schedulingGates": [{"name": "g"}],
            "affinity": {"nodeAffinity": {}},
            "overhead": {"cpu": "1m"},
            "securityContext": {},
            "nodeSelector": {"a": "b"},
        },
        spec={"replicas": 1},
    ),
]  # fmt: skip

strange = st.sampled_from(
    [None, "", "x", "²", 0, -1, 1.5, 10**400, True, [], {}, [1], ["x"], [None], {"x": "y"}, {1: 2}]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything that is in a value."""
    keys: list[Any] = list(value) if isinstance(value, dict) else []
    if isinstance(value, list):
        keys = list(range(len(value)))
    for key in keys:
        yield (*path, key)
        yield from places(value[key], (*path, key))


@st.composite
def misshapen(draw: st.DrawFn) -> Any:
    """Draw an object of which something is not what it should be."""
    made = copy.deepcopy(draw(st.sampled_from(WHOLE)))
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(list(places(made))))
        at = made
        for key in way:
            at = at[key]
        at[last] = copy.deepcopy(draw(strange))
        if not isinstance(made, dict) or not list(places(made)):
            break
    return made


@given(misshapen(), st.sampled_from(["", "main"]))
def test_what_a_chart_renders_is_taken_or_refused_and_breaks_nothing(made: Any, door: str) -> None:
    told = []
    try:
        computed(replace(a_release_plan(), local_queue=door), made, an_object())
    except Unfit as refused:
        told.append(refused)
    assert all(each.field and each.reason and each.fix for each in told)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pod": {"containers": "x"}}, "spec.template.spec.containers is no list"),
        ({"pod": {"containers": [7]}}, "spec.template.spec.containers[0] is no mapping"),
        ({"metadata": {"labels": {"a": 1}}}, "metadata.labels: 'a' is not a text with a text"),
        ({"metadata": {"annotations": []}}, "metadata.annotations is no mapping"),
        ({"spec": {"template": "x"}}, "spec.template is no mapping"),
        ({"spec": {5: "x"}}, "spec has the key 5, which is no text"),
    ],
)
def test_what_is_misshapen_is_named_by_its_path(change: dict[str, Any], said: str) -> None:
    with pytest.raises(Unfit, match="Deployment web of the chart cannot be read") as refused:
        computed(a_release_plan(), an_object(**change))
    assert said in refused.value.message
