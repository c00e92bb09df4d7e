"""Queries for `db check`; they read no spec, so that a row that cannot be read hides nothing."""

from collections import defaultdict
from uuid import UUID

import msgspec
from sqlalchemy import Text, cast, select, type_coerce

from gpuplane.core.workloads import JobSpec
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.jobs.repository.attempts import attempts, replicas
from gpuplane.domains.jobs.repository.jobs import jobs
from gpuplane.domains.jobs.rules.checking import OpenAttempt, Standing

PAGE = 2_000
_decoder = msgspec.json.Decoder(JobSpec)


def list_standings(session: ReadSession) -> list[Standing]:
    """Return where every job stands."""
    query = select(jobs.c.id, jobs.c.name, jobs.c.status, jobs.c.current_attempt_id)
    return [Standing(*row) for row in session.sql.execute(query.order_by(jobs.c.id))]


def list_open_attempts(session: ReadSession) -> list[OpenAttempt]:
    """Return every attempt that is not over."""
    query = (
        select(replicas.c.attempt_id, replicas.c.id, replicas.c.gpu_ids, replicas.c.mig_device)
        .join(attempts, attempts.c.id == replicas.c.attempt_id)
        .where(attempts.c.state != "ended")
    )
    ranks: dict[UUID, dict[UUID, tuple[str, ...]]] = defaultdict(dict)
    for attempt_id, replica_id, gpu_ids, mig_device in session.sql.execute(query):
        on = [mig_device.partition("/")[0]] if mig_device else gpu_ids
        ranks[attempt_id][replica_id] = tuple(on)
    found = select(attempts.c.id, attempts.c.job_id, attempts.c.cluster_id).where(
        attempts.c.state != "ended"
    )
    return [
        OpenAttempt(row[0], row[1], row[2], ranks[row[0]])
        for row in session.sql.execute(found.order_by(attempts.c.id))
    ]


def list_unreadable(session: ReadSession) -> list[tuple[UUID, str, str]]:
    """Return (job, name, what is wrong) of every row whose spec cannot be read."""
    found: list[tuple[UUID, str, str]] = []
    after: UUID | None = None
    while True:
        query = select(jobs.c.id, jobs.c.name, type_coerce(cast(jobs.c.spec, Text), Text))
        if after is not None:
            query = query.where(jobs.c.id > after)
        rows = session.sql.execute(query.order_by(jobs.c.id).limit(PAGE)).all()
        for job_id, name, spec in rows:
            try:
                _decoder.decode(spec)
            except msgspec.MsgspecError as error:
                found.append((job_id, name, str(error)))
        if len(rows) < PAGE:
            return found
        after = rows[-1][0]
