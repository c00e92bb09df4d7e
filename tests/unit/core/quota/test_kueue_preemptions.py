"""Victims and reasons equal those that Kueue's own tests expect, scenario by scenario.

The scenarios are in `kueue_preemptions.json`, which names its source. Queues for which Kueue's
tests declare a flavor without any quota have a quota of 0 here; what is unconnected is left out.
"""

import pytest

from gpuplane.core.quota import (
    AdmissionMode,
    AdmittedWorkload,
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


@pytest.mark.parametrize("scenario", load_scenarios("kueue_preemptions.json"), ids=name_of)
def test_victims_and_reasons_equal_those_of_kueue(scenario: Json) -> None:
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
    targets = plan_preemption(tree, preemptor, admitted, strategies=strategies)

    victims = sorted([target.workload.id, target.reason.value] for target in targets)
    assert victims == scenario["victims"]
    assert {name: tree.usage_of(name) for name in tree.cluster_queues} == before
