"""Leases of loops: who may run one now, with a fencing token that only grows."""

from dataclasses import dataclass
from functools import partial

from sqlalchemy import Column, String, Table, insert, select, update

from gpuplane.db.database import Database
from gpuplane.db.sessions import WriteSession
from gpuplane.db.types import Base, Instant
from gpuplane.kit.clock import Clock

TTL_MS = 15_000
"""Leases of a dead process are taken over within this."""
UNFENCED = 0
"""The token where no lease is needed: one process a SQLite home, held by a lock."""

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


class LeaseKeeper:
    """Holds the leases of this process and renews them when half their time is over."""

    def __init__(self, database: Database, clock: Clock, owner: str) -> None:
        """Keep leases under the name of this process."""
        self._database = database
        self._clock = clock
        self._owner = owner
        self._held: dict[str, Lease] = {}

    async def hold(self, name: str) -> Lease | None:
        """Return the lease of a loop, taken or renewed if need be; None while another has it."""
        if self._database.is_sqlite:
            return Lease(name, self._owner, UNFENCED, 2**62)
        now = self._clock.now_ms()
        held = self._held.get(name)
        if held is not None and held.expires_at - now > TTL_MS // 2:
            return held
        lease = await self._database.write(
            "db.acquire_lease",
            partial(acquire_lease, name=name, owner=self._owner, now=now, ttl_ms=TTL_MS),
        )
        if lease is None:
            self._held.pop(name, None)
        else:
            self._held[name] = lease
        return lease

    async def release_all(self) -> None:
        """Give every lease back, so that another process need not wait for their expiry."""
        for name in list(self._held):
            await self._database.write(
                "db.release_lease", partial(release_lease, name=name, owner=self._owner)
            )
        self._held.clear()


def is_current(session: WriteSession, name: str, token: int) -> bool:
    """Return whether a fencing token is still the newest; asked inside the guarded transaction."""
    return token == UNFENCED or lease_token(session, name) == token
