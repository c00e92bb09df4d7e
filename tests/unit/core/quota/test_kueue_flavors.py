"""Flavors, modes and borrowing levels equal those that Kueue's own tests expect.

The scenarios are in `kueue_flavors.json`, which names its source. Parts are Kueue's pod sets.
Left out of Kueue's: topology-aware scheduling, workload slices, reclaimable pods.
"""

import pytest

from gpuplane.core.quota import (
    AdmissionMode,
    FlavorMode,
    FlavorResource,
    PreemptionPossibility,
    QuotaTree,
    assign_flavors,
)
from tests.unit.core.quota.scenarios import (
    Json,
    cohort_of,
    load_scenarios,
    name_of,
    queue_of,
    usage_of,
)

KUEUE_MODES = {
    FlavorMode.NO_FIT: "NoFit",
    FlavorMode.NO_CANDIDATES: "Preempt",
    FlavorMode.PREEMPT: "Preempt",
    FlavorMode.RECLAIM: "Preempt",
    FlavorMode.FIT: "Fit",
}


def assign_all(scenario: Json) -> Json:
    tree = QuotaTree(
        [queue_of(row) for row in scenario["queues"]],
        [cohort_of(row) for row in scenario["cohorts"]],
        usage={name: usage_of(rows) for name, rows in scenario["usage"].items()},
        mode=AdmissionMode(scenario["mode"]),
    )
    answers = {
        FlavorResource(flavor, resource): (PreemptionPossibility[word], level)
        for flavor, resource, word, level in scenario["oracle"]
    }

    def oracle(pair: FlavorResource, amount: int) -> tuple[PreemptionPossibility, int]:
        assert amount > 0
        return answers.get(pair, (PreemptionPossibility.PREEMPT, 0))

    mode, level = FlavorMode.FIT, 0
    flavors, last_tried = [], []
    assumed: dict[FlavorResource, int] = {}
    for part in scenario["parts"]:
        unsuited = part["unsuited"]
        assignment = assign_flavors(
            tree,
            scenario["queues"][0]["name"],
            part["request"],
            suits=lambda flavor, unsuited=unsuited: flavor not in unsuited,
            oracle=oracle,
            assumed=assumed,
        )
        if assignment.mode is FlavorMode.NO_FIT:
            assert assignment.reason is not None
            return {"mode": "NoFit"}
        mode = min(mode, assignment.mode)
        level = max(level, assignment.borrow_level)
        flavors.append(dict(assignment.flavors))
        last_tried.append(dict(assignment.last_tried))
        for pair, amount in assignment.usage.items():
            assumed[pair] = assumed.get(pair, 0) + amount
    word = KUEUE_MODES[mode]
    return {"mode": word, "level": level, "flavors": flavors, "last_tried": last_tried}


@pytest.mark.parametrize("scenario", load_scenarios("kueue_flavors.json"), ids=name_of)
def test_the_assignment_equals_that_of_kueue(scenario: Json) -> None:
    found = assign_all(scenario)
    assert {key: found.get(key) for key in scenario["want"]} == scenario["want"]
