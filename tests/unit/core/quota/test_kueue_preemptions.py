"""Victims and reasons equal those that Kueue's own tests expect, scenario by scenario.

The scenarios are in `kueue_preemptions.json`, which names its source. Queues for which Kueue's
tests declare a flavor without any quota have a quota of 0 here; what is unconnected is left out.
"""

import pytest

from gpuplane.core.quota import (
    NEWEST_GATES,
    OLD_GATES,
    AdmissionMode,
    AdmittedWorkload,
    FairGates,
    FairStrategy,
    Preemptor,
    QuotaTree,
    plan_preemption,
)
from tests.unit.core.quota.scenarios import (
    Json,
    cohort_of,
    load_scenarios,
    name_of,
    queue_of,
    usage_of,
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


def plan(scenario: Json, gates: FairGates) -> list[list[str]]:
    """Return [victim, reason] of a scenario; the tree must be as it was before."""
    tree = QuotaTree(
        [queue_of(row) for row in scenario["queues"]],
        [cohort_of(row) for row in scenario["cohorts"]],
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
    targets = plan_preemption(tree, preemptor, admitted, strategies=strategies, gates=gates)
    assert {name: tree.usage_of(name) for name in tree.cluster_queues} == before
    return sorted([target.workload.id, target.reason.value] for target in targets)


SCENARIOS = load_scenarios("kueue_preemptions.json")
GATED = "nominal first: workload fitting within nominal can preempt despite high aggregate DRS"
"""The only scenario of Kueue's that its gate decides: v0.15 has neither of them."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name_of)
def test_victims_and_reasons_equal_those_of_kueue(scenario: Json) -> None:
    assert plan(scenario, NEWEST_GATES) == scenario["victims"]


@pytest.mark.parametrize(
    "scenario", [each for each in SCENARIOS if each["mode"] == "fairSharing"], ids=name_of
)
def test_before_its_gates_kueue_asked_its_strategies_of_every_queue(scenario: Json) -> None:
    reasons = {"InCohortReclamation": "InCohortFairSharing"}
    told = [[victim, reasons.get(reason, reason)] for victim, reason in scenario["victims"]]
    assert plan(scenario, OLD_GATES) == ([] if scenario["name"] == GATED else told)
