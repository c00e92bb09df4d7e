"""Calendar capacity: GPUs set aside from one instant to another, and guaranteed then.

Owns three decisions: whether a new reservation can be kept over its whole time, which GPUs are to
be clear for one that has not begun, and whether nobody showed up for one that has. What ends
before a reservation begins may use its GPUs until then (early yield).

The guarantee: a reservation is granted only if at every instant of its time enough GPUs are left
beside other reservations and work that nobody may stop; from then on nothing starts on its GPUs
that could neither be over nor be stopped when it begins.

Source: advance reservation with backfilling up to the reserved start, as in Maui (Jackson, Snell
and Clement, JSSPP 2001), reduced to GPUs of one model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import NEVER, Fleet, Masks, Take, bits_of
from gpuplane.core.ids import ClusterId, ReservationId
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import Priority


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs of one model that are a project's from `start_at` to `end_at` (ms since the epoch)."""

    reservation_id: ReservationId
    cluster_id: ClusterId
    model: str
    gpu_count: int
    start_at: int
    end_at: int
    tenant: str = ""
    project: str = ""

    def is_owned_by(self, workload: Workload) -> bool:
        """Tell whether the workload is one of those it is made for."""
        return (workload.tenant, workload.project) == (self.tenant, self.project)


class Hold(NamedTuple):
    """GPUs of one model that running work holds outside every reservation.

    Args:
        until: When it gives them back at the latest, in ms; `NEVER` when nothing bounds it.
        may_be_stopped: It can be preempted when a reservation of its GPUs begins.
    """

    gpu_count: int
    until: int
    may_be_stopped: bool


class Window(NamedTuple):
    """A time and a number of GPUs, as far as room is concerned."""

    start_at: int
    end_at: int
    gpu_count: int


def compute_room(
    wanted: Window, others: Iterable[Window], device_count: int, holds: Iterable[Hold] = ()
) -> int:
    """Return how many GPUs are left throughout the wanted time.

    Args:
        wanted: The time that is asked for; its count does not matter.
        others: Reservations of the same model that are scheduled or active.
        device_count: GPUs of the model that work.
        holds: What running work holds outside reservations; what may be stopped is no obstacle.
    """
    beside = [
        each for each in others if each.start_at < wanted.end_at and wanted.start_at < each.end_at
    ]
    fixed = [each for each in holds if not each.may_be_stopped]
    # Reservations only begin at their starts and holds only end, so the fullest instants are those.
    instants = [wanted.start_at, *(each.start_at for each in beside)]
    taken = (
        sum(each.gpu_count for each in beside if each.start_at <= at < each.end_at)
        + sum(each.gpu_count for each in fixed if each.until > at)
        for at in instants
        if wanted.start_at <= at
    )
    return max(0, device_count - max(taken))


def may_be_stopped(workload: Workload) -> bool:
    """Tell whether work may be stopped when a reservation of its GPUs begins."""
    is_critical = Priority.CRITICAL in (workload.priority, workload.inherited_priority)
    return workload.preemptible is not False and not is_critical


def latest_hold(workload: Workload, started_at: int, expected_s: int) -> int:
    """Return until when the workload has to be reckoned with, in ms.

    Work that may be stopped is taken at its expected length: if it lasts longer, it is stopped.
    Other work is taken at the length after which it is ended by force, and at no other.
    """
    if may_be_stopped(workload):
        return started_at + expected_s * MS_PER_S
    if workload.max_duration_s is None:
        return NEVER
    return started_at + workload.max_duration_s * MS_PER_S


@dataclass(frozen=True, eq=False)
class Upcoming:
    """A reservation that has not begun, with the GPUs that are kept clear for it.

    Attributes:
        masks: Its GPUs by node, shape (node,).
    """

    reservation: Reservation
    masks: Masks

    def withholds_from(self, workload: Workload, until: int, now: int) -> bool:
        """Tell whether a workload that may hold GPUs until an instant must leave these alone."""
        reservation = self.reservation
        if reservation.end_at <= now or reservation.is_owned_by(workload):
            return False
        return until > reservation.start_at


