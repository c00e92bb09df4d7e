"""Which worker is asked next, and what is applied in Kueue's own name to say so."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kube.kueue.dispatching import (
    MOST_NOMINATED,
    ROUND_MS,
    decide_nomination,
    needs_worker,
    nomination_object,
)
from gpuplane.kube.kueue.states import read_workload

ORDER = ("w01-near", "w02-middle", "w03-far")


def test_the_best_worker_is_asked_alone_and_the_next_joins_when_its_time_is_over() -> None:
    assert decide_nomination(ORDER, ORDER, (), 0, 0) == ("w01-near",)
    assert decide_nomination(ORDER, ORDER, ("w01-near",), 0, ROUND_MS - 1) is None
    assert decide_nomination(ORDER, ORDER, ("w01-near",), 0, ROUND_MS) == ("w01-near", "w02-middle")


def test_a_worker_that_is_not_connected_is_passed_over_and_not_waited_for() -> None:
    assert decide_nomination(ORDER, {"w03-far"}, (), 0, 0) == ("w03-far",)
    assert decide_nomination(ORDER, {"w03-far"}, ("w01-near",), 0, 1) == ("w01-near", "w03-far")
    assert decide_nomination(ORDER, (), (), 0, 0) is None


def test_what_kueue_nominates_by_itself_is_left_alone() -> None:
    assert decide_nomination(ORDER, ORDER, tuple(reversed(ORDER)), 0, 10 * ROUND_MS) is None


@given(st.sets(st.sampled_from(ORDER)), st.integers(0, 200_000))
def test_workers_join_in_the_order_of_preference_and_none_is_taken_back(
    active: set[str], step: int
) -> None:
    nominated: tuple[str, ...] = ()
    now = 0
    for _ in range(8):
        wanted = decide_nomination(ORDER, active, nominated, now, now + step)
        now += step
        if wanted is not None:
            assert wanted[: len(nominated)] == nominated
            nominated = wanted
    assert list(nominated) == [each for each in ORDER if each in nominated]
    assert set(nominated) <= active


def test_no_more_are_nominated_than_kueue_allows() -> None:
    many = [f"w{number:02d}" for number in range(1, 13)]
    assert decide_nomination(many, many, many[:MOST_NOMINATED], 0, ROUND_MS) is None


def workload(**status: Any) -> dict[str, Any]:
    reserved = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved"}
    check = {"name": "gpuplane-multikueue", "state": "Pending", "message": ""}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "w", "namespace": "n", "resourceVersion": "7"},
        "status": {"conditions": [reserved], "admissionChecks": [check], **status},
    }


def test_a_workload_needs_a_worker_from_its_quota_until_it_has_one() -> None:
    assert needs_worker(read_workload(workload()))
    assert not needs_worker(read_workload(workload(conditions=[])))
    assert not needs_worker(read_workload(workload(clusterName="w01-near")))
    ready = [{"name": "gpuplane-multikueue", "state": "Ready", "message": ""}]
    assert not needs_worker(read_workload(workload(admissionChecks=ready)))


def test_all_that_kueue_owns_of_a_status_is_repeated_and_nothing_of_others() -> None:
    found = workload(
        admission={"clusterQueue": "q", "podSetAssignments": [{"name": "main", "count": 1}]},
    )
    found["status"]["conditions"].append({"type": "Other", "status": "True"})
    found["metadata"]["managedFields"] = [
        {
            "manager": "kueue-admission",
            "operation": "Apply",
            "fieldsV1": {
                "f:status": {
                    "f:admission": {
                        "f:clusterQueue": {},
                        "f:podSetAssignments": {
                            'k:{"name":"main"}': {".": {}, "f:name": {}, "f:count": {}}
                        },
                    },
                    "f:conditions": {
                        'k:{"type":"QuotaReserved"}': {
                            ".": {},
                            "f:type": {},
                            "f:status": {},
                            "f:reason": {},
                        }
                    },
                }
            },
        },
        {
            "manager": "gpuplane",
            "operation": "Update",
            "fieldsV1": {"f:status": {"f:admissionChecks": {}}},
        },
    ]
    made = nomination_object(found, ["w01-near"])
    assert made["metadata"]["resourceVersion"] == "7"
    assert made["status"] == {
        "admission": found["status"]["admission"],
        "conditions": [found["status"]["conditions"][0]],
        "nominatedClusterNames": ["w01-near"],
    }


def test_where_kueue_applies_nothing_the_nomination_alone_is_said() -> None:
    assert nomination_object(workload(), ["w01-near"])["status"] == {
        "nominatedClusterNames": ["w01-near"]
    }
