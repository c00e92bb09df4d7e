"""What a change of a cluster queue keeps, shows and waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpuplane.cli.client import Client
from gpuplane.cli.declarations import (
    drop_flavors,
    find_useless,
    list_differences,
    merge_groups,
    merge_quota,
    settle,
    settle_withdrawal,
)
from gpuplane.cli.errors import CliError, Exit

GPU = "nvidia.com/gpu"


def quota(amount: str, borrow: str | None = None) -> dict[str, Any]:
    return {
        "name": GPU,
        "nominalQuota": amount,
        "borrowingLimit": borrow,
        "lendingLimit": None,
    }


def row(**fields: Any) -> dict[str, Any]:
    """Return a cluster queue as the API shows it."""
    return {
        "name": "qa",
        "cohort": "co",
        "resourceGroups": [
            {
                "coveredResources": [GPU],
                "flavors": [{"name": "nvidia-l4", "resources": [quota("2", "1")]}],
            }
        ],
        "queueingStrategy": "BestEffortFIFO",
        "fairSharing": {"weight": 1.0},
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "Never"},
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch"},
        "coversEverything": False,
        "highestPriority": None,
        "resourceVersion": 3,
        "standing": "active",
        "conflict": None,
        "cluster": None,
        **fields,
    }


class Told(Client):
    """A client to which the server tells one list after the other."""

    def __init__(self, *lists: Sequence[dict[str, Any]]) -> None:
        self.lists = list(lists)

    def rows(self, path: str, **query: Any) -> list[dict[str, Any]]:
        assert path == "/there"
        return list(self.lists.pop(0))


def test_mig_instances_join_the_group_of_their_flavor_and_are_none_in_the_others() -> None:
    groups: list[dict[str, Any]] = []
    mig = "nvidia.com/mig-1g.5gb"
    whole = [{"name": name, "resources": [{"name": GPU, "nominalQuota": 2}]} for name in "ab"]
    cut = {"name": "a", "resources": [{"name": mig, "nominalQuota": 7, "lendingLimit": 1}]}
    merge_groups(groups, [*whole, cut])
    merge_groups(groups, [{"name": "b", "resources": [{"name": GPU, "borrowingLimit": 5}]}])
    [group] = groups
    assert group["coveredResources"] == [GPU, mig]
    first, second = (
        {one["name"]: {**one, "name": ""} for one in flavor["resources"]}
        for flavor in group["flavors"]
    )
    assert first[mig] == {"name": "", "nominalQuota": 7, "lendingLimit": 1}
    assert second[GPU] == {"name": "", "nominalQuota": 2, "borrowingLimit": 5}
    assert second[mig] == {"name": "", "nominalQuota": 0}


def test_a_change_of_an_amount_keeps_all_that_was_not_named() -> None:
    before = row()
    flavor = {"name": "nvidia-l4", "resources": [{"name": GPU, "nominalQuota": 0}]}
    body = merge_quota(before, [flavor], {})
    assert body["preemption"] == {"reclaimWithinCohort": "Any", "withinClusterQueue": "Never"}
    assert (body["cohort"], body["resourceVersion"]) == ("co", 3)
    assert list_differences(before, body) == [(f"nvidia-l4 {GPU} nominalQuota", "2", "0")]
    assert before == row()


def test_a_model_beside_another_is_added_and_fields_named_are_replaced() -> None:
    flavor = {"name": "nvidia-h100-80gb", "resources": [{"name": GPU, "nominalQuota": 4}]}
    changes = {"cohort": None, "fairSharing": {"weight": 2.0}, "highestPriority": "high"}
    body = merge_quota(row(), [flavor], changes)
    assert list_differences(row(), body) == [
        ("cohort", "co", "(none)"),
        ("fairSharing.weight", "1", "2"),
        ("highestPriority", "(none)", "high"),
        (f"nvidia-h100-80gb {GPU} nominalQuota", "(none)", "4"),
    ]


def test_of_the_preemption_only_what_is_named_is_replaced() -> None:
    changes = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    body = merge_quota(row(), [], changes)
    assert body["preemption"] == {
        "reclaimWithinCohort": "Any",
        "withinClusterQueue": "LowerPriority",
    }
    assert changes == {"preemption": {"withinClusterQueue": "LowerPriority"}}


def test_naming_what_stands_already_changes_nothing() -> None:
    flavor = {"name": "nvidia-l4", "resources": [{"name": GPU, "nominalQuota": 2}]}
    assert list_differences(row(), merge_quota(row(), [flavor], {"cohort": "co"})) == []


def of(name: str, amount: int, **limits: int) -> dict[str, Any]:
    """Return a flavor as it is named on the command line."""
    return {"name": name, "resources": [{"name": GPU, "nominalQuota": amount, **limits}]}


def with_typo(amount: str = "2", **more: str) -> dict[str, Any]:
    """Return a queue that a model nobody has was written into."""
    typo = {"name": "l44", "resources": [quota(amount, "1")]}
    typo["resources"] += [{**quota(each), "name": name} for name, each in more.items()]  # type: ignore[operator]  # a list
    made = row()
    made["resourceGroups"][0]["flavors"].append(typo)
    return made


def test_none_of_a_model_that_no_node_has_takes_it_out_of_the_queue() -> None:
    before = with_typo()
    named = [of("l44", 0)]
    gone = find_useless(before, named, ["nvidia-l4"])
    body = merge_quota(before, named, {}, gone)
    assert body["resourceGroups"] == row()["resourceGroups"]
    assert list_differences(before, body) == [
        (f"l44 {GPU} borrowingLimit", "1", "(none)"),
        (f"l44 {GPU} nominalQuota", "2", "(none)"),
    ]
    # Said once more it changes nothing: what is not in the queue is not brought in to be none.
    again = find_useless(body, named, ["nvidia-l4"])
    assert list_differences(body, merge_quota({**before, **body}, named, {}, again)) == []


@pytest.mark.parametrize(
    ("before", "named"),
    [
        (row(), of("nvidia-l4", 0)),
        (with_typo(), of("l44", 1)),
        (with_typo(), of("l44", 0, borrowingLimit=2)),
        (with_typo(cpu="4"), of("l44", 0)),
    ],
    ids=["the cluster has it", "some", "what it may borrow is named", "other quotas of it"],
)
def test_a_model_that_is_of_use_or_is_meant_stays(
    before: dict[str, Any], named: dict[str, Any]
) -> None:
    assert find_useless(before, [named], ["nvidia-l4"]) == frozenset()


def test_a_group_of_which_every_flavor_is_taken_out_is_gone() -> None:
    body = merge_quota(with_typo(), [], {}, ["l44", "nvidia-l4"])
    assert (body["resourceGroups"], body["coversEverything"]) == ([], False)
    groups = with_typo()["resourceGroups"]
    drop_flavors(groups, ["nvidia-l4"])
    assert [each["name"] for each in groups[0]["flavors"]] == ["l44"]


def test_a_declaration_that_the_cluster_does_not_take_ends_with_its_reason_and_a_code() -> None:
    told = {"message": "Somebody else made it; adopt it to take it over as it is."}
    client = Told([], [row(standing="conflict", conflict=told)])
    with pytest.raises(CliError, match="Somebody else made it") as refused:
        settle(client, "/there", row(standing="pending"))
    assert refused.value.exit_code == Exit.REFUSED
    assert client.lists == []


def test_a_declaration_that_the_cluster_has_taken_is_told_as_it_stands_then() -> None:
    found = settle(Told([row(cohort="new")]), "/there", row(standing="pending"))
    assert (found["standing"], found["cohort"]) == ("active", "new")


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ([], "qa deleted"),
        ([row(standing="foreign")], "what somebody else made stays on the cluster"),
        (
            [row(standing="withdrawn", conflict={"message": "forbidden"})],
            "the cluster keeps it: forbidden",
        ),
    ],
    ids=["gone", "foreign", "kept"],
)
def test_what_became_of_a_withdrawn_queue_is_told(after: list[dict[str, Any]], said: str) -> None:
    client = Told([row(standing="withdrawn")], after)
    assert said in settle_withdrawal(client, "/there", row())