def plan_upcoming(
    fleet: Fleet,
    reservations: Sequence[Reservation],
    running: Iterable[tuple[RunningWorkload, Sequence[Take], int]],
    now: int,
) -> list[Upcoming]:
    """Return which GPUs are to be clear for each reservation of this fleet that has not begun.

    GPUs whose work is over by then come first, so that idle ones stay open for long work; then
    idle ones; then those whose work is stopped at the start. Two reservations get the same GPU
    only if one is over before the other begins. Equal input gives equal GPUs.

    Args:
        fleet: The GPUs.
        reservations: Those that are scheduled, of any fleet.
        running: Running work with what it takes here and its expected end in ms.
        now: The instant.
    """
    ours = [
        each
        for each in reservations
        if each.cluster_id == fleet.cluster_id and each.end_at > now and each.gpu_count > 0
    ]
    if not ours:
        return []
    holders = _list_holders(running)
    upcoming: list[Upcoming] = []
    for reservation in sorted(ours, key=lambda each: (each.start_at, each.reservation_id.int)):
        masks = np.zeros(len(fleet), dtype=np.uint16)
        for node, gpu in _choose(fleet, reservation, holders, upcoming):
            masks[node] |= 1 << gpu
        upcoming.append(Upcoming(reservation, masks))
    return upcoming


_Holders = dict[tuple[int, int], list[tuple[RunningWorkload, int]]]


def _list_holders(
    running: Iterable[tuple[RunningWorkload, Sequence[Take], int]],
) -> _Holders:
    """Return who holds a part of each GPU, with the expected end, by (node, GPU)."""
    holders: _Holders = {}
    for one, takes, ends_at in running:
        for take in takes:
            mask = take.gpu_mask if take.mig is None else 1 << take.mig[0]
            for gpu in bits_of(mask):
                holders.setdefault((take.node, gpu), []).append((one, ends_at))
    return holders


def _choose(
    fleet: Fleet, reservation: Reservation, holders: _Holders, before: Sequence[Upcoming]
) -> list[tuple[int, int]]:
    if reservation.model not in fleet.models:
        return []
    wanted = fleet.gpu_model == fleet.models.index(reservation.model)
    candidates = fleet.gpu_bits(wanted) & fleet.healthy_mask
    # What an active reservation holds is not planned with: its end may be put off by nobody, but
    # its GPUs are chosen again when it is over.
    candidates = candidates & ~fleet.gpu_bits(np.asarray(fleet.reserved >= 0))
    for each in before:
        if each.reservation.end_at > reservation.start_at:
            candidates = candidates & ~each.masks
    found: list[tuple[int, int, int, int]] = []
    for node in np.flatnonzero(candidates).tolist():
        ranked = [
            (rank, gpu)
            for gpu in bits_of(int(candidates[node]))
            if (rank := _rank(holders.get((node, gpu), ()), reservation.start_at)) is not None
        ]
        found += [(rank, -len(ranked), node, gpu) for rank, gpu in ranked]
    return [(node, gpu) for _, _, node, gpu in sorted(found)[: reservation.gpu_count]]


def _rank(holding: Sequence[tuple[RunningWorkload, int]], start_at: int) -> int | None:
    """Return how good a GPU is for a reservation, lower is better; None if it will not be clear."""
    if not holding:
        return _IDLE
    worst = _OVER_BY_THEN
    for running, ends_at in holding:
        workload = running.workload
        if may_be_stopped(workload):
            rank = _OVER_BY_THEN if ends_at <= start_at else _STOPPED_THEN
        elif latest_hold(workload, running.started_at, 0) <= start_at:
            rank = _OVER_BY_THEN
        elif ends_at <= start_at:
            rank = _EXPECTED_OVER
        else:
            return None
        worst = max(worst, rank)
    return worst


_OVER_BY_THEN, _IDLE, _STOPPED_THEN, _EXPECTED_OVER = range(4)


def is_no_show(start_at: int, now: int, grace_s: int, *, was_used: bool) -> bool:
    """Tell whether nobody showed up for a reservation that began: its GPUs come free again.

    Args:
        start_at: When it began, in ms.
        now: The instant.
        grace_s: How long it waits for somebody; 0 waits for ever.
        was_used: Some of its GPUs have been used by its project since it began.
    """
    return grace_s > 0 and not was_used and now >= start_at + grace_s * MS_PER_S
