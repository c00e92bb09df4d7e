"""Capacity set aside: created, cancelled, begun and ended in time."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from gpuplane.core.capacity import ReservationState
from gpuplane.core.hardware import find_model, nearest_models
from gpuplane.core.ids import (
    ClusterId,
    GpuId,
    JobId,
    ProjectId,
    ReservationId,
    TenantId,
)
from gpuplane.core.scheduling.reservations import Hold, Window, compute_room, is_no_show
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.placements import repository
from gpuplane.domains.placements.errors import (
    BadReservation,
    NotEnoughCapacity,
    ReservationNotFound,
    ReservationOver,
)
from gpuplane.domains.placements.rules.booking import choose_devices
from gpuplane.domains.placements.rules.values import Reservation
from gpuplane.domains.placements.service.following import follow
from gpuplane.domains.usage import service as usage

MAX_RESERVATION_MS = 366 * 86_400_000
FURTHEST_MS = 2 * MAX_RESERVATION_MS
PAST_START_MS = 60_000
"""How far in the past a reservation may begin: what a request and a clock are late by."""
NEVER_NO_SHOW = 0
"""The grace of reservations that wait for ever for somebody to show up."""
MAX_LOOK_BACK = 10_000
"""Intervals of a reservation's devices looked at for a use; where there are more, there was one."""


@dataclass(frozen=True, slots=True)
class ReservationChanges:
    """What one turn of the reservations did.

    Args:
        in_the_way: Jobs that hold devices which are reserved for others now; the devices become
            the reservation's when those jobs end or are moved.
    """

    activated: tuple[ReservationId, ...] = ()
    ended: tuple[ReservationId, ...] = ()
    in_the_way: tuple[JobId, ...] = ()


def model_named(name: str) -> str:
    """Return a model's canonical name.

    Raises:
        BadReservation: If no model has the name; offers the nearest.
    """
    model = find_model(name)
    if model is None:
        raise BadReservation(
            f"There is no GPU model {name!r}.",
            field="model",
            fix=f"Nearest models: {', '.join(nearest_models(name))}.",
        )
    return model.name


def create_reservation(
    session: WriteSession,
    wanted: Reservation,
    actor: str,
    now: int,
    holds: Iterable[Hold] = (),
) -> Reservation:
    """Set GPUs of a model aside from start to end, if so many can be guaranteed all that time.

    Args:
        session: A writing session.
        wanted: The reservation.
        actor: Who makes it.
        now: The instant.
        holds: What running work holds of the model outside reservations.

    Raises:
        BadReservation: If the window begins in the past or is over, the cluster has no GPU of
            the model, or its own Kueue admits.
        NotEnoughCapacity: If other reservations, and work that nobody may stop, leave too few.
    """
    _refuse_kueue(session, wanted)
    if wanted.start_at < now - PAST_START_MS:
        raise BadReservation(
            "The reservation would begin in the past: nobody can use time that is over.",
            field="start",
            fix="Give a start from now on.",
        )
    if wanted.end_at <= max(now, wanted.start_at):
        raise BadReservation(
            "The reservation would end before it begins or in the past.",
            field="end",
            fix="Give an end after the start and after now.",
        )
    if wanted.end_at - wanted.start_at > MAX_RESERVATION_MS or wanted.start_at > now + FURTHEST_MS:
        raise BadReservation(
            "A reservation begins within two years and lasts a year at most.",
            field="start" if wanted.start_at > now + FURTHEST_MS else "end",
            fix="Reserve a shorter or an earlier time.",
        )
    guards = repository.lock_model(session, wanted.cluster_id, wanted.model)
    if not guards:
        models = ", ".join(repository.list_models(session, wanted.cluster_id)) or "no GPU at all"
        raise BadReservation(
            f"The cluster has no GPU of model {wanted.model}.",
            field="model",
            fix=f"It has {models}.",
        )
    others = repository.list_reservations(
        session,
        cluster_id=wanted.cluster_id,
        model=wanted.model,
        states=(ReservationState.SCHEDULED, ReservationState.ACTIVE),
    )
    left = compute_room(_window_of(wanted), map(_window_of, others), len(guards), holds)
    if wanted.gpu_count > left:
        raise NotEnoughCapacity(
            f"{wanted.gpu_count} {wanted.model} are wanted and {left} of {len(guards)} are left "
            "throughout that time beside other reservations and work that may not be stopped.",
            field="count",
            fix=f"Reserve at most {left}, or another time.",
        )
    repository.insert_reservation(session, wanted)
    _announce(session, wanted, "reservation.created", f"{actor} reserved GPUs.", actor, now)
    session.wake("scheduler")
    return wanted


