"""Use cases of placements; other packages import from here.

Every verb keeps guards, allocations and the ledger together in the caller's transaction.
"""

from gpuplane.core.capacity import ReservationState
from gpuplane.domains.placements.rules import (
    Allocation,
    Capacity,
    ModelCapacity,
    PlacementOrder,
    PlacementResult,
    Repartition,
    RepartitionState,
    ReplicaOrder,
    Reservation,
    choose_reservation,
)
from gpuplane.domains.placements.service.devices import register_devices, retire_devices
from gpuplane.domains.placements.service.orders import (
    choose_running,
    mark_busy,
    mark_idle,
    place,
    place_running,
    release,
    release_replicas,
)
from gpuplane.domains.placements.service.reading import (
    check,
    get_capacity,
    held_by_jobs,
    list_for_jobs,
    list_open,
    load_held,
    reserved_devices,
)
from gpuplane.domains.placements.service.repartitions import (
    REPARTITION_S,
    ask_repartition,
    end_repartition,
    fail_repartition,
    list_repartitions,
    note_repartition_sent,
)
from gpuplane.domains.placements.service.reservations import (
    ReservationChanges,
    advance_reservations,
    cancel_reservation,
    count_standing,
    create_reservation,
    get_reservation,
    holders_outside_reservations,
    list_reservations,
    model_named,
    usable_reservations,
)

__all__ = [
    "REPARTITION_S",
    "Allocation",
    "Capacity",
    "ModelCapacity",
    "PlacementOrder",
    "PlacementResult",
    "Repartition",
    "RepartitionState",
    "ReplicaOrder",
    "Reservation",
    "ReservationChanges",
    "ReservationState",
    "advance_reservations",
    "ask_repartition",
    "cancel_reservation",
    "check",
    "choose_reservation",
    "choose_running",
    "count_standing",
    "create_reservation",
    "end_repartition",
    "fail_repartition",
    "get_capacity",
    "get_reservation",
    "held_by_jobs",
    "holders_outside_reservations",
    "list_for_jobs",
    "list_open",
    "list_repartitions",
    "list_reservations",
    "load_held",
    "mark_busy",
    "mark_idle",
    "model_named",
    "note_repartition_sent",
    "place",
    "place_running",
    "register_devices",
    "release",
    "release_replicas",
    "reserved_devices",
    "retire_devices",
    "usable_reservations",
]
