"""What a device is now, told to the ledger: the one place that maps guards to states."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpuplane.core.ids import (
    GpuId,
)
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.placements import repository
from gpuplane.domains.placements.rules.values import DeviceGuard, Holder
from gpuplane.domains.usage import service as usage
from gpuplane.domains.usage.service import DeviceChange, DeviceState, Share


def follow(
    session: WriteSession,
    gpu_ids: Iterable[GpuId],
    guards: Mapping[GpuId, DeviceGuard],
    at: int,
    moved: Collection[GpuId] = (),
) -> int:
    """Let the ledger say what these devices are now, and of which node those are that moved."""
    changes = changes_of(session, [guards[each] for each in gpu_ids])
    return usage.apply_changes(session, changes, at, moved)


def changes_of(session: ReadSession, guards: Sequence[DeviceGuard]) -> list[DeviceChange]:
    """Return what devices are: state, and shares of allocations and of unused reservations."""
    held: dict[GpuId, list[Holder]] = {}
    for row in repository.holders_on(session, [guard.gpu_id for guard in guards]):
        held.setdefault(row.gpu_id, []).append(row)
    reserved = repository.load_reservations(
        session, {guard.reservation_id for guard in guards if guard.reservation_id is not None}
    )
    changes = []
    for guard in guards:
        rows = held.get(guard.gpu_id, [])
        shares = [
            Share(
                row.id,
                row.tenant_id,
                row.project_id,
                row.gpu_milli,
                row.job_id,
                row.busy_since is not None,
            )
            for row in rows
        ]
        state = _state(guard, rows)
        reservation = None
        if guard.reservation_id is not None and not guard.down:
            reservation = reserved[guard.reservation_id]
        unused = 1000 - sum(row.gpu_milli for row in rows)
        if reservation is not None and unused:
            shares.append(
                Share(
                    reservation.id,
                    reservation.tenant_id,
                    reservation.project_id,
                    unused,
                    None,
                    billable=reservation.charge_unused,
                )
            )
        changes.append(DeviceChange(guard.gpu_id, state, tuple(shares)))
    return changes


def _state(guard: DeviceGuard, rows: Sequence[Holder]) -> DeviceState:
    """Return the one state of a device: what holds it comes before what ails it."""
    if any(row.busy_since is not None for row in rows):
        return DeviceState.BUSY
    if rows:
        return DeviceState.ALLOCATED_IDLE
    if guard.down:
        return DeviceState.DOWN
    return DeviceState.FREE if guard.reservation_id is None else DeviceState.RESERVED
