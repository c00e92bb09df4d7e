"""Gangs: held until all of them fit, let go together, kept for a while, then released."""

import json
from typing import Any

from tests.unit.extender.objects import NOW, Asked, Object, a_member, a_node, a_pod, dump

LATE = "2027-01-15T08:00:00Z"
"""The builders' NOW, as the API writes it."""


def four_nodes(**more: int) -> Asked:
    return Asked(*(a_node(f"n{i}") for i in range(4)), **more)


def test_a_gang_waits_until_all_of_its_pods_exist() -> None:
    asked = four_nodes()
    members = [a_member("g", rank, 4) for rank in range(4)]
    asked.put(*members[:3])
    answer = asked.filter(members[0])
    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"]["n0"] == (
        "GangIncomplete: gang team/g has 3 of its 4 pods"
    )


def test_each_pod_of_a_gang_that_fits_gets_its_own_place() -> None:
    asked = four_nodes()
    members = [a_member("g", rank, 4) for rank in range(4)]
    asked.put(*members)
    best = []
    for member in members:
        assert asked.filter(member)["NodeNames"] == asked.names
        points = asked.prioritize(member)
        best.append(max(points, key=lambda name: points[name]))
    assert sorted(best) == asked.names, "four pods of eight GPUs need four nodes"


def test_nothing_of_a_gang_starts_where_not_all_of_it_fits() -> None:
    asked = four_nodes()
    asked.put(a_pod("old", 1, node="n2", ids="0"))
    members = [a_member("g", rank, 4) for rank in range(4)]
    asked.put(*members)
    for member in members:
        answer = asked.filter(member)
        assert answer["NodeNames"] == []
        assert (
            "needs 4 times 8 GPUs at once; 3 of them fit now"
            in (answer["FailedAndUnresolvableNodes"]["n0"])
        )
    assert asked.filter(a_pod("small", 8))["NodeNames"] == ["n0", "n1", "n3"], "nothing is kept"


def test_places_of_a_gang_are_kept_from_others() -> None:
    asked = four_nodes()
    asked.now = NOW
    asked.put(*(fresh("g", rank, 4) for rank in range(4)))
    answer = asked.filter(a_pod("other", 1))
    assert answer["NodeNames"] == []
    assert set(answer["FailedNodes"].values()) == {"InsufficientGpu: needs 1 GPU"}


def test_places_are_given_back_when_the_time_is_over() -> None:
    asked = four_nodes(hold_ms=5_000)
    members = [fresh("g", rank, 4) for rank in range(4)]
    asked.put(*members)
    assert asked.filter(a_pod("other", 1))["NodeNames"] == []
    asked.now += 5_000
    assert asked.filter(a_pod("other", 1))["NodeNames"] == asked.names
    assert asked.filter(members[0])["NodeNames"] == asked.names, "it still may start"


def test_the_rest_of_a_gang_keeps_its_places_once_the_first_is_bound() -> None:
    asked = four_nodes()
    bound = fresh("g", 0, 3, node="n1", ids="0,1,2,3,4,5,6,7")
    asked.put(bound, fresh("g", 1, 3), fresh("g", 2, 3))
    assert asked.filter(a_pod("other", 8))["NodeNames"] == ["n3"]
    assert asked.filter(fresh("g", 2, 3))["NodeNames"] == ["n0", "n2"]


def test_pods_beyond_the_size_of_a_running_gang_are_placed_one_by_one() -> None:
    asked = four_nodes()
    running = [fresh("g", rank, 2, node=f"n{rank}", ids="0,1,2,3,4,5,6,7") for rank in range(2)]
    extra = fresh("g", 2, 2)
    asked.put(*running, extra)
    assert asked.filter(extra)["NodeNames"] == ["n2", "n3"]


def test_the_pods_of_an_indexed_job_are_a_gang_where_they_say_the_size() -> None:
    asked = four_nodes()
    labels = {
        "batch.kubernetes.io/job-name": "train",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    pod = a_pod("train-0", 8, labels=labels, annotations={"gpuplane.io/gang-size": "2"})
    asked.put(pod)
    assert asked.why(pod, "n0") == "GangIncomplete: gang team/train has 1 of its 2 pods"


def test_of_two_gangs_the_first_complete_one_goes_first() -> None:
    asked = four_nodes()
    first = [fresh("b", rank, 3) for rank in range(3)]
    second = [fresh("a", rank, 3, created=5) for rank in range(3)]
    asked.put(*second, *first)
    assert len(asked.filter(first[0])["NodeNames"]) == 3
    assert "1 of them fit now" in asked.why(second[0], "n0")


def test_a_gang_is_planned_where_its_required_affinity_lets_it() -> None:
    asked = four_nodes()
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchFields": [
                            {"key": "metadata.name", "operator": "In", "values": ["n2", "n3"]}
                        ]
                    }
                ]
            }
        }
    }
    members = [fresh("g", rank, 2, affinity=affinity) for rank in range(2)]
    asked.put(*members)
    assert asked.filter(members[0])["NodeNames"] == ["n2", "n3"]


def test_a_gang_never_asks_others_to_stop() -> None:
    asked = four_nodes()
    asked.put(a_pod("old", 8, node="n0"))
    question = {
        "Pod": fresh("g", 0, 4),
        "NodeNameToMetaVictims": {"n0": {"Pods": [{"UID": "uid-old"}]}},
    }
    answer = json.loads(asked.answerer.preempt(dump(question)))
    assert answer == {"NodeNameToMetaVictims": {}}


def fresh(gang: str, rank: int, size: int, created: int = 0, **more: Any) -> Object:
    """Return a pod of a gang that was made just now."""
    pod = a_member(gang, rank, size, **more)
    pod["metadata"]["creationTimestamp"] = LATE.replace("00:00Z", f"00:{created:02}Z")
    return pod
