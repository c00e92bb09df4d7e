"""The states of a device in the ledger and of a reservation, by the words that everyone uses.

Owns the words only; what leads from one to another is decided by usage and placements.
"""

from enum import StrEnum


class DeviceState(StrEnum):
    """The five states; at every millisecond a device is in exactly one."""

    BUSY = "busy"
    ALLOCATED_IDLE = "allocated_idle"
    RESERVED = "reserved"
    FREE = "free"
    DOWN = "down"


class ReservationState(StrEnum):
    """Where a reservation stands: the reservations loop moves it, its end is the deadline."""

    SCHEDULED = "scheduled"
    ACTIVE = "active"
    ENDED = "ended"
    CANCELLED = "cancelled"
