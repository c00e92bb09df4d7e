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
from gpuplane.core.fleet.columns import NEVER, Fleet, Ints, Masks, Take, bits_of
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
    ends = _Ends.of(fleet, running)
    upcoming: list[Upcoming] = []
    for reservation in sorted(ours, key=lambda each: (each.start_at, each.reservation_id.int)):
        masks = _choose(fleet, reservation, ends, upcoming)
        upcoming.append(Upcoming(reservation, masks))
    return upcoming


@dataclass(frozen=True, eq=False)
class _Ends:
    """When GPUs come free, shape (gpu, node), in ms; -1 where nothing of that kind holds one.

    Attributes:
        soft: When the last work that may be stopped is expected to end.
        bound: When the last other work is over by force, `NEVER` where nothing bounds it.
        expected: When that work is expected to end.
    """

    soft: Ints
    bound: Ints
    expected: Ints

    @classmethod
    def of(
        cls, fleet: Fleet, running: Iterable[tuple[RunningWorkload, Sequence[Take], int]]
    ) -> "_Ends":
        """Return the ends of what runs."""
        soft, bound, expected = (np.full(fleet.reserved.shape, -1, dtype=np.int64) for _ in "sbe")
        for one, takes, ends_at in running:
            workload = one.workload
            is_soft = may_be_stopped(workload)
            over_at = 0 if is_soft else latest_hold(workload, one.started_at, 0)
            for take in takes:
                mask = take.gpu_mask if take.mig is None else 1 << take.mig[0]
                for gpu in bits_of(mask):
                    place = gpu, take.node
                    if is_soft:
                        soft[place] = max(soft[place], ends_at)
                    else:
                        bound[place] = max(bound[place], over_at)
                        expected[place] = max(expected[place], ends_at)
        return cls(soft, bound, expected)

    def rank(self, start_at: int) -> Ints:
        """Return how good each GPU is for a reservation, lower is better, shape (gpu, node)."""
        is_idle = (self.soft < 0) & (self.bound < 0)
        rank = np.where(is_idle, _IDLE, _OVER_BY_THEN)
        rank = np.where(self.soft > start_at, _STOPPED_THEN, rank)
        unsure = np.where(self.expected <= start_at, _EXPECTED_OVER, _TAKEN)
        return np.asarray(np.where(self.bound > start_at, unsure, rank))


_OVER_BY_THEN, _IDLE, _STOPPED_THEN, _EXPECTED_OVER, _TAKEN = range(5)


def _choose(
    fleet: Fleet, reservation: Reservation, ends: _Ends, before: Sequence[Upcoming]
) -> Masks:
    """Return the GPUs to be kept clear as masks by node, shape (node,)."""
    masks = np.zeros(len(fleet), dtype=np.uint16)
    if reservation.model not in fleet.models:
        return masks
    # What an active reservation holds is not planned with: it is chosen again when that is over.
    fits = (fleet.gpu_model == fleet.models.index(reservation.model)) & (fleet.reserved < 0)
    candidates = fleet.gpu_bits(np.asarray(fits)) & fleet.healthy_mask
    for each in before:
        if each.reservation.end_at > reservation.start_at:
            candidates = candidates & ~each.masks
    bits = np.arange(fleet.gpu_count_max, dtype=np.uint16)[:, None]
    rank = ends.rank(reservation.start_at)
    open_to_it = ((candidates[None, :] >> bits) & np.uint16(1) == 1) & (rank < _TAKEN)
    gpus, nodes = np.nonzero(open_to_it)
    together = open_to_it.sum(axis=0)
    # Whole nodes first: what talks stays together, and so does what is left.
    order = np.lexsort((gpus, nodes, -together[nodes], rank[gpus, nodes]))
    for place in order[: reservation.gpu_count]:
        masks[nodes[place]] |= np.uint16(1 << int(gpus[place]))
    return masks


def is_no_show(start_at: int, now: int, grace_s: int, *, was_used: bool) -> bool:
    """Tell whether nobody showed up for a reservation that began: its GPUs come free again.

    Args:
        start_at: When it began, in ms.
        now: The instant.
        grace_s: How long it waits for somebody; 0 waits for ever.
        was_used: Some of its GPUs have been used by its project since it began.
    """
    return grace_s > 0 and not was_used and now >= start_at + grace_s * MS_PER_S
