"""The real reason first: what is told of pods that wait, run, end and vanish."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuplane.backends.interface import Phase
from gpuplane.backends.kubernetes.observing import observe_attempt
from gpuplane.backends.kubernetes.outcomes import VERDICT_MS, compute_outcomes
from gpuplane.backends.kubernetes.records import NEVER, decide_evict, decide_settle
from gpuplane.backends.kubernetes.settling import LOOK_S
from gpuplane.backends.kubernetes.shapes import Condition, Pod
from gpuplane.backends.kubernetes.sights import VANISHED_MS, NodeState
from gpuplane.core.reasons import Word
from tests.unit.backends.kubernetes.builders import (
    END_MS,
    NODE,
    REF,
    START_MS,
    a_main,
    a_pod,
    a_record,
    a_sight,
    ended,
    running,
)

NOW = END_MS + 60_000


def failed(**fields: Any) -> Pod:
    """Return a pod whose container exited with 1, or as told."""
    return a_pod(phase="Failed", **{"state": ended(1), **fields})


@pytest.mark.parametrize(
    ("pod", "word", "said"),
    [
        (a_pod(phase="Succeeded", state=ended(0)), Word.COMPLETED, ""),
        (failed(), Word.NON_ZERO_EXIT, "exited with code 1"),
        (failed(state=ended(1, message="no such file")), Word.NON_ZERO_EXIT, "no such file"),
        (
            failed(state=ended(1, message="Traceback:\n  line 3\nValueError: no\n\n")),
            Word.NON_ZERO_EXIT,
            "exited with code 1: ValueError: no",
        ),
        (failed(state=ended(139)), Word.SIGNALLED, "signal 11"),
        (failed(state=ended(137, reason="OOMKilled")), Word.OUT_OF_MEMORY, "OOMKilled"),
        (
            failed(state=ended(128, reason="StartError", message="no exec")),
            Word.START_FAILED,
            "no exec",
        ),
        (failed(reason="Evicted", message="low on memory"), Word.EVICTED, "low on memory"),
        (failed(reason="NodeLost"), Word.NODE_LOST, "NodeLost"),
        (failed(reason="DeadlineExceeded"), Word.TIMED_OUT, "DeadlineExceeded"),
        (
            failed(
                conditions=[
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "DeletionByTaintManager",
                        "message": "taint",
                    }
                ]
            ),
            Word.NODE_LOST,
            "taint",
        ),
        (
            failed(
                conditions=[
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "EvictionByEvictionAPI",
                    }
                ]
            ),
            Word.DRAINED,
            "EvictionByEvictionAPI",
        ),
        (failed(annotations={"gpuplane.io/xid": "79"}), Word.GPU_FAILED, "XID 79"),
        (
            a_pod(phase="Failed", reason="OutOfcpu", message="no cpu left"),
            Word.START_FAILED,
            "no cpu left",
        ),
    ],
)  # fmt: skip - a table
def test_an_end_has_its_cause(pod: Pod, word: Word, said: str) -> None:
    outcome = compute_outcomes(a_sight(pod), NOW)[0]
    assert (outcome.phase, outcome.reason) == (Phase.EXITED, word)
    assert said in outcome.message


def test_a_gpu_fault_of_the_node_explains_a_failure_and_no_success() -> None:
    trouble = Condition(type="GpuXidError", status="True", reason="XID48", message="DBE")
    node = NodeState(conditions=(trouble,))
    bad = compute_outcomes(a_sight(failed(), node=node), NOW)[0]
    good = compute_outcomes(a_sight(a_pod(phase="Succeeded", state=ended(0)), node=node), NOW)[0]
    assert (bad.reason, bad.message) == (Word.GPU_FAILED, "XID48: DBE")
    assert good.reason == Word.COMPLETED


def test_an_end_lies_at_the_end_of_its_second_and_a_start_at_the_beginning() -> None:
    outcome = compute_outcomes(a_sight(a_pod(phase="Succeeded", state=ended(0))), NOW)[0]
    assert (outcome.started_at, outcome.ended_at) == (START_MS, END_MS)


def test_an_end_is_told_only_once_it_is_recorded() -> None:
    sight = a_sight(a_pod(phase="Succeeded", state=ended(0)))
    assert observe_attempt(sight)[0].phase is Phase.STOPPING
    record = decide_settle(sight.record, compute_outcomes(sight, NOW))
    assert record is not None
    [seen] = observe_attempt(a_sight(record=record))
    assert (seen.phase, seen.reason, seen.ended_at) == (Phase.EXITED, Word.COMPLETED, END_MS)


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (
            a_pod(
                phase="Pending",
                state={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}},
            ),
            "ImagePullBackOff: not found",
        ),
        (
            a_pod(
                phase="Pending",
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes",
                    }
                ],
            ),
            "Unschedulable: 0/3 nodes",
        ),
        (a_pod(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}}), ""),
    ],
)  # fmt: skip - a table
def test_what_waits_says_why_in_the_clusters_words(pod: Pod, said: str) -> None:
    [seen] = observe_attempt(a_sight(pod))
    assert (seen.phase, seen.message) == (Phase.STARTING, said)


@pytest.mark.parametrize(
    ("started", "said"),
    [(False, "its startup probe has not succeeded yet"), (True, "its readiness probe fails")],
)
def test_a_replica_of_a_service_that_is_not_ready_says_which_probe(
    started: bool, said: str
) -> None:
    pod = a_pod(state=running())
    [status] = pod.status.container_statuses
    status.ready, status.started = False, started
    [seen] = observe_attempt(a_sight(pod, record=a_record(port=8080)))
    assert (seen.phase, seen.ready, seen.message) == (Phase.RUNNING, False, said)
    status.ready = True
    [seen] = observe_attempt(a_sight(pod, record=a_record(port=8080)))
    assert (seen.ready, seen.message) == (True, "")


def test_a_pod_on_a_node_that_does_not_report_cannot_be_reached() -> None:
    [seen] = observe_attempt(a_sight(a_pod(state=running()), node=NodeState(ready=False)))
    assert seen.phase is Phase.UNREACHABLE
    assert seen.started_at == START_MS


def test_an_eviction_gives_its_reason_to_an_end_after_it() -> None:
    pod = failed(state=ended(143))
    evicted = decide_evict(a_record(), REF, Word.PREEMPTED, END_MS - 500)
    assert compute_outcomes(a_sight(pod, record=evicted), NOW)[0].reason == Word.PREEMPTED


def test_a_job_that_ended_before_its_eviction_keeps_its_own_reason() -> None:
    pod = a_pod(phase="Succeeded", state=ended(0))
    evicted = decide_evict(a_record(), REF, Word.PREEMPTED, END_MS + 5_000)
    assert compute_outcomes(a_sight(pod, record=evicted), NOW)[0].reason == Word.COMPLETED


def test_an_eviction_before_any_pod_ends_at_once() -> None:
    evicted = decide_evict(a_record(), REF, Word.CANCELLED, 30)
    outcome = compute_outcomes(a_sight(record=evicted), NOW)[0]
    assert (outcome.reason, outcome.exit_code, outcome.started_at) == (Word.CANCELLED, None, None)


def test_the_jobs_deadline_is_why_its_pods_were_ended() -> None:
    over = [{"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded"}]
    pod = failed(state=ended(143), deletionTimestamp="2026-01-02T03:04:08Z")
    outcome = compute_outcomes(a_sight(pod, main=a_main(conditions=over)), NOW)[0]
    assert (outcome.phase, outcome.reason) == (Phase.EXITED, Word.TIMED_OUT)


def test_the_end_of_a_set_is_told_by_its_job_and_by_its_own_words() -> None:
    over = [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]
    whole = a_main(
        "JobSet", conditions=[{"type": "Failed", "status": "True", "reason": "FailedJobs"}]
    )
    pod = failed(state=ended(143), deletionTimestamp="2026-01-02T03:04:08Z")
    sight = replace(a_sight(pod, main=whole), part=a_main(conditions=over))
    assert compute_outcomes(sight, NOW)[0].reason == Word.TIMED_OUT
    whole = a_main("JobSet", conditions=[{"type": "Completed", "status": "True"}])
    outcome = compute_outcomes(a_sight(main=whole), NOW)[0]
    assert (outcome.reason, outcome.exit_code) == (Word.COMPLETED, 0)


def test_a_deleted_pod_waits_for_its_controllers_word_and_not_for_ever() -> None:
    sight = a_sight(failed(state=ended(143), deletionTimestamp="2026-01-02T03:04:08Z"))
    assert compute_outcomes(sight, END_MS) == {}
    outcome = compute_outcomes(sight, END_MS + VERDICT_MS)[0]
    assert (outcome.phase, outcome.reason) == (Phase.LOST, Word.DELETED)
    assert (outcome.exit_code, outcome.signal) == (143, 15)


def test_a_pod_that_vanished_running_was_deleted_where_its_node_is_well_and_lost_where_not() -> (
    None
):
    failed_job = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]
    sight = a_sight(a_pod(state=running()), gone=("uid-0",), main=a_main(conditions=failed_job))
    outcome = compute_outcomes(sight, NOW)[0]
    assert (outcome.phase, outcome.reason) == (Phase.LOST, Word.DELETED)
    assert outcome.message == "its pod was deleted on the cluster by somebody else"
    for nodes in ({}, {NODE: NodeState(ready=False)}):
        outcome = compute_outcomes(replace(sight, nodes=nodes), NOW)[0]
        assert (outcome.phase, outcome.reason) == (Phase.LOST, Word.NODE_LOST)


def test_a_pod_that_went_while_nobody_looked_was_deleted_when_its_job_says_so() -> None:
    told = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded",
            "message": "it failed once", "lastTransitionTime": "2026-01-02T03:04:05Z"}  # fmt: skip
    outcome = compute_outcomes(a_sight(main=a_main(conditions=[told])), NOW)[0]
    assert (outcome.phase, outcome.reason) == (Phase.LOST, Word.DELETED)
    assert "deleted or evicted on the cluster while nobody looked" in outcome.message
    assert "BackoffLimitExceeded: it failed once" in outcome.message
    assert outcome.ended_at < NOW


def test_how_others_of_a_gang_or_on_a_worker_ended_that_are_gone_is_not_known() -> None:
    over = a_main(conditions=[{"type": "Failed", "status": "True", "reason": "FailedIndexes"}])
    gang = compute_outcomes(a_sight(failed(), main=over, record=a_record((0, 1))), NOW)
    assert (gang[0].reason, gang[1].reason) == (Word.NON_ZERO_EXIT, Word.END_NOT_SEEN)
    assert gang[0].ended_at < gang[1].ended_at  # what failed first is what the job failed of
    there = a_main(conditions=[{"type": "Failed", "status": "True"}],
                   managed_by="kueue.x-k8s.io/multikueue")  # fmt: skip
    assert compute_outcomes(a_sight(main=there), NOW)[0].reason == Word.END_NOT_SEEN


def test_a_signal_that_nobody_sent_by_deleting_the_pod_keeps_its_own_word() -> None:
    assert compute_outcomes(a_sight(failed(state=ended(143))), NOW)[0].reason == Word.SIGNALLED
    going = failed(state=ended(143), deletionTimestamp="2026-01-02T03:04:08Z")
    gang = a_sight(going, record=a_record((0, 1)))
    assert compute_outcomes(gang, END_MS + VERDICT_MS)[0].reason == Word.SIGNALLED
    moved = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    drained = failed(state=ended(143), conditions=moved, deletionTimestamp="2026-01-02T03:04:08Z")
    assert compute_outcomes(a_sight(drained), END_MS + VERDICT_MS)[0].reason == Word.DRAINED


def test_a_rank_waits_for_its_pod_while_its_job_is_there() -> None:
    assert compute_outcomes(a_sight(), NOW) == {}
    assert observe_attempt(a_sight())[0].phase is Phase.STARTING


def test_what_kueue_holds_back_is_starting_even_after_its_pods_ran() -> None:
    sight = a_sight(failed(state=ended(143)), main=a_main(suspend=True))
    assert compute_outcomes(sight, NOW) == {}
    assert observe_attempt(sight)[0].phase is Phase.STARTING


@pytest.mark.parametrize("status", ["True", "False"])
def test_how_pods_ended_that_kueue_took_away_says_nothing_once_it_lets_their_job_go_again(
    status: str,
) -> None:
    told = {"type": "Suspended", "status": status, "lastTransitionTime": "2026-01-02T03:05:00Z"}
    main = a_main(conditions=[told])
    made = "2026-01-02T03:04:00Z"
    gone = failed(state=ended(143), creationTimestamp=made)
    going = failed(state=ended(143), creationTimestamp=made, deletionTimestamp=made)
    for sight in (a_sight(gone, main=main, gone=("uid-0",)), a_sight(going, main=main)):
        assert compute_outcomes(sight, END_MS + 3_600_000) == {}
        assert observe_attempt(sight)[0].phase is Phase.STARTING
    again = a_pod(state=running(), uid="new", creationTimestamp="2026-01-02T03:05:01Z")
    (seen,) = observe_attempt(a_sight(gone, again, main=main, gone=("uid-0",)))
    assert seen.phase is Phase.RUNNING


def test_a_pod_that_ends_after_its_job_was_let_go_ends_its_rank() -> None:
    told = {"type": "Suspended", "status": "False", "lastTransitionTime": "2026-01-02T03:04:00Z"}
    pod = failed(creationTimestamp="2026-01-02T03:04:01Z", deletionTimestamp="2026-01-02T03:04:09Z")
    sight = a_sight(pod, main=a_main(conditions=[told]), gone=("uid-0",))
    assert compute_outcomes(sight, END_MS + VERDICT_MS)[0].exit_code == 1


def test_a_pod_that_went_with_its_deleted_workload_is_lost_by_somebodys_hand() -> None:
    going = failed(state=ended(143), deletionTimestamp="2026-01-02T03:04:08Z")
    for sight in (a_sight(going), a_sight(a_pod(state=running()), gone=("uid-0",))):
        outcome = compute_outcomes(replace(sight, main=None), NOW)[0]
        assert (outcome.phase, outcome.reason) == (Phase.LOST, Word.DELETED)
        assert "deleted on the cluster by somebody else" in outcome.message


def test_what_ended_by_itself_before_its_workload_was_deleted_keeps_its_own_end() -> None:
    done = a_pod(phase="Succeeded", state=ended(0), deletionTimestamp="2026-01-02T03:04:20Z")
    outcome = compute_outcomes(replace(a_sight(done), main=None), NOW)[0]
    assert (outcome.phase, outcome.reason) == (Phase.EXITED, Word.COMPLETED)


def test_a_service_whose_container_ended_is_not_over() -> None:
    sight = a_sight(failed(), record=a_record(kind="Deployment"), main=a_main("Deployment"))
    assert compute_outcomes(sight, NOW) == {}


def test_an_attempt_that_may_never_start_speaks_for_every_rank() -> None:
    record = a_record(ranks=(0, 1), fate=NEVER, evict_reason="Cancelled")
    seen = observe_attempt(a_sight(record=record))
    assert [(each.rank, each.forbids, each.reason) for each in seen] == [
        (0, True, "Cancelled"),
        (1, True, "Cancelled"),
    ]


def test_a_new_pod_of_a_rank_stands_before_the_one_that_is_gone() -> None:
    old = a_pod(state=running(), creationTimestamp="2026-01-02T03:04:06Z")
    new = a_pod(state=running(), uid="uid-new", creationTimestamp="2026-01-02T03:04:05Z")
    [seen] = observe_attempt(a_sight(old, new, gone=("uid-0",)))
    assert seen.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ('{"a": 1}', {"a": 1}),
        ("{}", {}),
        ("[1]", None),
        ("{broken", None),
        ("", None),
        ('{"a":' * 800 + "1" + "}" * 800, None),
        ('{"a": "\\ud800"}', None),
    ],
)
def test_outputs_are_one_json_object(text: str, outputs: dict[str, int] | None) -> None:
    pod = a_pod(phase="Succeeded", state=ended(0, message=text))
    assert compute_outcomes(a_sight(pod), NOW)[0].outputs == outputs


@pytest.mark.parametrize("kind", ["Deployment", "ConfigMap"])
def test_a_service_that_somebody_took_away_is_lost_and_no_zombie(kind: str) -> None:
    pod = a_pod(state=running())
    pod.metadata.labels["gpuplane.io/part"] = "replica"
    record = a_record(kind=kind)
    late = record.at + VANISHED_MS
    taken = replace(a_sight(pod, record=record, gone=("uid-0",)), main=None)
    assert compute_outcomes(taken, late - 1) == {}
    outcome = compute_outcomes(taken, late)[0]
    assert (outcome.phase, outcome.reason) == ("lost", Word.DELETED)
    assert compute_outcomes(a_sight(pod, record=record, gone=("uid-0",)), late) == {}
    assert compute_outcomes(replace(taken, gone=frozenset()), late) == {}


def test_that_a_workload_is_gone_is_told_within_half_a_minute() -> None:
    assert VANISHED_MS + LOOK_S * 1000 < 30_000


def test_a_manager_tells_the_exit_code_of_what_its_worker_ran_by_the_conditions_of_its_job() -> (
    None
):
    told = {
        "type": "Failed",
        "status": "True",
        "reason": "PodFailurePolicy",
        "message": "Container main for pod t/j-x failed with exit code 42 matching FailJob rule",
        "lastTransitionTime": "2026-01-02T03:04:09Z",
    }
    outcome = compute_outcomes(a_sight(main=a_main(conditions=[told])), END_MS + 3_600_000)[0]
    assert (outcome.phase, outcome.reason) == (Phase.EXITED, Word.NON_ZERO_EXIT)
    assert outcome.exit_code == 42
    assert outcome.ended_at < END_MS + 60_000
    done = {**told, "type": "Complete", "reason": "", "message": ""}
    for suspend in (True, False):  # Kueue holds the Job of a manager back to its end, or lets it go
        sight = a_sight(main=a_main(suspend=suspend, conditions=[done]))
        assert compute_outcomes(sight, END_MS + 3_600_000)[0].exit_code == 0
