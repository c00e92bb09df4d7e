"""Reading what attempts left: which one is meant, where it runs, and the trace of every look."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from uuid import UUID

from gpuplane.core.ids import UserId
from gpuplane.core.lifecycle.jobs import HOLDING, TERMINAL
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.errors import AttemptNotFound, LogsGone, WrongStatus
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import workspaces
from gpuplane.domains.jobs.rules import Attempt, Job
from gpuplane.domains.jobs.service.rights import get_job, require_change
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.kit.access import Permission, Principal

LOOKS_KEPT = 4_096
LOOK_AGAIN_MS = 600_000
"""A reader that goes on reading one log is told once in ten minutes, not once a chunk."""


@dataclass(frozen=True, slots=True)
class Output:
    """A job and the attempt whose output is meant; None when it has not begun any."""

    job: Job
    attempt: Attempt | None

    @property
    def is_over(self) -> bool:
        """Return whether nothing is written any more by this attempt."""
        return self.attempt is not None and self.attempt.ended_at is not None

    @property
    def is_last(self) -> bool:
        """Return whether no other attempt will follow."""
        return self.job.status in TERMINAL


class Looks:
    """Which readers looked at which attempt not long ago, so that each look is told once."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[UserId, UUID, str], int] = OrderedDict()

    def is_new(self, user_id: UserId, attempt_id: UUID, kind: str, now: int) -> bool:
        """Return whether this look is to be told, and remember it."""
        key = (user_id, attempt_id, kind)
        before = self._seen.get(key)
        if before is not None and now - before < LOOK_AGAIN_MS:
            return False
        self._seen[key] = now
        self._seen.move_to_end(key)
        while len(self._seen) > LOOKS_KEPT:
            self._seen.popitem(last=False)
        return True


def get_output(
    session: ReadSession, principal: Principal, job_id: UUID, number: int | None
) -> Output:
    """Return the attempt of that number, or the latest one.

    Raises:
        AttemptNotFound: If the job has no attempt of that number.
        LogsGone: If its output is not kept any more.
    """
    job = get_job(session, principal, job_id)
    attempts = attempts_repository.list_attempts(session, job.id)
    if number is None:
        attempt = attempts[-1] if attempts else None
    else:
        attempt = next((each for each in attempts if each.number == number), None)
        if attempt is None:
            raise AttemptNotFound(
                f"{job.name} has no attempt {number}; it has had {job.attempt_count}.",
                field="attempt",
                fix="List its attempts.",
            )
    if attempt is not None and attempt.forgotten:
        raise LogsGone(
            f"The output of attempt {attempt.number} is not kept any more.",
            fix="Have the retention of logs raised for the next time.",
        )
    return Output(job, attempt)


def last_written(session: ReadSession, found: Output) -> Output:
    """Return the latest attempt that has begun, where the one found has not: it wrote nothing."""
    if found.attempt is None or found.attempt.ensured_at is not None:
        return found
    begun = [
        each
        for each in attempts_repository.list_attempts(session, found.job.id)
        if each.ensured_at is not None and not each.forgotten
    ]
    return Output(found.job, begun[-1]) if begun else found


def get_output_to_exec(session: ReadSession, principal: Principal, job_id: UUID) -> Output:
    """Return the running attempt beside which a command may be run.

    Raises:
        Forbidden: If the caller may not.
        WrongStatus: If the job does not run.
    """
    found = get_output(session, principal, job_id, None)
    require_change(principal, found.job, Permission.JOB_EXEC)
    if found.job.status not in HOLDING or found.attempt is None or found.attempt.ensured_at is None:
        raise WrongStatus(
            f"{found.job.name} is {found.job.status}; a command runs beside a running job only.",
            fix="Wait until it runs.",
        )
    return found


def audit(
    session: WriteSession, principal: Principal, found: Output, kind: str, message: str, now: int
) -> None:
    """Leave the trace of a read that is worth one."""
    number = None if found.attempt is None else found.attempt.number
    event = job_event(
        found.job, kind, now, actor=principal.name, message=message, data={"attempt": number}
    )
    events.record(session, replace(event, audit=True))


def get_manifest(
    session: ReadSession, principal: Principal, job_id: UUID
) -> tuple[Job, dict[str, object]]:
    """Return a job's reproducibility manifest.

    Raises:
        WrongStatus: If it has not started yet.
    """
    job = get_job(session, principal, job_id)
    if job.manifest is None:
        raise WrongStatus(
            f"{job.name} has not started, so nothing was captured.",
            code="manifest_not_captured",
            fix="Wait until it runs.",
        )
    return job, dict(job.manifest)


def store_workspace(
    session: WriteSession, principal: Principal, digest: str, size_bytes: int, now: int
) -> bool:
    """Remember an uploaded working directory of the caller's tenant; False if it was known."""
    return workspaces.store_workspace(session, principal.tenant_id, digest, size_bytes, now)


def has_workspace(session: ReadSession, principal: Principal, digest: str) -> bool:
    """Return whether the caller's tenant uploaded this working directory."""
    return workspaces.has_workspace(session, principal.tenant_id, digest)


def current(session: ReadSession, found: Output) -> Output:
    """Return the same attempt as it stands now, or the next one if there is none yet."""
    job = repository.find_job(session, found.job.id) or found.job
    if found.attempt is not None:
        return Output(job, attempts_repository.find_attempt(session, found.attempt.id))
    attempts = attempts_repository.list_attempts(session, job.id)
    return Output(job, attempts[-1] if attempts else None)


def next_attempt(session: ReadSession, found: Output) -> Output:
    """Return the attempt after one that is over; its attempt is None while there is none."""
    job = repository.find_job(session, found.job.id) or found.job
    last = 0 if found.attempt is None else found.attempt.number
    attempts = attempts_repository.list_attempts(session, job.id)
    return Output(job, next((each for each in attempts if each.number > last), None))
