"""The Job that is made for a workload."""

from __future__ import annotations

import pytest

from gpuplane.operator.rules.backoff import CAP_MS, CHANCE_STEPS, compute_wait_ms
from gpuplane.operator.rules.jobs import Image, build_job, job_name
from tests.unit.operator.builders import UID, a_workload

IMAGE = Image("registry.example/llama:1", command=("serve",), env={"A": "b"})


def test_the_node_is_required_by_affinity_and_never_set() -> None:
    job = build_job(a_workload(), IMAGE, "n1", "n1", "nvidia.com/gpu", queue="")
    pod = job["spec"]["template"]["spec"]
    assert "nodeName" not in pod
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"] == [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    ]
    assert "suspend" not in job["spec"]


def test_under_kueue_the_job_is_suspended_in_its_queue_and_the_node_is_preferred() -> None:
    job = build_job(a_workload(), IMAGE, "n1", "host-1", "nvidia.com/gpu", queue="team")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert job["spec"]["suspend"] is True
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]


def test_a_job_without_a_node_is_left_to_the_scheduler() -> None:
    job = build_job(a_workload(), IMAGE, "", "", "nvidia.com/gpu", queue="team")
    assert "affinity" not in job["spec"]["template"]["spec"]


def test_the_gpus_are_asked_for_by_the_resource_that_the_node_has() -> None:
    job = build_job(a_workload(gpuCount=4), IMAGE, "n1", "n1", "amd.com/gpu", queue="")
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"] == {
        "requests": {"amd.com/gpu": "4"},
        "limits": {"amd.com/gpu": "4"},
    }
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "A": "b",
        "GPU_COUNT": "4",
        "MODEL_NAME": "llama2",
    }


def test_the_workload_owns_its_job() -> None:
    owner = build_job(a_workload(), IMAGE, "n1", "n1", "nvidia.com/gpu", queue="")["metadata"][
        "ownerReferences"
    ][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("GPUWorkload", UID, True)


def test_a_long_name_is_cut_and_stays_unlike_others() -> None:
    names = {job_name(a_workload("x" * 200 + tail)) for tail in "ab"}
    assert len(names) == 2
    assert all(len(name) <= 63 for name in names)


def test_a_name_with_dots_and_spaces_in_the_model_makes_legal_names_and_labels() -> None:
    workload = a_workload("a.b", modelName="Llama 2 (chat) ")
    job = build_job(workload, IMAGE, "n1", "n1", "nvidia.com/gpu", queue="")
    assert job["metadata"]["name"] == "a-b-job-0a1b2c3d"
    assert job["metadata"]["labels"]["app"] == "Llama-2-chat"


@pytest.mark.parametrize(
    ("attempt", "chance", "wait_ms"),
    [
        (0, 0, 30_000),
        (1, 0, 60_000),
        (2, 0, 120_000),
        (3, 0, 240_000),
        (4, 0, CAP_MS),
        (1_000, CHANCE_STEPS - 1, CAP_MS),
        (0, CHANCE_STEPS // 2, 31_500),
        (0, CHANCE_STEPS - 1, 32_999),
    ],
)
def test_the_wait_doubles_with_up_to_a_tenth_more_and_never_beyond_five_minutes(
    attempt: int, chance: int, wait_ms: int
) -> None:
    assert compute_wait_ms(30, attempt, chance) == wait_ms


@pytest.mark.parametrize(("base", "attempt", "chance"), [(0, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_a_wait_of_nonsense_is_refused(base: int, attempt: int, chance: int) -> None:
    with pytest.raises(ValueError, match="no wait follows"):
        compute_wait_ms(base, attempt, chance)
