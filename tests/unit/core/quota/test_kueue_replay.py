"""The comparison with a real Kueue reads its log rightly, and sees a decision that differs."""

from pathlib import Path

from benchmarks.kueue_cycle import KueueLoop
from benchmarks.kueue_plans import Plan
from benchmarks.kueue_replay import Known, Replay
from benchmarks.kueue_trace import Trace
from gpuplane.core.quota import (
    GPU,
    AdmissionMode,
    ClusterQueueSpec,
    FlavorResource,
    PreemptionPolicy,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
)

QUEUE = ClusterQueueSpec(
    "q",
    resource_groups=(ResourceGroup((GPU,), ("a",)),),
    quotas={FlavorResource("a", GPU): ResourceQuota(4000)},
    preemption=PreemptionPolicy(WithinClusterQueue.LOWER_PRIORITY),
)
PLAN = Plan("cohort-0", (QUEUE,), (), ())
KNOWN = {
    "job-low-1": Known("1", "low", "q", 4, 1, 1_000),
    "job-high-2": Known("2", "high", "q", 2, 100, 2_000),
}
CYCLE = 7
HEADS = '{"msg":"Obtained ClusterQueue heads","schedulingCycle":7,"count":1}'
SNAPSHOT = (
    '{"msg":"Found ClusterQueue","schedulingCycle":7,"clusterQueue":{"name":"q"},'
    '"workloads":["compared/job-low-1"]}'
)
PREEMPTED = (
    '{"msg":"Preempted","schedulingCycle":7,"workload":{"name":"job-high-2"},'
    '"targetWorkload":{"name":"job-low-1"},"reason":"InClusterQueue"}'
)
ENTRY = (
    '{"msg":"Workload evaluated for admission","schedulingCycle":7,'
    '"workload":{"name":"job-high-2"},"clusterQueue":{"name":"q"},"status":"",'
    '"reason":"2 more needed. Pending the preemption of 1 workload(s)","nominatedAssignment":'
    '{"PodSets":[{"Flavors":{"nvidia.com/gpu":{"Name":"a","Mode":1}},'
    '"FlavorAssignmentAttempts":[{"Flavor":"a"}]}],"Borrowing":0},'
    '"preempted":[{"name":"job-low-1"}]}'
)
UPDATED = (
    '{"msg":"Workload update event","workload":{"name":"job-low-1"},"status":"admitted",'
    '"clusterQueue":"q"}'
)


def read(tmp_path: Path, *lines: str) -> Trace:
    log = tmp_path / "kueue.log"
    log.write_text("not JSON\n" + "\n".join(lines) + "\n")
    trace = Trace(log)
    trace.read()
    trace.close()
    return trace


def replay() -> Replay:
    loop = KueueLoop([QUEUE], [], AdmissionMode.CLASSICAL)
    return Replay(PLAN, loop, KNOWN, lambda name, cycle: ("a", 1_000))


def test_a_decision_that_is_the_same_is_no_difference(tmp_path: Path) -> None:
    trace = read(tmp_path, HEADS, SNAPSHOT, PREEMPTED, ENTRY)
    assert [cycle.number for cycle in trace.cycles] == [CYCLE]
    assert trace.evictions == [("job-low-1", "InClusterQueue")]
    assert replay().compare(trace.cycles[0]) == (1, [])


def test_another_outcome_or_reason_is_a_difference_that_names_the_head(tmp_path: Path) -> None:
    waiting = ENTRY.replace(". Pending the preemption of 1 workload(s)", "")
    reclaimed = PREEMPTED.replace("InClusterQueue", "InCohortReclamation")
    for lines in ((HEADS, SNAPSHOT, waiting), (HEADS, SNAPSHOT, reclaimed, ENTRY)):
        count, found = replay().compare(read(tmp_path, *lines).cycles[0])
        assert count == 1
        assert len(found) == 1
        assert "high in q" in found[0]


def test_a_cycle_with_a_head_missing_is_not_compared(tmp_path: Path) -> None:
    two = HEADS.replace('"count":1', '"count":2')
    trace = read(tmp_path, two, SNAPSHOT, PREEMPTED, ENTRY)
    assert replay().compare(trace.cycles[0]) == (0, [])


def test_who_is_being_evicted_is_known_to_the_cycles_after_its_update_was_seen(
    tmp_path: Path,
) -> None:
    later = [each.replace(":7,", ":8,") for each in (HEADS, SNAPSHOT, ENTRY)]
    seen = read(tmp_path, HEADS, SNAPSHOT, PREEMPTED, ENTRY, UPDATED, *later)
    unseen = read(tmp_path, HEADS, SNAPSHOT, PREEMPTED, ENTRY, *later)
    assert [sorted(cycle.evicted) for cycle in seen.cycles] == [[], ["job-low-1"]]
    assert [sorted(cycle.evicted) for cycle in unseen.cycles] == [[], []]
