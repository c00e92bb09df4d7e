"""What the webhooks fill in and refuse."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gpuplane.operator.rules.admission import (
    answer_review,
    find_layout_problem,
    find_workload_problem,
    list_defaults,
)
from tests.unit.operator.builders import workload_object


def problem(new: dict[str, Any], old: dict[str, Any] | None = None, **more: Any) -> str | None:
    told = {"models": frozenset({"llama2"}), "any_model": False, "now_s": 0, **more}
    return find_workload_problem(new, old, **told)


def test_a_model_without_an_image_is_refused_by_name() -> None:
    assert problem(workload_object()) is None
    told = problem(workload_object(modelName="gpt"))
    assert told is not None
    assert told.startswith("spec.modelName: there is no image for 'gpt'; known are llama2")
    assert problem(workload_object(modelName="gpt"), any_model=True) is None


@pytest.mark.parametrize("phase", ["Scheduled", "Running", "Succeeded", "Failed"])
def test_a_field_that_the_job_was_made_from_cannot_change_any_more(phase: str) -> None:
    old = workload_object(status={"phase": phase})
    told = problem(workload_object(gpuCount=4), old)
    assert told is not None
    assert told.startswith("spec.gpuCount:")
    assert problem(workload_object(priority="high"), old) is None


def test_what_is_not_placed_yet_can_change() -> None:
    old = workload_object(status={"phase": "Pending"})
    assert problem(workload_object(gpuCount=4), old) is None


def test_a_reservation_in_the_past_is_refused_once_and_not_afterwards() -> None:
    new = workload_object(reservation={"startTime": "1970-01-01T00:01:00Z"})
    assert problem(new, now_s=59) is None
    told = problem(new, now_s=60)
    assert told is not None
    assert told.startswith("spec.reservation.startTime:")
    assert problem(new, new, now_s=60) is None
    wrong = workload_object(reservation={"startTime": "tomorrow"})
    assert "is no instant" in (problem(wrong) or "")


def test_a_workload_that_is_being_deleted_is_let_go_whatever_it_says() -> None:
    going = workload_object(modelName="gpt")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert problem(going) is None


def test_defaults_are_the_documents_and_the_finalizer_comes_with_them() -> None:
    bare = {"metadata": {"name": "w"}, "spec": {"modelName": "llama2", "gpuCount": 1}}
    told = {each["path"]: each["value"] for each in list_defaults(bare)}
    assert told == {
        "/spec/priority": "normal",
        "/spec/schedulingStrategy": "leastLoaded",
        "/spec/vendor": "nvidia",
        "/spec/retryPolicy": {"maxRetries": 3, "backoffSeconds": 30},
        "/metadata/finalizers": ["gpu.warp.dev/finalizer"],
    }


def test_what_is_set_stays_as_it_is() -> None:
    spec = {"priority": "low", "schedulingStrategy": "random", "vendor": "amd", "retryPolicy": {}}
    assert list_defaults(workload_object(**spec)) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"instances": {"9g.99gb": 1}}, "spec.instances"),
        ({"shares": {"1g.10gb": 0}}, "spec.shares"),
        ({"shares": {"x": 1}}, "spec.shares"),
    ],
)
def test_a_layout_that_no_gpu_can_have_is_refused(spec: dict[str, Any], field: str) -> None:
    assert (find_layout_problem({"spec": spec}) or "").startswith(f"{field}:")
    assert find_layout_problem({"spec": {"instances": {"1g.10gb": 7}}}) is None


def test_a_review_is_answered_under_its_uid() -> None:
    review = {"request": {"uid": "r1"}}
    allowed = answer_review(review, None, [{"op": "add", "path": "/a", "value": 1}])["response"]
    assert (allowed["uid"], allowed["allowed"]) == ("r1", True)
    assert json.loads(base64.b64decode(allowed["patch"])) == [
        {"op": "add", "path": "/a", "value": 1}
    ]
    refused = answer_review(review, "spec.x: no")["response"]
    assert (refused["allowed"], refused["status"]["message"]) == (False, "spec.x: no")
