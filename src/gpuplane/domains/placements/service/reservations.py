"""Capacity set aside: created, cancelled, begun and ended in time."""

from collections.abc import Sequence
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
from gpuplane.domains.placements.rules import (
    Reservation,
    choose_devices,
    fits_beside,
)
from gpuplane.domains.placements.service.following import follow

MAX_RESERVATION_MS = 366 * 86_400_000
FURTHEST_MS = 2 * MAX_RESERVATION_MS


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
    session: WriteSession, wanted: Reservation, actor: str, now: int
) -> Reservation:
    """Set GPUs of a model aside from start to end, if the cluster has so many then.

    Raises:
        BadReservation: If the window is over, or the cluster has no GPU of the model.
        NotEnoughCapacity: If other reservations leave too few.
    """
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
    fits, left = fits_beside(wanted, others, len(guards))
    if not fits:
        raise NotEnoughCapacity(
            f"{wanted.gpu_count} {wanted.model} are wanted and {left} of {len(guards)} are left "
            "throughout that time.",
            field="count",
            fix=f"Reserve at most {left}, or another time.",
        )
    repository.insert_reservation(session, wanted)
    _announce(session, wanted, "reservation.created", f"{actor} reserved GPUs.", actor, now)
    return wanted


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


def advance_reservations(session: WriteSession, now: int) -> ReservationChanges:
    """Begin and end what is due, and give active ones the devices they still lack."""
    activated: list[ReservationId] = []
    ended: list[ReservationId] = []
    in_the_way: set[JobId] = set()
    for each in repository.lock_due_reservations(session, now):
        if each.end_at <= now:
            _end(session, each, ReservationState.ENDED, now)
            _announce(session, each, "reservation.ended", "The reservation ended.", "system", now)
            ended.append(each.id)
            continue
        began = each.state is ReservationState.SCHEDULED
        taken, jobs = _take_devices(session, each, now)
        in_the_way.update(jobs)
        if began:
            repository.set_reservation_state(session, each.id, ReservationState.ACTIVE, None)
            activated.append(each.id)
            text = f"The reservation began with {len(taken)} of {each.gpu_count} GPUs."
            _announce(session, each, "reservation.activated", text, "system", now)
    return ReservationChanges(tuple(activated), tuple(ended), tuple(sorted(in_the_way)))


def _take_devices(
    session: WriteSession, reservation: Reservation, now: int
) -> tuple[tuple[GpuId, ...], set[JobId]]:
    """Give a reservation the devices it lacks; return them and the jobs of others on them."""
    guards = repository.lock_model(session, reservation.cluster_id, reservation.model)
    open_to_it = [guard for guard in guards.values() if guard.reservation_id is None]
    lacking = reservation.gpu_count - len(reservation.gpu_ids)
    taken = choose_devices(lacking, open_to_it)
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
