"""Queries on sealed outputs in the order in which a key rotation goes through them."""

from sqlalchemy import literal, select, tuple_, update

from gpuplane.core.ids import JobId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.jobs.tables import SealedOutputRow

outputs = table_of(SealedOutputRow)

OutputKey = tuple[JobId, str]


def sealed_after(
    session: ReadSession, after: OutputKey | None, limit: int
) -> list[tuple[OutputKey, bytes]]:
    """Return the next sealed outputs by job and name."""
    order = (outputs.c.job_id, outputs.c.name)
    query = select(outputs).order_by(*order).limit(limit)
    if after is not None:
        job_id, name = after
        place = tuple_(literal(job_id, outputs.c.job_id.type), literal(name))
        query = query.where(tuple_(*order) > place)
    return [
        ((JobId(row["job_id"]), row["name"]), bytes(row["sealed"])) for row in session.rows(query)
    ]


def store_rewrapped(session: WriteSession, key: OutputKey, old: bytes, sealed: bytes) -> bool:
    """Keep the same output under another key; False when it is another output by now."""
    job_id, name = key
    changed = session.execute(
        update(outputs)
        .where(outputs.c.job_id == job_id, outputs.c.name == name, outputs.c.sealed == old)
        .values(sealed=sealed)
    )
    return changed == 1
