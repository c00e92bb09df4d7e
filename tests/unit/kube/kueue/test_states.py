"""What Kueue says of queues and workloads is read in its own words."""

from dataclasses import replace

from gpuplane.core.quota import FlavorResource
from gpuplane.core.quota.specs import ClusterQueueSpec, ResourceGroup, ResourceQuota
from gpuplane.kube.kueue.names import ApiVersion, WorkloadCondition
from gpuplane.kube.kueue.queues import cluster_queue_object, read_cluster_queue
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


def laid_out(assignment: dict[str, object]) -> tuple[str, str]:
    """Return what an admitted workload with this layout tells of itself."""
    return read_workload(
        a_workload(
            conditions=[condition("Admitted", "True", "Admitted", "The workload is admitted")],
            admission={"podSetAssignments": [{"name": "main", "topologyAssignment": assignment}]},
        )
    ).explain()


def test_a_layout_of_both_versions_is_told() -> None:
    domains = [{"values": ["rack-1", "n1"], "count": 2}, {"values": ["rack-1", "n2"], "count": 1}]
    older = laid_out({"levels": ["rack", "host"], "domains": domains})
    roots = {"prefix": "n", "roots": ["1", "2"]}
    piece = {
        "domainCount": 2,
        "valuesPerLevel": [{"universal": "rack-1"}, {"individual": roots}],
        "podCounts": {"individual": [2, 1]},
    }
    newer = laid_out({"levels": ["rack", "host"], "slices": [piece]})
    assert older == newer
    assert older[1] == "The workload is admitted. Laid out on rack-1/n1 (2), rack-1/n2 (1)."


def test_a_long_layout_is_cut_short_with_the_number_of_what_is_left_out() -> None:
    domains = [{"values": [f"n{number}"], "count": 1} for number in range(10)]
    assert laid_out({"domains": domains})[1].endswith("n7 (1) and 2 more.")


GROUP = ResourceGroup(("nvidia.com/gpu",), ("l4", "t4"))
TEAM = ClusterQueueSpec(
    "team",
    None,
    (GROUP,),
    {PAIR: ResourceQuota(4000), PAIR._replace(flavor="t4"): ResourceQuota(0)},
)


def test_what_a_queue_does_not_declare_joins_a_flavor_with_a_topology_and_is_not_shown() -> None:
    made = cluster_queue_object(TEAM, ApiVersion.V1BETA2, laid_out={"l4"})
    [group] = made["spec"]["resourceGroups"]
    covered = ["nvidia.com/gpu", "cpu", "memory", "ephemeral-storage"]
    assert group["coveredResources"] == covered
    assert [[each["name"] for each in one["resources"]] for one in group["flavors"]] == [
        covered
    ] * 2
    assert read_cluster_queue(made).spec == TEAM
    used = [{"name": "cpu", "total": "3"}, {"name": "nvidia.com/gpu", "total": "1"}]
    made["status"] = {"flavorsUsage": [{"name": "l4", "resources": used}]}
    assert dict(read_queue_state(made).used) == {PAIR: Used(1000)}


def test_it_has_a_flavor_of_its_own_where_there_is_no_topology_or_more_than_one_group() -> None:
    gaudi = FlavorResource("gaudi", "habana.ai/gaudi")
    wide = replace(
        TEAM,
        resource_groups=(GROUP, ResourceGroup(("habana.ai/gaudi",), ("gaudi",))),
        quotas={**TEAM.quotas, gaudi: ResourceQuota(8)},
    )
    for spec, laid_out_flavors, count in ((TEAM, (), 2), (wide, {"l4"}, 3)):
        made = cluster_queue_object(spec, ApiVersion.V1BETA2, laid_out=laid_out_flavors)
        groups = made["spec"]["resourceGroups"]
        assert len(groups) == count
        assert [each["name"] for each in groups[-1]["flavors"]] == ["gpuplane-uncounted"]
        assert read_cluster_queue(made).spec == spec
