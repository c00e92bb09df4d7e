"""Leases of loops: who may run one now, with a fencing token that only grows."""

from dataclasses import dataclass

from sqlalchemy import Column, String, Table, insert, select, update

from gpuplane.db.sessions import WriteSession
from gpuplane.db.types import Base, Instant

leases = Table(
    "db_leases",
    Base.metadata,
    Column("name", String(100), primary_key=True),
    Column("owner", String(200), nullable=False),
    Column("token", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Lease:
    """A held lease; its token rises each time the owner changes."""

    name: str
    owner: str
    token: int
    expires_at: int


def acquire_lease(
    session: WriteSession, name: str, owner: str, now: int, ttl_ms: int
) -> Lease | None:
    """Take or renew a lease; None while another owner holds it."""
    query = select(leases).where(leases.c.name == name)
    if session.dialect == "postgresql":
        query = query.with_for_update()
    row = session.row(query)
    expires = now + ttl_ms
    if row is None:
        session.execute(insert(leases).values(name=name, owner=owner, token=1, expires_at=expires))
        return Lease(name, owner, 1, expires)
    if row["owner"] != owner and row["expires_at"] > now:
        return None
    token = row["token"] + (row["owner"] != owner)
    session.execute(
        update(leases)
        .where(leases.c.name == name)
        .values(owner=owner, token=token, expires_at=expires)
    )
    return Lease(name, owner, token, expires)


def release_lease(session: WriteSession, name: str, owner: str) -> None:
    """Give a lease back so that the next owner need not wait for its expiry."""
    session.execute(
        update(leases).where(leases.c.name == name, leases.c.owner == owner).values(expires_at=0)
    )


def lease_token(session: WriteSession, name: str) -> int:
    """Return the current fencing token of a lease; 0 if it was never taken."""
    return int(session.scalar(select(leases.c.token).where(leases.c.name == name)) or 0)