def _refuse_kueue(session: ReadSession, wanted: Reservation) -> None:
    """Refuse what nobody would keep: Kueue knows quotas, and nothing of GPUs set aside."""
    cluster = clusters.find_cluster(session, wanted.cluster_id)
    if cluster is not None and cluster.admits_by_kueue:
        raise BadReservation(
            f"{cluster.name} admits by its own Kueue, which keeps no GPUs back for a time.",
            field="cluster",
            fix="Give the project a ClusterQueue of its own with "
            f"{wanted.gpu_count} {wanted.model} and a lendingLimit of 0, or name a cluster with "
            "embedded admission.",
        )


def count_standing(session: ReadSession, cluster_id: ClusterId) -> int:
    """Return how many reservations of a cluster are active or to come."""
    states = (ReservationState.SCHEDULED, ReservationState.ACTIVE)
    return len(repository.list_reservations(session, cluster_id=cluster_id, states=states))


def cancel_reservation(
    session: WriteSession, reservation_id: ReservationId, actor: str, now: int
) -> Reservation:
    """Give a reservation up; jobs that run on its devices go on.

    Raises:
        ReservationNotFound: If there is none of that id.
        ReservationOver: If it has ended or was cancelled.
    """
    found = repository.lock_reservation(session, reservation_id)
    if found is None:
        raise _unknown()
    if found.state not in (ReservationState.SCHEDULED, ReservationState.ACTIVE):
        raise ReservationOver(f"The reservation is {found.state} already.")
    _end(session, found, ReservationState.CANCELLED, now)
    _announce(session, found, "reservation.cancelled", f"{actor} gave it up.", actor, now)
    return get_reservation(session, reservation_id)


def get_reservation(session: ReadSession, reservation_id: ReservationId) -> Reservation:
    """Return a reservation.

    Raises:
        ReservationNotFound: If there is none of that id.
    """
    found = repository.find_reservation(session, reservation_id)
    if found is None:
        raise _unknown()
    return found


def list_reservations(
    session: ReadSession,
    *,
    cluster_id: ClusterId | None = None,
    tenant_id: TenantId | None = None,
    states: Sequence[ReservationState] = (),
) -> tuple[Reservation, ...]:
    """Return reservations by start."""
    return repository.list_reservations(
        session, cluster_id=cluster_id, tenant_id=tenant_id, states=states
    )


def usable_reservations(
    session: ReadSession, cluster_id: ClusterId
) -> dict[ProjectId, tuple[Reservation, ...]]:
    """Return the active reservations of a cluster by the project whose jobs may use them."""
    found: dict[ProjectId, tuple[Reservation, ...]] = {}
    for each in list_reservations(
        session, cluster_id=cluster_id, states=(ReservationState.ACTIVE,)
    ):
        found[each.project_id] = (*found.get(each.project_id, ()), each)
    return found


def holders_outside_reservations(
    session: ReadSession, cluster_id: ClusterId, model: str
) -> dict[GpuId, tuple[JobId, ...]]:
    """Return the jobs on each GPU of a model that no reservation holds, for GPUs that are held."""
    open_to_all = [
        guard.gpu_id
        for guard in repository.list_device_guards(session, cluster_id)
        if guard.model == model and guard.reservation_id is None and guard.allocated_milli
    ]
    found: dict[GpuId, tuple[JobId, ...]] = {}
    for row in repository.holders_on(session, open_to_all):
        found[row.gpu_id] = (*found.get(row.gpu_id, ()), row.job_id)
    return found


