"""Priority lent along dependencies, over any number of steps, and what it protects."""

from __future__ import annotations

from gpuplane.core.ids import JobId
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.inheritance import Dependent, compute_inherited
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.workloads import Priority
from tests.builders import NOW, World, a_node, a_workload, an_id


def jid(name: str) -> JobId:
    return JobId(an_id(f"job/{name}"))


def waits(name: str, after: str, priority: Priority) -> Dependent:
    return Dependent(jid(name), jid(after), priority)


def test_whoever_is_waited_for_gets_the_highest_class_that_waits() -> None:
    found = compute_inherited(
        [
            waits("report", "train", Priority.HIGH),
            waits("audit", "train", Priority.LOW),
            waits("train", "fetch", Priority.NORMAL),
        ]
    )
    assert found == {jid("train"): Priority.HIGH, jid("fetch"): Priority.HIGH}


def test_a_lower_class_that_waits_lends_only_what_it_has() -> None:
    assert compute_inherited([waits("low", "high", Priority.LOW)]) == {jid("high"): Priority.LOW}


def test_a_circle_ends_and_has_one_class() -> None:
    found = compute_inherited([waits("a", "b", Priority.SPOT), waits("b", "a", Priority.HIGH)])
    assert found == {jid("a"): Priority.HIGH, jid("b"): Priority.HIGH}


def test_work_that_a_higher_job_waits_for_goes_before_others_of_its_class() -> None:
    lent = a_workload("lent").gpus(8).priority(Priority.LOW).age(1)
    first = a_workload("first").gpus(8).priority(Priority.NORMAL).age(100).build()
    asked = lent.having(inherited_priority=Priority.HIGH).build()
    world = World([a_node()], pending=[first, asked])
    placed = decide(world.snapshot(), Policy(), NOW, 0).placed
    assert [each.job_id for each in placed] == [asked.job_id]
    assert "Counts as high: a high job waits for it." in placed[0].explanation


def test_work_that_a_higher_job_waits_for_is_not_stopped_for_a_job_between_them() -> None:
    for lent, is_stopped in ((None, True), (Priority.CRITICAL, False), (Priority.NORMAL, True)):
        low = a_workload("low").gpus(8).priority(Priority.LOW)
        world = World([a_node()], pending=[low.having(inherited_priority=lent).build()])
        started = NOW - 3_600_000
        world.apply(decide(world.snapshot(), Policy(), started, 0), started)
        world.pending = [a_workload("high").gpus(8).priority(Priority.HIGH).build()]
        decision = decide(world.snapshot(), Policy(), NOW, 0)
        assert bool(decision.preempting) is is_stopped
