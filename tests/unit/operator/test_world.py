"""Whom a change of the cluster concerns, and in which order things are looked at."""

from __future__ import annotations

import msgspec

from gpuplane.operator.worklist import Worklist
from gpuplane.operator.world import Key, World
from tests.clocks import FakeClock
from tests.unit.operator.builders import a_job, a_node, a_pod, a_workload


class Woken:
    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.world = World(self.keys.append)

    def taken(self) -> list[str]:
        names = [name for _, name in self.keys]
        self.keys.clear()
        return names


def test_what_is_known_already_wakes_nobody_and_what_is_older_is_not_believed() -> None:
    woken = Woken()
    newer = msgspec.structs.replace(a_workload(status={"phase": "Running"}), resource_version="9")
    woken.world.set_workload(newer)
    assert woken.taken() == ["w"]
    woken.world.set_workload(newer)
    woken.world.set_workload(msgspec.structs.replace(a_workload(), resource_version="8"))
    assert woken.taken() == []
    assert woken.world.find_workload(("team", "w")) == newer


def test_a_workload_made_anew_under_the_same_name_is_another_one() -> None:
    woken = Woken()
    woken.world.set_workload(a_workload(uid="old"))
    woken.world.promise(a_workload(uid="old"), "j", "n1")
    woken.world.set_workload(a_workload(uid="new"))
    assert woken.world.room.find_hold("old") is None
    woken.world.remove_workload(a_workload(uid="old"))
    assert woken.world.find_workload(("team", "w")) is not None


def test_the_workload_of_a_job_and_of_its_pods_is_woken() -> None:
    woken = Woken()
    woken.world.set_workload(a_workload())
    woken.world.set_job(a_job("j"))
    woken.taken()
    woken.world.set_pod(a_pod(job="j"))
    assert woken.taken() == ["w"]
    woken.world.set_pod(a_pod("other", job="k"))
    assert woken.taken() == []
    woken.world.remove_job(a_job("j"))
    assert woken.taken() == ["w"]


def test_a_late_answer_does_not_undo_what_was_told_of_a_job_meanwhile() -> None:
    woken = Woken()
    workload = a_workload()
    woken.world.set_workload(workload)
    # Kueue let it go before the answer was read that it was made.
    woken.world.set_job(a_job("j", version=7))
    woken.taken()
    woken.world.note_answer(a_job("j", suspended=True, version=5))
    assert [job.is_suspended for job in woken.world.jobs_of(workload)] == [False]
    assert woken.taken() == []
    woken.world.set_job(a_job("j", suspended=True, version=8))
    assert [job.is_suspended for job in woken.world.jobs_of(workload)] == [True]
    # Nor is one there again that was deleted meanwhile.
    woken.world.remove_job(a_job("j", version=9))
    woken.world.note_answer(a_job("j", version=8))
    assert woken.world.jobs_of(workload) == ()
    woken.world.set_job(a_job("j", version=10))  # its labels were taken away, and given back
    assert len(woken.world.jobs_of(workload)) == 1


def test_gpus_that_come_free_wake_those_that_they_could_serve_by_priority() -> None:
    woken = Woken()
    world = woken.world
    world.set_node(a_node("n1", 4))
    world.set_pod(a_pod(gpus=4))
    for name, gpus, priority in (("a", 2, "low"), ("b", 3, "normal"), ("c", 2, "high"),
                                 ("d", 8, "high")):  # fmt: skip
        workload = a_workload(name, name, gpuCount=gpus, priority=priority)
        world.set_workload(workload)
        world.wait_for_room(workload)
    woken.taken()
    world.remove_pod(a_pod(gpus=4))
    assert woken.taken() == ["c", "a"]


def test_a_node_that_turns_ready_is_offered_to_those_who_wait() -> None:
    woken = Woken()
    world = woken.world
    world.set_node(a_node("n1", ready=False))
    world.set_workload(a_workload())
    world.wait_for_room(a_workload())
    woken.taken()
    world.set_node(a_node("n1", ready=False, labels={}))
    assert woken.taken() == []
    world.set_node(a_node("n1"))
    assert woken.taken() == ["w"]


def test_what_many_ask_for_is_counted_while_they_are_not_over() -> None:
    woken = Woken()
    woken.world.set_workload(a_workload("a", "a", gpuCount=4))
    woken.world.set_workload(a_workload("b", "b", gpuCount=4))
    assert woken.world.mix == {4: 2}
    over = a_workload("a", "a", {"phase": "Succeeded"}, gpuCount=4)
    woken.world.set_workload(msgspec.structs.replace(over, resource_version="2"))
    assert woken.world.mix == {4: 1}


def test_a_run_teaches_once_and_only_the_last_fifty_are_kept() -> None:
    woken = Woken()
    world = woken.world
    for number in range(60):
        job = a_job(f"j{number}", conditions=[
            {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"}
        ], startTime="2026-01-01T00:00:00Z")  # fmt: skip
        for _ in range(2):
            world.remember_run(a_workload(), job, "")
    assert [run.duration_s for run in world.runs_of("llama2")] == [9] * 50


async def test_what_is_new_is_looked_at_first_and_nothing_twice_at_once() -> None:
    work: Worklist[str] = Worklist(FakeClock())
    for key in ("a", "b"):
        work.add(key)
    work.add_first("c")
    work.add_first("b")
    assert [await work.take() for _ in range(3)] == ["c", "b", "a"]
    work.add("a")
    assert len(work) == 0
    work.done("a")
    assert await work.take() == "a"


async def test_what_is_due_later_is_looked_at_then_or_sooner_when_something_changes() -> None:
    clock = FakeClock()
    work: Worklist[str] = Worklist(clock)
    work.add_later("a", 60)
    work.add_later("b", 30)
    work.add_later("b", 90)
    work.add("a")
    assert await work.take() == "a"
    work.done("a")
    await clock.advance(31)
    assert await work.take() == "b"
    work.done("b")
    await clock.advance(100)
    work.add("z")
    assert await work.take() == "z"
    assert len(work) == 0
