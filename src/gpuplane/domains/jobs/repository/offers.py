"""Queries on offers: queued jobs in the hands of clusters that admit by themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, RowMapping, delete, insert, or_, select, update

from gpuplane.core.ids import AttemptId, ClusterId, JobId
from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.jobs.repository.jobs import CHUNK, jobs
from gpuplane.domains.jobs.rules.offers import OFFERED, WITHDRAWING, Offer
from gpuplane.domains.jobs.tables import OfferRow

offers = table_of(OfferRow)
_NAMES = tuple(each.name for each in fields(Offer))


def insert_offers(session: WriteSession, rows: Sequence[Offer]) -> None:
    """Store new offers."""
    session.execute(insert(offers), [_values(each) for each in rows])


def load_offers(session: ReadSession, attempt_ids: Sequence[UUID]) -> dict[AttemptId, Offer]:
    """Return the offers with these ids."""
    found: dict[AttemptId, Offer] = {}
    for start in range(0, len(attempt_ids), CHUNK):
        part = attempt_ids[start : start + CHUNK]
        for row in session.rows(select(offers).where(offers.c.attempt_id.in_(part))):
            offer = _offer(row)
            found[offer.attempt_id] = offer
    return found


def find_of_job(session: ReadSession, job_id: UUID) -> Offer | None:
    """Return the offer of a job, or None."""
    row = session.row(select(offers).where(offers.c.job_id == job_id))
    return None if row is None else _offer(row)


def list_offered_jobs(session: ReadSession) -> set[JobId]:
    """Return the jobs that are offered somewhere."""
    return {row["job_id"] for row in session.rows(select(offers.c.job_id))}


def list_offers(session: ReadSession, cluster_id: ClusterId | None = None) -> list[Offer]:
    """Return the offers of a cluster, also those dispatched to it, or of all; oldest first."""
    query = select(offers).order_by(offers.c.offered_at, offers.c.attempt_id)
    if cluster_id is not None:
        query = query.where(
            or_(offers.c.cluster_id == cluster_id, offers.c.worker_id == cluster_id)
        )
    return [_offer(row) for row in session.rows(query)]


def list_to_ensure(session: ReadSession, cluster_id: ClusterId, limit: int) -> list[Offer]:
    """Return offers that a cluster was not told of yet, oldest first."""
    return _list_oldest(
        session,
        limit,
        offers.c.cluster_id == cluster_id,
        offers.c.state == OFFERED,
        offers.c.ensured_at.is_(None),
    )


def list_to_evict(session: ReadSession, cluster_id: ClusterId, limit: int) -> list[Offer]:
    """Return offers to be taken back that a cluster was not told of yet, oldest first."""
    return _list_oldest(
        session,
        limit,
        offers.c.cluster_id == cluster_id,
        offers.c.state == WITHDRAWING,
        offers.c.evict_sent_at.is_(None),
    )


def list_to_take(session: ReadSession, worker_id: ClusterId, limit: int) -> list[Offer]:
    """Return offers dispatched to a worker that keeps no record of them yet, oldest first."""
    return _list_oldest(
        session,
        limit,
        offers.c.worker_id == worker_id,
        offers.c.state == OFFERED,
        offers.c.taken_at.is_(None),
    )


def list_to_let_go(session: ReadSession, worker_id: ClusterId, limit: int) -> list[Offer]:
    """Return offers to be taken back that a worker was not told of yet, oldest first."""
    return _list_oldest(
        session,
        limit,
        offers.c.worker_id == worker_id,
        offers.c.state == WITHDRAWING,
        offers.c.worker_told_at.is_(None),
    )


def _list_oldest(session: ReadSession, limit: int, *conditions: ColumnElement[bool]) -> list[Offer]:
    query = (
        select(offers)
        .where(*conditions)
        .order_by(offers.c.offered_at, offers.c.attempt_id)
        .limit(limit)
    )
    return [_offer(row) for row in session.rows(query)]


def list_void(session: ReadSession, limit: int) -> list[Offer]:
    """Return offers whose jobs do not stand in line any more."""
    query = (
        select(offers)
        .join(jobs, jobs.c.id == offers.c.job_id)
        .where(offers.c.state == OFFERED, jobs.c.status != str(JobStatus.QUEUED))
        .limit(limit)
    )
    return [_offer(row) for row in session.rows(query)]


def update_offers(
    session: WriteSession, attempt_ids: Sequence[UUID], changes: Mapping[str, Any]
) -> None:
    """Change these offers alike."""
    for start in range(0, len(attempt_ids), CHUNK):
        part = attempt_ids[start : start + CHUNK]
        session.execute(update(offers).where(offers.c.attempt_id.in_(part)).values(**changes))


def delete_offers(session: WriteSession, attempt_ids: Sequence[UUID]) -> None:
    """Forget offers: they became attempts, or their cluster has nothing of them any more."""
    for start in range(0, len(attempt_ids), CHUNK):
        part = attempt_ids[start : start + CHUNK]
        session.execute(delete(offers).where(offers.c.attempt_id.in_(part)))


def _values(offer: Offer) -> dict[str, Any]:
    values = {name: getattr(offer, name) for name in _NAMES}
    values["usage"] = [list(each) for each in offer.usage]
    return values


def _offer(row: RowMapping) -> Offer:
    values = {name: row[name] for name in _NAMES}
    values["usage"] = tuple((flavor, what, amount) for flavor, what, amount in row["usage"])
    return Offer(**values)
