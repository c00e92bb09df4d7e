"""GPUs that are cut anew into MIG instances: asked for, taken on by a backend, seen, or given up.

An order is one row a GPU. While it stands, what it destroys is given to nobody; who is to get the
new instance is the scheduler's business.
"""

from collections.abc import Sequence

from gpuplane.core.fleet.facts import MigChange
from gpuplane.core.ids import ClusterId, JobId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.placements import repository
from gpuplane.domains.placements.rules.values import Repartition, RepartitionState

REPARTITION_S = 300
"""How long a backend may take to cut a GPU, and how long one that failed is left alone: cutting
takes seconds, and a driver that hangs is not asked again and again."""


def ask_repartition(
    session: WriteSession,
    cluster_id: ClusterId,
    job_id: JobId,
    changes: Sequence[MigChange],
    now: int,
) -> bool:  # fmt: skip - the parameters read as one line
    """Order GPUs to be cut for a job, all or none; False when one of them is not as it was read.

    An instance that is to be destroyed must not be held, and a GPU is cut for one job at a time.
    """
    guards = repository.lock_devices(session, [change.gpu_id for change in changes])
    standing = {each.gpu_id for each in repository.list_repartitions(session, cluster_id)}
    for change in changes:
        guard = guards.get(change.gpu_id)
        if guard is None or guard.down or change.gpu_id in standing:
            return False
        if any(guard.allocated_mig_mask >> slot.start & 1 for slot in change.destroy):
            return False
    rows = [
        Repartition(
            gpu_id=change.gpu_id,
            cluster_id=cluster_id,
            node_id=change.node_id,
            node_name=change.node_name,
            gpu_index=change.gpu_index,
            job_id=job_id,
            destroy=tuple((slot.profile, slot.start) for slot in change.destroy),
            create=tuple((slot.profile, slot.start) for slot in change.create),
            state=RepartitionState.ASKED,
            message="",
            asked_at=now,
            deadline_at=now + REPARTITION_S * 1000,
        )
        for change in changes
    ]
    repository.insert_repartitions(session, rows)
    for row in rows:
        _tell(
            session, row, "gpu.repartition_asked", f"{_name(row)} is to be cut: {_cut(row)}.", now
        )
    session.wake("repartitioner")
    return True


def list_repartitions(
    session: ReadSession, cluster_id: ClusterId | None = None
) -> tuple[Repartition, ...]:
    """Return the GPUs (of a cluster) that are being cut anew, or could not be, by id."""
    return repository.list_repartitions(session, cluster_id)


def note_repartition_sent(session: WriteSession, row: Repartition) -> None:
    """Say that the backend took an order on."""
    repository.set_repartition_state(session, row.gpu_id, RepartitionState.SENT, "")
    session.wake("inventory")


def end_repartition(session: WriteSession, row: Repartition, now: int) -> None:
    """Drop an order that was seen to be carried out, or whose failure is to be forgotten."""
    repository.delete_repartition(session, row.gpu_id)
    if row.is_underway:
        _tell(session, row, "gpu.repartitioned", f"{_name(row)} is cut: {_cut(row)}.", now)
    session.wake("scheduler")


def fail_repartition(session: WriteSession, row: Repartition, message: str, now: int) -> None:
    """Say that an order cannot be carried out; the GPU is left alone until the deadline."""
    repository.set_repartition_state(session, row.gpu_id, RepartitionState.FAILED, message)
    told = f"{_name(row)} could not be cut ({_cut(row)}): {message}"
    _tell(session, row, "gpu.repartition_failed", told, now)
    session.wake("scheduler")


def _tell(session: WriteSession, row: Repartition, kind: str, message: str, now: int) -> None:
    events.record(
        session,
        NewEvent(
            kind=kind,
            at=now,
            cluster_id=row.cluster_id,
            subject_kind="node",
            subject_id=row.node_name,
            message=message,
        ),
    )


def _name(row: Repartition) -> str:
    return f"GPU {row.gpu_index} of {row.node_name}"


def _cut(row: Repartition) -> str:
    made = ", ".join(f"{profile} at {start}" for profile, start in row.create)
    gone = ", ".join(f"{profile} at {start}" for profile, start in row.destroy)
    return f"{made} in place of {gone}" if gone else f"{made} on free slices"
