"""What Kueue says of queues and workloads is read in its own words."""

from gpuplane.core.quota import FlavorResource
from gpuplane.kube.kueue.names import WorkloadCondition
from gpuplane.kube.kueue.queues import read_cluster_queue
from gpuplane.kube.kueue.states import Used, read_queue_state, read_workload

PAIR = FlavorResource("l4", "nvidia.com/gpu")
AT = "2026-11-21T10:00:00Z"
AT_MS = 1_795_255_200_000


def a_workload(**status: object) -> dict[str, object]:
    return {
        "metadata": {
            "name": "job-a",
            "namespace": "tenant-a",
            "uid": "u",
            "creationTimestamp": AT,
            "labels": {"kueue.x-k8s.io/job-uid": "j"},
            "ownerReferences": [{"kind": "Job", "name": "a", "uid": "j"}],
        },
        "spec": {"queueName": "door", "priority": 100},
        "status": status,
    }


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": AT,
    }


def test_an_admitted_workload_tells_its_queue_and_what_it_counts() -> None:
    state = read_workload(
        a_workload(
            conditions=[condition("Admitted", "True", "Admitted", "The workload is admitted")],
            admission={
                "clusterQueue": "team",
                "podSetAssignments": [
                    {
                        "name": "main",
                        "flavors": {"nvidia.com/gpu": "l4"},
                        "resourceUsage": {"nvidia.com/gpu": "4"},
                    }
                ],
            },
        )
    )
    assert (state.cluster_queue, dict(state.usage)) == ("team", {PAIR: 4000})
    assert (state.admitted_at, state.created_at) == (AT_MS, AT_MS)
    assert state.owners == (("Job", "a", "j"),)


def test_a_waiting_workload_is_explained_in_the_words_of_kueue() -> None:
    message = "couldn't assign flavors to pod set main: insufficient unused quota"
    state = read_workload(
        a_workload(conditions=[condition("QuotaReserved", "False", "Pending", message)])
    )
    assert state.explain() == ("Pending", message)
    assert state.admitted_at is None


def test_a_workload_whose_check_is_pending_waits_for_it() -> None:
    state = read_workload(
        a_workload(
            conditions=[condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved")],
            admissionChecks=[
                {"name": "gpuplane-hold", "state": "Pending", "message": "Its window opens at 9."}
            ],
        )
    )
    assert state.waits_for_hold
    assert state.explain() == ("AdmissionCheckPending", "Its window opens at 9.")


def test_an_evicted_workload_tells_who_took_its_place() -> None:
    message = "Preempted to accommodate a workload"
    state = read_workload(a_workload(conditions=[condition("Preempted", "True", "R", message)]))
    told = state.find(WorkloadCondition.PREEMPTED)
    assert told is not None
    assert (told.message, told.at) == (message, AT_MS)


def test_usage_of_both_versions_is_read() -> None:
    used = [
        {"name": "l4", "resources": [{"name": "nvidia.com/gpu", "total": "6", "borrowed": "2"}]}
    ]
    queue = {"metadata": {"name": "q"}, "status": {"flavorsUsage": used, "pendingWorkloads": 3}}
    door = {"metadata": {"name": "d", "namespace": "n"}, "status": {"flavorUsage": used}}
    assert read_queue_state(queue).used == {PAIR: Used(6000, 2000)}
    assert read_queue_state(queue).pending == 3
    assert read_queue_state(door).used == {PAIR: Used(6000, 2000)}


def test_what_our_document_has_no_words_for_is_said() -> None:
    found = {
        "metadata": {"name": "q"},
        "spec": {
            "stopPolicy": "Hold",
            "admissionChecks": ["quota-bot"],
            "namespaceSelector": {"matchLabels": {"a": "b"}},
            "resourceGroups": [
                {
                    "coveredResources": ["memory"],
                    "flavors": [
                        {"name": "l4", "resources": [{"name": "memory", "nominalQuota": "1M"}]}
                    ],
                }
            ],
        },
    }
    assert read_cluster_queue(found).notes == (
        "1M of memory in l4 is shown rounded down to 0Gi.",
        "Workloads must pass the AdmissionChecks quota-bot.",
        "It is stopped (stopPolicy Hold).",
        "Only namespaces that its selector matches may use it.",
    )
