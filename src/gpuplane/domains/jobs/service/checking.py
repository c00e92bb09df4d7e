"""The proof that jobs, attempts, allocations and history agree; every fault is a sentence."""

from collections import defaultdict

from gpuplane.db.sessions import ReadSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import checking as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules.checking import (
    Holding,
    Told,
    attempt_faults,
    history_faults,
    holding_faults,
)
from gpuplane.domains.placements import service as placements


def check(session: ReadSession) -> list[str]:
    """Return a sentence for each broken promise about jobs."""
    standings = repository.list_standings(session)
    attempts = repository.list_open_attempts(session)
    held = (
        Holding(row.attempt_id, row.replica_id, row.job_id, row.cluster_id, row.gpu_id)
        for row in placements.list_open(session)
    )
    faults = attempt_faults(standings, attempts) + holding_faults(attempts, held)
    told = _histories(session)
    offered = offers_repository.list_offered_jobs(session)
    faults.extend(
        f"Job {attempt.job_id} is offered to a cluster and has an attempt that is not over."
        for attempt in attempts
        if attempt.job_id in offered
    )
    for job in standings:
        named = f"{job.name} ({job.id})"
        faults += history_faults(named, job.status, told.pop(str(job.id), []))
    for job_id, history in told.items():
        faults += history_faults(job_id, None, history)
    faults.extend(
        f"Job {name} ({job_id}) has a specification that cannot be read: {error}"
        for job_id, name, error in repository.list_unreadable(session)
    )
    return faults


def _histories(session: ReadSession) -> dict[str, list[Told]]:
    """Return what was told of each job, oldest first."""
    found: dict[str, list[Told]] = defaultdict(list)
    for job_id, kind, data in events.walk_histories(session, "job"):
        found[job_id].append(Told(kind, str(data.get("from_status", ""))))
    return found
