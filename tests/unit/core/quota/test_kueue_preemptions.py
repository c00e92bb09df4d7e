"""Victims and reasons equal those that Kueue's own tests expect, scenario by scenario.

The scenarios are in `kueue_preemptions.json`, which names its source. Queues for which Kueue's
tests declare a flavor without any quota have a quota of 0 here; what is unconnected is left out.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuplane.core.quota import (
    AdmissionMode,
    AdmittedWorkload,
    BorrowWithinCohortPolicy,
    ClusterQueueSpec,
    CohortSpec,
    FairStrategy,
    FlavorResource,
    PreemptionPolicy,
    Preemptor,
    QuotaTree,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
    plan_preemption,
)

Json = dict[str, Any]
SCENARIOS: list[Json] = json.loads(
    Path(__file__).with_name("kueue_preemptions.json").read_text(encoding="utf-8")
)["cases"]


def quotas_of(rows: list[list[Any]]) -> dict[FlavorResource, ResourceQuota]:
    return {FlavorResource(row[0], row[1]): ResourceQuota(*row[2:]) for row in rows}


def usage_of(rows: list[list[Any]]) -> dict[FlavorResource, int]:
    return {FlavorResource(flavor, resource): amount for flavor, resource, amount in rows}


def queue_of(row: Json) -> ClusterQueueSpec:
    policy = row["preemption"]
    return ClusterQueueSpec(
        row["name"],
        row["cohort"],
        tuple(ResourceGroup(tuple(covered), tuple(flavors)) for covered, flavors in row["groups"]),
        quotas_of(row["quotas"]),
        fair_weight_milli=row["weight_milli"],
        preemption=PreemptionPolicy(
            WithinClusterQueue(policy.get("within", "Never")),
            ReclaimWithinCohort(policy.get("reclaim", "Never")),
            BorrowWithinCohortPolicy(policy.get("borrow", "Never")),
            policy.get("threshold"),
        ),
    )


def admitted_of(row: Json) -> AdmittedWorkload:
    return AdmittedWorkload(
        row["id"],
        row["queue"],
        usage_of(row["usage"]),
        row["priority"],
        row["queued_ms"],
        row["admitted_ms"],
        is_evicted=row.get("evicted", False),
    )


@pytest.mark.parametrize(
    "scenario", SCENARIOS, ids=[f"{each['suite']}: {each['name']}" for each in SCENARIOS]
)
def test_victims_and_reasons_equal_those_of_kueue(scenario: Json) -> None:
    tree = QuotaTree(
        [queue_of(row) for row in scenario["queues"]],
        [
            CohortSpec(row["name"], row["parent"], quotas_of(row["quotas"]), row["weight_milli"])
            for row in scenario["cohorts"]
        ],
        mode=AdmissionMode(scenario["mode"]),
    )
    admitted: dict[str, list[AdmittedWorkload]] = {}
    for workload in map(admitted_of, scenario["admitted"]):
        admitted.setdefault(workload.cluster_queue, []).append(workload)
        tree.add_usage(workload.cluster_queue, workload.usage)
    before = {name: tree.usage_of(name) for name in tree.cluster_queues}
    row = scenario["incoming"]
    preemptor = Preemptor(
        row["id"], row["queue"], usage_of(row["usage"]), row["priority"], row["queued_ms"]
    )

    strategies = tuple(map(FairStrategy, scenario.get("strategies", list(FairStrategy))))
    targets = plan_preemption(tree, preemptor, admitted, strategies=strategies)

    victims = sorted([target.workload.id, target.reason.value] for target in targets)
    assert victims == scenario["victims"]
    assert {name: tree.usage_of(name) for name in tree.cluster_queues} == before
