"""The life of a job as a table: complete, explained, and without a dead end."""

import pytest

from gpuplane.core.lifecycle.jobs import (
    CONDITION_STAYS,
    EDGES,
    STATUS_STAYS,
    TERMINAL,
    Condition,
    JobStatus,
    allowed_targets,
    find_edge,
)


def test_every_edge_says_in_a_sentence_when_it_happens() -> None:
    assert [edge for edge in EDGES if not edge.sentence.endswith(".")] == []


def test_no_edge_stands_twice() -> None:
    assert len({(edge.source, edge.target) for edge in EDGES}) == len(EDGES)


@pytest.mark.parametrize("status", list(JobStatus))
def test_every_status_has_an_owner_a_deadline_and_an_exit(status: JobStatus) -> None:
    stay = STATUS_STAYS[status]
    assert all((stay.owner, stay.deadline, stay.exit))


@pytest.mark.parametrize("condition", [each for each in Condition if each])
def test_every_condition_has_an_owner_a_deadline_and_an_exit(condition: Condition) -> None:
    stay = CONDITION_STAYS[condition]
    assert all((stay.owner, stay.deadline, stay.exit))


@pytest.mark.parametrize("status", [each for each in JobStatus if each not in TERMINAL])
def test_every_living_status_can_reach_an_end(status: JobStatus) -> None:
    seen, todo = {status}, [status]
    while todo:
        for target in allowed_targets(todo.pop()):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    assert seen & TERMINAL


def test_every_status_can_be_reached_from_submit() -> None:
    seen, todo = {JobStatus.PENDING}, [JobStatus.PENDING]
    while todo:
        for target in allowed_targets(todo.pop()):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    assert seen == set(JobStatus)


def test_a_completed_job_stays_completed() -> None:
    assert allowed_targets(JobStatus.COMPLETED) == ()


def test_an_edge_that_is_not_in_the_table_is_not_found() -> None:
    assert find_edge(JobStatus.COMPLETED, JobStatus.RUNNING) is None
