"""Workloads of the turn before are used again where nothing in them changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from gpuplane.core.ids import JobId
from gpuplane.core.scheduling.workload import Workload
from gpuplane.domains.jobs.service import Job
from gpuplane.loops.scheduler.known import KnownWorkloads
from tests.builders import a_workload


@dataclass(frozen=True)
class ReadJob:
    """As much of a job as is looked at here: a value that was read, and its id."""

    id: JobId
    version: int = 1


def a_job(number: int) -> Job:
    return cast(Job, ReadJob(JobId(UUID(int=number))))


def made_anew() -> Workload:
    return a_workload().build()


def test_the_same_job_made_of_the_same_is_the_very_same_workload() -> None:
    known, job = KnownWorkloads(), a_job(1)
    known.begin()
    first = known.find(job, ("tenant", None), made_anew)
    known.begin()
    assert known.find(job, ("tenant", None), made_anew) is first


def test_a_job_that_was_read_again_or_is_made_of_something_else_is_made_anew() -> None:
    known, job = KnownWorkloads(), a_job(1)
    known.begin()
    first = known.find(job, ("tenant",), made_anew)
    known.begin()
    other = known.find(job, ("renamed",), made_anew)
    known.begin()
    read_again = cast(Job, replace(cast(ReadJob, job)))
    again = known.find(read_again, ("renamed",), made_anew)
    assert len({id(first), id(other), id(again)}) == 3


def test_who_was_not_asked_for_in_a_turn_is_forgotten() -> None:
    known, job = KnownWorkloads(), a_job(1)
    known.begin()
    first = known.find(job, (), made_anew)
    known.begin()
    known.begin()
    assert known.find(job, (), made_anew) is not first
