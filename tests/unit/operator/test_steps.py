"""The next step of a workload, whatever of it is there."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuplane.operator.names import Phase
from gpuplane.operator.rules.jobs import job_name
from gpuplane.operator.rules.seen import Node, Workload
from gpuplane.operator.rules.steps import (
    Await,
    Clear,
    Follow,
    Guard,
    Place,
    Placed,
    Refused,
    Rest,
    Search,
    decide_placement,
    decide_step,
)
from tests.unit.operator.builders import a_job, a_node, a_pod, a_workload

NAME = job_name(a_workload())


def going(workload: Workload) -> Workload:
    return msgspec.structs.replace(workload, is_going=True)


def test_a_new_workload_gets_its_finalizer_before_anything_is_made() -> None:
    fresh = msgspec.structs.replace(a_workload(), finalizers=())
    assert decide_step(fresh, (), {}, 0) == Guard()
    assert decide_step(a_workload(), (), {}, 0) == Place()


def test_a_job_that_is_there_is_followed_and_not_made_again() -> None:
    step = decide_step(a_workload(), (a_job(NAME),), {}, 0)
    assert isinstance(step, Follow)
    assert (step.standing.phase, step.standing.node) == (Phase.SCHEDULED, "n1")


def test_the_phase_follows_the_job_to_its_end() -> None:
    pods = {NAME: (a_pod(job=NAME, node="n2"),)}
    running = decide_step(a_workload(), (a_job(NAME, active=1),), pods, 0)
    assert isinstance(running, Follow)
    assert (running.standing.phase, running.standing.node) == (Phase.RUNNING, "n2")
    done = a_job(NAME, conditions=[{"type": "Complete", "status": "True"}])
    over = decide_step(a_workload(), (done,), {}, 0)
    assert isinstance(over, Follow)
    assert over.standing.phase is Phase.SUCCEEDED
    lost = a_job(NAME, conditions=[{"type": "Failed", "status": "True", "reason": "Deadline"}])
    failed = decide_step(a_workload(), (lost,), {}, 0)
    assert isinstance(failed, Follow)
    assert (failed.standing.phase, failed.standing.message) == (
        Phase.FAILED,
        f"Job {NAME} failed: Deadline",
    )


def test_a_pod_that_does_not_start_is_told_with_its_reason() -> None:
    pods = {NAME: (a_pod(job=NAME, phase="Pending", waiting="ImagePullBackOff"),)}
    step = decide_step(a_workload(), (a_job(NAME, active=1),), pods, 0)
    assert isinstance(step, Follow)
    assert step.standing.phase is Phase.SCHEDULED
    assert step.standing.message.endswith("; ImagePullBackOff")


def test_a_suspended_job_is_still_being_scheduled() -> None:
    job = msgspec.structs.replace(a_job(NAME, suspended=True), queue="team")
    step = decide_step(a_workload(), (job,), {}, 0)
    assert isinstance(step, Follow)
    assert step.standing.phase is Phase.SCHEDULING
    assert "queue team" in step.standing.message


def test_an_admitted_job_without_a_node_is_still_being_scheduled() -> None:
    job = msgspec.structs.replace(a_job(NAME), node="")
    pending = a_pod(job=NAME, node="", phase="Pending", waiting="PodInitializing")
    step = decide_step(a_workload(queueName="team"), (job,), {NAME: (pending,)}, 0)
    assert isinstance(step, Follow)
    assert step.standing.phase is Phase.SCHEDULING
    assert step.standing.message.endswith("is admitted and waits for a node; PodInitializing")


def test_a_job_that_was_made_and_is_not_seen_is_searched_for() -> None:
    assert decide_step(a_workload(status={"jobName": NAME}), (), {}, 0) == Search(NAME)


def test_nothing_follows_what_is_over() -> None:
    for phase in ("Succeeded", "Failed"):
        assert decide_step(a_workload(status={"phase": phase}), (), {}, 0) == Rest()


def test_a_preempted_workload_awaits_the_end_of_its_old_job_under_a_new_name() -> None:
    again = a_workload(status={"phase": "Pending", "preemptionCount": 1})
    assert job_name(again) == f"{NAME}-2"
    assert decide_step(again, (a_job(NAME),), {}, 0) == Clear((a_job(NAME),), False)
    assert decide_step(again, (), {}, 0) == Place()


def test_a_job_that_ended_while_it_was_preempted_is_not_run_again() -> None:
    again = a_workload(status={"phase": "Pending", "preemptionCount": 1})
    done = a_job(NAME, going=True, conditions=[{"type": "Complete", "status": "True"}])
    step = decide_step(again, (done,), {}, 0)
    assert isinstance(step, Follow)
    assert step.standing.phase is Phase.SUCCEEDED


def test_a_deleted_workload_clears_its_jobs_whatever_its_phase() -> None:
    for phase in (None, "Scheduled", "Running", "Succeeded"):
        workload = going(a_workload(status={"phase": phase} if phase else {}))
        job = a_job(NAME)
        assert decide_step(workload, (job,), {}, 0) == Clear((job,), finally_release=True)
        assert decide_step(workload, (), {}, 0) == Clear((), finally_release=True)
    left = msgspec.structs.replace(going(a_workload()), finalizers=())
    assert decide_step(left, (), {}, 0) == Rest()


def test_a_reservation_waits_then_holds_then_starts() -> None:
    start = {"startTime": "1970-01-01T00:20:00Z", "holdSeconds": 200}
    workload = a_workload(reservation=start)
    assert decide_step(workload, (), {}, 0) == Await(1000, holds=False)
    assert decide_step(workload, (), {}, 1000) == Await(1200, holds=True)
    assert decide_step(workload, (), {}, 1200) == Place()


def placement(workload: Workload, *nodes: Node, **more: Any) -> Placed | Refused:
    placed = more.pop("placed", {})
    known: dict[str, Any] = {
        "used": {},
        "busy_ids": {},
        "chance": 0,
        "mix": {},
        **more,
        "placed": lambda: placed,
    }
    return decide_placement(workload, nodes, **known)


def test_a_workload_goes_where_it_fits() -> None:
    found = placement(a_workload(), a_node("a"), a_node("b"), used={"a": 4})
    assert found == Placed("b", "nvidia.com/gpu")


def test_a_node_that_was_kept_is_taken_first() -> None:
    found = placement(a_workload(), a_node("a"), a_node("b"), used={"a": 4}, reserved="a")
    assert found == Placed("a", "nvidia.com/gpu")


def test_a_refusal_names_its_reason() -> None:
    none = placement(a_workload(), a_node("a", gpus=None))
    assert isinstance(none, Refused)
    assert none.reason == "no_gpu_nodes"
    full = placement(a_workload(), a_node("a"), used={"a": 8})
    assert isinstance(full, Refused)
    assert full.reason == "no_suitable_node"


def victim(name: str, gpus: int, priority: str, scheduled: int = 0, **more: Any) -> Workload:
    instant = f"2026-01-01T00:00:{scheduled:02}Z"
    status = {"phase": "Running", "jobName": name, "lastScheduleTime": instant}
    return a_workload(name, name, status, gpuCount=gpus, priority=priority, **more)


def test_a_higher_priority_takes_the_fewest_gpus_of_the_lowest_the_youngest_first() -> None:
    high = a_workload("h", gpuCount=4, priority="high")
    there = [victim("n", 4, "normal"), victim("l1", 4, "low", 1), victim("l2", 4, "low", 9)]
    nodes = [a_node("a"), a_node("b", gpus=4)]
    placed = {"a": [there[0], there[1]], "b": [there[2]]}
    found = placement(high, *nodes, used={"a": 8, "b": 4}, placed=placed)
    assert found == Placed("b", "nvidia.com/gpu", (("team", "l2"),))


def test_equals_and_those_who_refuse_are_never_preempted() -> None:
    high = a_workload("h", gpuCount=4, priority="high")
    firm = msgspec.structs.replace(victim("f", 8, "low"), is_preemptible=False)
    for other in (victim("x", 8, "high"), firm):
        found = placement(high, a_node("a"), used={"a": 8}, placed={"a": [other]})
        assert isinstance(found, Refused)
    normal = a_workload("m", gpuCount=4, priority="normal")
    found = placement(normal, a_node("a"), used={"a": 8}, placed={"a": [victim("x", 8, "normal")]})
    assert isinstance(found, Refused)


def test_nobody_is_preempted_while_there_is_room_or_where_it_would_not_help() -> None:
    high = a_workload("h", gpuCount=4, priority="high")
    room = placement(
        high, a_node("a"), a_node("b"), used={"a": 8}, placed={"a": [victim("x", 8, "low")]}
    )
    assert room == Placed("b", "nvidia.com/gpu")
    # Seven of the eight belong to pods of others: the one that may go gives too little.
    helpless = placement(high, a_node("a"), used={"a": 8}, placed={"a": [victim("x", 1, "low")]})
    assert isinstance(helpless, Refused)