def advance_reservations(
    session: WriteSession,
    now: int,
    no_show_s: int = NEVER_NO_SHOW,
    find_fixed: Callable[[ReadSession], Collection[GpuId]] | None = None,
) -> ReservationChanges:
    """Begin and end what is due, and give active ones the devices they still lack.

    Args:
        session: A writing session.
        now: The instant.
        no_show_s: How long a reservation that has GPUs waits for its first use before they come
            free again; 0 for ever.
        find_fixed: Finds the devices whose work nobody may stop: they are taken last.
    """
    activated: list[ReservationId] = []
    ended: list[ReservationId] = []
    in_the_way: set[JobId] = set()
    kueues = {each.id for each in clusters.list_clusters(session) if each.admits_by_kueue}
    looks_at_all = no_show_s > 0 or bool(kueues)
    for each in repository.lock_due_reservations(session, now, looks_at_all=looks_at_all):
        if each.end_at <= now:
            _end(session, each, ReservationState.ENDED, now)
            _announce(session, each, "reservation.ended", "The reservation ended.", "system", now)
            ended.append(each.id)
            continue
        if each.state is ReservationState.ACTIVE and _nobody_came(session, each, now, no_show_s):
            _end(session, each, ReservationState.ENDED, now)
            text = f"Nobody used it for {no_show_s} s after it had GPUs: they are free again."
            _announce(session, each, "reservation.no_show", text, "system", now)
            ended.append(each.id)
            continue
        if each.cluster_id in kueues:
            # Made before that was refused: nobody there keeps it, and it may not seem so.
            _end(session, each, ReservationState.CANCELLED, now)
            text = "The cluster admits by its own Kueue, which keeps no GPUs back for a time."
            _announce(session, each, "reservation.cancelled", text, "system", now)
            ended.append(each.id)
            continue
        began = each.state is ReservationState.SCHEDULED
        if not began and len(each.gpu_ids) >= each.gpu_count:
            continue
        fixed = find_fixed(session) if find_fixed is not None else ()
        taken, jobs = _take_devices(session, each, fixed, now)
        in_the_way.update(jobs)
        if began:
            repository.set_reservation_state(session, each.id, ReservationState.ACTIVE, None)
            activated.append(each.id)
            text = f"The reservation began with {len(taken)} of {each.gpu_count} GPUs."
            _announce(session, each, "reservation.activated", text, "system", now)
    return ReservationChanges(tuple(activated), tuple(ended), tuple(sorted(in_the_way)))


def _nobody_came(session: ReadSession, reservation: Reservation, now: int, no_show_s: int) -> bool:
    """Tell whether none of the devices has been used by the project since it could be.

    What counts is when its first GPU was its own to use: it may begin later than agreed, and work
    of others that was there before may keep its GPUs a while longer.
    """
    if not is_no_show(reservation.start_at, now, no_show_s, was_used=False):
        return False
    if not reservation.gpu_ids:
        return False  # it never got a device, so nobody could come
    seen = usage.list_intervals(
        session, reservation.start_at, now, gpu_ids=reservation.gpu_ids, limit=MAX_LOOK_BACK
    )
    was_used = len(seen) >= MAX_LOOK_BACK or any(
        share.job_id is not None and share.project_id == reservation.project_id
        for interval in seen
        for share in interval.shares
    )
    unused_from = [
        interval.from_at
        for interval in seen
        if any(share.holder_id == reservation.id for share in interval.shares)
    ]
    if not unused_from:
        return False
    return is_no_show(min(unused_from), now, no_show_s, was_used=was_used)


def _window_of(reservation: Reservation) -> Window:
    return Window(reservation.start_at, reservation.end_at, reservation.gpu_count)


def _take_devices(
    session: WriteSession, reservation: Reservation, fixed: Collection[GpuId], now: int
) -> tuple[tuple[GpuId, ...], set[JobId]]:
    """Give a reservation the devices it lacks; return them and the jobs of others on them."""
    guards = repository.lock_model(session, reservation.cluster_id, reservation.model)
    open_to_it = [guard for guard in guards.values() if guard.reservation_id is None]
    lacking = reservation.gpu_count - len(reservation.gpu_ids)
    taken = choose_devices(lacking, open_to_it, fixed=frozenset(fixed))
    for gpu_id in taken:
        guards[gpu_id].reservation_id = reservation.id
        guards[gpu_id].changed = True
    repository.store_guards(session, (), guards.values())
    follow(session, taken, guards, now)
    if taken:
        clusters.bump_generation(session, reservation.cluster_id, now)
    return taken, {
        row.job_id
        for row in repository.holders_on(session, taken)
        if row.project_id != reservation.project_id
    }


def _end(
    session: WriteSession, reservation: Reservation, state: ReservationState, now: int
) -> None:
    guards = repository.lock_devices(session, reservation.gpu_ids)
    for guard in guards.values():
        guard.reservation_id = None
        guard.changed = True
    repository.store_guards(session, (), guards.values())
    repository.set_reservation_state(session, reservation.id, state, now)
    follow(session, guards, guards, now)
    clusters.bump_generation(session, reservation.cluster_id, now)


def _unknown() -> ReservationNotFound:
    return ReservationNotFound("There is no reservation of that id.", fix="Check the id.")


def _announce(
    session: WriteSession, about: Reservation, kind: str, message: str, actor: str, now: int
) -> None:
    events.record(
        session,
        NewEvent(
            kind=kind,
            at=now,
            subject_kind="reservation",
            subject_id=about.id,
            tenant_id=about.tenant_id,
            project_id=about.project_id,
            cluster_id=about.cluster_id,
            actor=actor,
            message=message,
            data={"model": about.model, "gpu_count": about.gpu_count},
        ),
    )
