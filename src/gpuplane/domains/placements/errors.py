"""What can be refused about placements and reservations."""

from gpuplane.kit.errors import Conflict, NotFound, Unprocessable


class BadReservation(Unprocessable):
    """A reservation with a field that cannot hold."""

    code = "bad_reservation"


class NotEnoughCapacity(Conflict):
    """The cluster has fewer GPUs of that model left in that time."""

    code = "not_enough_capacity"


class ReservationNotFound(NotFound):
    """No reservation of that id, or not the caller's to see."""

    code = "reservation_not_found"


class ReservationOver(Conflict):
    """The reservation has ended or was cancelled."""

    code = "reservation_over"


class GuardBroken(RuntimeError):
    """A guard row changed under its lock: a bug; the transaction is given up."""
