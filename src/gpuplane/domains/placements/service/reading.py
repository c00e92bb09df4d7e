"""What is held now and was held, and the proof that guards, allocations and ledger agree."""

from collections.abc import Sequence

from gpuplane.core.fleet.facts import Allocation as HeldByReplica
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import (
    ClusterId,
    GpuId,
    JobId,
    ReplicaId,
    ReservationId,
)
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.nodes.service import Held
from gpuplane.domains.placements import repository
from gpuplane.domains.placements.rules.booking import (
    compute_capacity,
    device_faults,
    node_faults,
    used_percent,
)
from gpuplane.domains.placements.rules.values import Allocation, Capacity
from gpuplane.domains.placements.service.following import changes_of
from gpuplane.domains.usage import service as usage


def list_open(session: ReadSession, cluster_id: ClusterId | None = None) -> tuple[Allocation, ...]:
    """Return everything held now (on a cluster), one row for each device and each node part."""
    return tuple(repository.list_open(session, cluster_id))


def held_by_jobs(
    session: ReadSession, cluster_id: ClusterId | None = None
) -> dict[JobId, tuple[HeldByReplica, ...]]:
    """Return what each job holds now as the decision core reads it, one value per replica."""
    by_replica: dict[ReplicaId, list[Allocation]] = {}
    for row in repository.list_open(session, cluster_id):
        by_replica.setdefault(row.replica_id, []).append(row)
    held: dict[JobId, list[HeldByReplica]] = {}
    for rows in by_replica.values():
        held.setdefault(rows[0].job_id, []).append(_held(rows))
    return {job: tuple(sorted(each, key=lambda one: one.rank)) for job, each in held.items()}


def list_for_jobs(session: ReadSession, job_ids: Sequence[JobId]) -> tuple[Allocation, ...]:
    """Return everything these jobs held or hold, by start, rank and device."""
    return tuple(repository.list_of_jobs(session, job_ids))


def reserved_devices(session: ReadSession, cluster_id: ClusterId) -> dict[GpuId, ReservationId]:
    """Return the devices that reservations hold now."""
    return {
        guard.gpu_id: guard.reservation_id
        for guard in repository.list_device_guards(session, cluster_id)
        if guard.reservation_id is not None
    }


def load_held(session: ReadSession, cluster_id: ClusterId) -> Held:
    """Return what work holds on the devices and nodes of a cluster, by the guards."""
    devices = repository.list_device_guards(session, cluster_id)
    nodes = repository.list_node_guards(session, cluster_id)
    return Held(
        gpus={each.gpu_id: each.allocated_milli for each in devices if each.allocated_milli},
        mig={
            each.gpu_id: each.allocated_mig_mask.bit_count()
            for each in devices
            if each.allocated_mig_mask
        },
        kept=frozenset(each.gpu_id for each in devices if each.reservation_id is not None),
        nodes={each.node_id: percent for each in nodes if (percent := used_percent(each))},
    )


def get_capacity(session: ReadSession, cluster_id: ClusterId) -> Capacity:
    """Return what a cluster has and what of it is in use, by the guards."""
    return compute_capacity(
        repository.list_node_guards(session, cluster_id),
        repository.list_device_guards(session, cluster_id),
    )


def check(session: ReadSession) -> list[str]:
    """Return a sentence for each broken promise: oversold, guards off, ledger out of step."""
    held = repository.list_open(session, None)
    faults = node_faults(repository.list_node_guards(session), held)
    guards = repository.list_device_guards(session)
    faults.extend(device_faults(guards, held))
    shares = usage.list_open_shares(session)
    for row in held:
        if row.gpu_id is not None and shares.get((row.id, row.gpu_id)) != row.gpu_milli:
            faults.append(f"Allocation {row.id} has no share in the open interval of {row.gpu_id}.")
    ids = {row.id for row in held}
    reserved = {guard.reservation_id for guard in guards}
    faults.extend(
        f"{gpu_id}: its open interval names {holder}, which holds nothing."
        for holder, gpu_id in shares
        if holder not in ids and holder not in reserved
    )
    metered = usage.list_open_holdings(session)
    on_nodes = {row.id for row in held if row.gpu_id is None}
    faults.extend(f"Allocation {each} is not metered." for each in sorted(on_nodes - metered))
    faults.extend(f"Allocation {each} is metered and over." for each in sorted(metered - on_nodes))
    wanted = {each.gpu_id: each.state for each in changes_of(session, guards)}
    found = usage.list_open_states(session)
    faults.extend(
        f"{gpu_id} is {state}, its open interval says {found.get(gpu_id, 'nothing')}."
        for gpu_id, state in wanted.items()
        if found.get(gpu_id) is not state
    )
    return faults


def _held(rows: Sequence[Allocation]) -> HeldByReplica:
    """Return the rows of one replica as one value."""
    on_node = next(row for row in rows if row.gpu_id is None)
    on_gpus = [row for row in rows if row.gpu_id is not None]
    mig = None
    for row in on_gpus:
        if row.gpu_id is not None and row.mig_profile is not None and row.mig_start is not None:
            mig = MigPlacement(row.gpu_id, row.mig_profile, row.mig_start)
    return HeldByReplica(
        on_node.job_id,
        on_node.node_id,
        on_node.rank,
        tuple(row.gpu_id for row in on_gpus if row.gpu_id is not None),
        on_gpus[0].gpu_milli if on_gpus else 1000,
        mig,
        on_node.cpu_milli,
        on_node.memory_mib,
        on_node.ephemeral_mib,
    )
