"""Reads the queues and cohorts of the scenario files."""

import json
from pathlib import Path
from typing import Any

from gpuplane.core.quota import (
    BorrowWithinCohortPolicy,
    ClusterQueueSpec,
    CohortSpec,
    FlavorFungibility,
    FlavorFungibilityPolicy,
    FlavorPreference,
    FlavorResource,
    PreemptionPolicy,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
)

Json = dict[str, Any]
Rows = list[list[Any]]


def load_scenarios(name: str) -> list[Json]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    cases: list[Json] = json.loads(text)["cases"]
    return cases


def name_of(scenario: Json) -> str:
    return f"{scenario['suite']}: {scenario['name']}"


def quotas_of(rows: Rows) -> dict[FlavorResource, ResourceQuota]:
    return {FlavorResource(row[0], row[1]): ResourceQuota(*row[2:]) for row in rows}


def usage_of(rows: Rows) -> dict[FlavorResource, int]:
    return {FlavorResource(flavor, resource): amount for flavor, resource, amount in rows}


def queue_of(row: Json) -> ClusterQueueSpec:
    policy = row["preemption"]
    borrow, preempt, preference = row.get("fungibility", ["MayStopSearch", "TryNextFlavor", None])
    return ClusterQueueSpec(
        row["name"],
        row["cohort"],
        tuple(ResourceGroup(tuple(covered), tuple(flavors)) for covered, flavors in row["groups"]),
        quotas_of(row["quotas"]),
        fair_weight_milli=row.get("weight_milli", 1000),
        preemption=PreemptionPolicy(
            WithinClusterQueue(policy.get("within", "Never")),
            ReclaimWithinCohort(policy.get("reclaim", "Never")),
            BorrowWithinCohortPolicy(policy.get("borrow", "Never")),
            policy.get("threshold"),
        ),
        flavor_fungibility=FlavorFungibility(
            FlavorFungibilityPolicy(borrow),
            FlavorFungibilityPolicy(preempt),
            FlavorPreference(preference) if preference else None,
        ),
    )


def cohort_of(row: Json) -> CohortSpec:
    weight_milli = row.get("weight_milli", 1000)
    return CohortSpec(row["name"], row["parent"], quotas_of(row["quotas"]), weight_milli)
