"""Offers that their cluster has admitted and that no node has room for, in the scheduler's words.

Owns the reason `Unschedulable` of queued jobs. Never an offer itself: Kueue keeps its quota for it.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpuplane.backends.interface import ReplicaObservation
from gpuplane.core.ids import AttemptId
from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository

_PREFIX = f"{Word.UNSCHEDULABLE}: "
"""How a backend begins what the scheduler says of a pod that fits nowhere."""


def note_unplaced(
    session: WriteSession, seen: Sequence[ReplicaObservation]
) -> tuple[AttemptId, ...]:
    """Store what the scheduler says of offered jobs whose pods it cannot place.

    Args:
        seen: What is seen of offered attempts; every replica of each, or none.

    Returns:
        Those that are not known here to be admitted yet: what is said of their admission will
        take this reason's place, so they are to be looked at again.
    """
    sentences = _sentences(seen)
    offers = offers_repository.load_offers(session, list(sentences))
    jobs = repository.load_jobs(session, [each.job_id for each in offers.values()])
    changes = []
    early = []
    for attempt_id, found in offers.items():
        job = jobs.get(found.job_id)
        if found.is_withdrawing or job is None or job.status is not JobStatus.QUEUED:
            continue
        if found.admitted_at is None:
            early.append(attempt_id)
        told = (str(Word.UNSCHEDULABLE), sentences[attempt_id])
        if (job.reason, job.status_message) != told:
            changes.append(
                {
                    "id": job.id,
                    "version": job.version,
                    "reason": told[0],
                    "status_message": told[1],
                    "reason_counts": None,
                }
            )
    repository.note_reasons(session, changes)
    return tuple(early)


def _sentences(seen: Iterable[ReplicaObservation]) -> Mapping[AttemptId, str]:
    """Return what is said of the first replica of each attempt that fits nowhere."""
    found: dict[AttemptId, str] = {}
    for each in sorted(seen, key=lambda one: one.rank):
        if not each.node_name and each.message.startswith(_PREFIX):
            found.setdefault(each.ref.attempt_id, each.message.removeprefix(_PREFIX))
    return found
